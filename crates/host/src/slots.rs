//! A VM's memory as KVM has it: from guest-physical addresses through the memory slots to the VMM's addresses.

use std::sync::Arc;

/// KVM: the VMM asks for a log of the guest's writes to this slot (live migration, or a display).
const SLOT_LOGS_WRITES: u32 = 1 << 0;
/// KVM: the guest cannot write to it (ROM).
const SLOT_READ_ONLY: u32 = 1 << 1;
const PAGE: u64 = 4096;

/// One of KVM's memory slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySlot {
    /// First guest-physical address.
    pub(crate) gpa: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Where the VMM has it.
    pub(crate) hva: u64,
    /// KVM_MEM_*.
    pub(crate) flags: u32,
}

impl MemorySlot {
    /// Whether writes to it are being logged.
    pub(crate) fn logs_writes(&self) -> bool {
        self.flags & SLOT_LOGS_WRITES != 0
    }
}

/// A VM's memory slots, biggest first. All of them begin and end with a page, as KVM has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots(Arc<[MemorySlot]>);

impl Slots {
    /// Of slots in any order; ROM and slots that KVM would not have are left out.
    pub(crate) fn new(mut slots: Vec<MemorySlot>) -> Self {
        slots.retain(|slot| {
            slot.flags & SLOT_READ_ONLY == 0
                && slot.size >= PAGE
                && [slot.gpa, slot.size, slot.hva].iter().all(|number| number.is_multiple_of(PAGE))
                && slot.gpa.checked_add(slot.size).is_some()
                && slot.hva.checked_add(slot.size).is_some()
        });
        slots.sort_by_key(|slot| (std::cmp::Reverse(slot.size), slot.gpa));
        Self(slots.into())
    }

    /// Biggest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MemorySlot> {
        self.0.iter()
    }

    /// The slot that holds all of `length` bytes at `gpa`.
    pub(crate) fn find(&self, gpa: u64, length: u64) -> Option<&MemorySlot> {
        self.0.iter().find(|slot| {
            gpa.checked_sub(slot.gpa).is_some_and(|into| length <= slot.size && into <= slot.size - length)
        })
    }

    /// The VMM's address of `length` bytes at `gpa`.
    pub(crate) fn hva(&self, gpa: u64, length: u64) -> Option<u64> {
        self.find(gpa, length).map(|slot| slot.hva + (gpa - slot.gpa))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(gpa: u64, size: u64, hva: u64) -> MemorySlot {
        MemorySlot { gpa, size, hva, flags: 0 }
    }

    #[test]
    fn addresses_above_4_gib_follow_their_own_slot() {
        let slots =
            Slots::new(vec![slot(0, 3 << 30, 0x7f00_0000_0000), slot(4 << 30, 5 << 30, 0x7f00_0000_0000 + (3 << 30))]);
        assert_eq!(slots.hva((4 << 30) + 0x1000, 4096), Some(0x7f00_0000_0000 + (3 << 30) + 0x1000));
        assert_eq!(slots.hva(3 << 30, 4096), None, "the hole below 4 GiB is no RAM");
        assert_eq!(slots.hva((3 << 30) - 8, 16), None, "across the end of a slot");
    }

    #[test]
    fn rom_and_impossible_slots_are_left_out() {
        let rom = MemorySlot { flags: SLOT_READ_ONLY, ..slot(0, 1 << 20, 0x1000) };
        let wraps = slot(u64::MAX - 4095, 8192, 0x1000);
        let askew = slot(0, 1 << 20, 0x1001);
        assert_eq!(Slots::new(vec![rom, wraps, askew]), Slots::default());
    }

    proptest! {
        #[test]
        fn a_found_address_is_inside_its_slot(
            raw in prop::collection::vec((0u64..1 << 28, 1u64..1 << 22, 0u64..1 << 34), 0..20),
            gpa in 0u64..1 << 41, length in 1u64..8192,
        ) {
            let slots = Slots::new(raw.into_iter().map(|(gpa, size, hva)| slot(gpa * PAGE, size * PAGE, hva * PAGE)).collect());
            if let Some(found) = slots.find(gpa, length) {
                prop_assert!(gpa >= found.gpa && gpa + length <= found.gpa + found.size);
                prop_assert!(slots.hva(gpa, length).is_some());
            }
        }
    }
}
