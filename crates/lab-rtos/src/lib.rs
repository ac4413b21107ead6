//! A guest without an operating system, for aarch64: it stands for an RTOS beside locks, as reference 4's is.
//!
//! Each of its CPUs has a 2 ms clock (the generic timer). Between two ticks a CPU works, in turns outside of and in its
//! "kernel": a critical section that all CPUs share, under one ticket lock with interrupts masked, marked by
//! `entrain_guest.h`. What is left of the period it sleeps. At the end the guest prints how late its clock was, as lines of
//! JSON like those of `entrain-load tick`, on its console, and powers itself off.
//!
//! It boots on QEMU's board `virt` with a GICv3 and knows nothing else. Words of memory at [`PARAMETERS`] say what it is to
//! do: QEMU's `-device loader,addr=…,data=…,data-len=8` writes them.

/// An ELF file for `-kernel`.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rtos.elf"));

/// The program in a host machine that boots it: a shell script, for `/usr/bin/entrain-rtos`.
pub const RUN: &str = include_str!("run.sh");

/// Where [`RUN`] looks for [`IMAGE`].
pub const PLACE: &str = "usr/lib/entrain/guest/rtos.elf";

/// Where the guest finds its parameters, 64 bits each: milliseconds to measure; milliseconds to wait at most for a host to
/// pair with all pages; share of each period to work in, percent; 1 to offer pages and mark sections, 0 to be silent.
pub const PARAMETERS: u64 = 0x4020_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_small_program_for_aarch64() {
        assert_eq!(&IMAGE[..4], b"\x7fELF");
        // e_machine.
        assert_eq!(u16::from_le_bytes([IMAGE[18], IMAGE[19]]), 183);
        assert!(IMAGE.len() < 32 << 10, "{} bytes", IMAGE.len());
        let board = include_str!("guest/board.h");
        assert!(board.contains(&format!("#define PARAMETERS {PARAMETERS:#x}")), "one address on both sides");
        let words = (0..4).map(|i| format!("word {:#x} ", PARAMETERS + 8 * i));
        assert!(RUN.contains(PLACE) && words.into_iter().all(|word| RUN.contains(&word)));
    }
}
