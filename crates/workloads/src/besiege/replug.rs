//! Memory slots that come and go, of RAM and of a device's: what plugging memory and mapping BARs does, without a pause.

use std::io;

use crate::kvm::Vm;

/// Slots: a display, a dozen of devices and some memory have as many.
pub(super) const SLOTS: u32 = 32;

/// Where in the guest they are, far above its own memory; each has room for a page of any size.
const AT: u64 = 1 << 32;
const APART: u64 = 64 << 10;

/// Plugs all in, then out: those with an odd number are of `device`, the others of `ram`; each is a page at that address.
pub(super) fn circle(vm: &Vm, ram: usize, device: usize, page: usize) -> io::Result<()> {
    for length in [page, 0] {
        for slot in 0..SLOTS {
            let host = if slot % 2 == 0 { ram } else { device };
            // Slot 0 is the VM's own memory.
            vm.set_slot(slot + 1, AT + u64::from(slot) * APART, host, length)?;
        }
    }
    Ok(())
}
