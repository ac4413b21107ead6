//! The kernel's linear map of its RAM, by which its addresses become guest-physical ones.

use entrain_channel::page::PAGE_SIZE;

use super::Known;
use super::probe::{Probe, Survey};
use crate::error::{GuestError, Result};

/// The linear map: `size` bytes from virtual address `base` map the RAM from guest-physical address `gpa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) base: u64,
    pub(super) size: u64,
    pub(super) gpa: u64,
}

impl Linear {
    pub(super) fn gpa_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base).filter(|&offset| offset < self.size)?;
        Some(self.gpa + offset)
    }

    fn address_of(&self, gpa: u64) -> Option<u64> {
        gpa.checked_sub(self.gpa).filter(|&offset| offset < self.size).map(|offset| self.base + offset)
    }
}

/// Finds the linear map and reads the known page through it.
pub(super) fn find(probe: &Probe<'_>, survey: &Survey, ram_end: u64, known: Known) -> Result<Linear> {
    let candidates = if survey.memstart_addr != 0 {
        let start = probe.peek(survey.memstart_addr)?;
        // PAGE_OFFSET is -(1 << VA_BITS) of the configuration, which is not told: 48 and 52 are usual, the others possible.
        [48, 52, 47, 42, 39, 36].map(|bits| arm_linear(bits, start)).to_vec()
    } else if survey.page_offset_base != 0 {
        vec![(probe.peek(survey.page_offset_base)?, 0)]
    } else {
        // x86 without CONFIG_DYNAMIC_MEMORY_LAYOUT: with four or five levels of page tables (arch/x86/mm/kaslr.c).
        vec![(0xffff_8880_0000_0000, 0), (0xff11_0000_0000_0000, 0)]
    };
    let page = PAGE_SIZE as u64;
    for (base, gpa) in candidates.iter().copied() {
        let Some(size) = ram_end.checked_sub(gpa).filter(|&size| size > 0 && base.checked_add(size - 1).is_some())
        else {
            continue;
        };
        let linear = Linear { base, size, gpa };
        if (base | gpa) % page == 0
            && linear.address_of(known.gpa).is_some_and(|alias| probe.peek(alias).is_ok_and(|seen| seen == known.value))
        {
            return Ok(linear);
        }
    }
    Err(GuestError::UnknownLayout(
        format!("a known page at {:#x} was not found through a linear map at any of {candidates:x?}", known.gpa),
        "memory",
    ))
}

/// arm64 maps memstart_addr at PAGE_OFFSET. With 52-bit addresses configured on a CPU without, memstart_addr is below 0,
/// and only the upper part of that range exists: the result starts at address 0 then.
fn arm_linear(bits: u32, start: u64) -> (u64, u64) {
    let base = (1_u64 << bits).wrapping_neg();
    if start > i64::MAX as u64 { (base.wrapping_add(start.wrapping_neg()), 0) } else { (base, start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_start_of_memory_becomes_a_later_base() {
        assert_eq!(arm_linear(48, 0x4000_0000), (0xffff_0000_0000_0000, 0x4000_0000));
        // 52 bits configured, 48 in hardware: memstart_addr -= 2^52 - 2^48.
        let start = 0x4000_0000_u64.wrapping_sub((1 << 52) - (1 << 48));
        let (base, gpa) = arm_linear(52, start);
        let linear = Linear { base, size: 1 << 40, gpa };
        assert_eq!(linear.gpa_of(0xffff_0000_0000_0000), Some(0x4000_0000));
        assert_eq!(linear.address_of(0x4000_1000), Some(0xffff_0000_0000_1000));
    }
}
