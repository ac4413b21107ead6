//! The host's heartbeat: checks every pairing, reads the guests, and publishes what changes slowly.
//!
//! It needs the loaded programs and how many entries are in use, and nothing else of the daemon: what it finds is for
//! others to act on, so that no search, pairing or client can hold it up.

use std::time::Duration;

use entrain_bpf::Error;

use crate::programs::Programs;

/// Heartbeat of the host in the page (`ENTRAIN_HOST_BEAT_NS`).
pub(super) const PERIOD: Duration = Duration::from_millis(100);

/// What one beat has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    /// Some pairing has ended from the guest's side.
    pub(super) gone: bool,
    /// The memory of a paired VM is being laid out anew, or copied: discovery is not to wait.
    pub(super) moved: bool,
}

/// What is kept from one beat to the next.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// Pairings, and the sum of the generations of their VMs' memory slots.
    layouts: (u32, u64),
}

impl Heartbeat {
    /// One beat for all vCPUs below `entries`.
    pub(super) fn beat(&mut self, programs: &Programs, entries: u32) -> Result<Beat, Error> {
        let result = programs.tick(entries)?;
        let before = std::mem::replace(&mut self.layouts, (result.paired, result.layouts));
        // Pairings that came or went change the sum as well.
        Ok(Beat { gone: result.gone > 0, moved: before.0 == result.paired && before.1 != result.layouts })
    }
}
