//! Capabilities that the daemon keeps once its programs are loaded: what a fault in it could still do afterwards.
//!
//! Loading and attaching BPF takes SYS_ADMIN, BPF and PERFMON; calling what is loaded through its file descriptors takes
//! nothing. Threads that only serve a socket keep no capability at all; the one that loads the host's scheduler, and again
//! after it has ended, keeps what loading takes and nothing else.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Reads a VMM's memory and its maps (SYS_PTRACE), opens the file behind a mapping (CHECKPOINT_RESTORE) though it is
/// another user's, and writes weights of cgroups that are delegated to other users (DAC_OVERRIDE).
const KEPT: CapabilitySet =
    CapabilitySet::SYS_PTRACE.union(CapabilitySet::CHECKPOINT_RESTORE).union(CapabilitySet::DAC_OVERRIDE);

/// Loads BPF programs and attaches them, where all of them are needed.
const LOADING: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::BPF).union(CapabilitySet::PERFMON);

/// What of `permitted` is kept, with what the mode needs beside (`more`). Before CHECKPOINT_RESTORE was given to services, SYS_ADMIN stood for it: where a unit or
/// a container grants the old one alone, that stays.
fn kept(permitted: CapabilitySet, more: CapabilitySet) -> CapabilitySet {
    let kept = permitted & (KEPT | more);
    if kept.contains(CapabilitySet::CHECKPOINT_RESTORE) { kept } else { kept | (permitted & CapabilitySet::SYS_ADMIN) }
}

/// Drops what the calling thread does not need any more to find VMs and pair with them; for the main loop, after all is
/// loaded. `more`: what the mode needs beside. Nothing that it starts from then on gains a capability. Returns what is left.
pub(crate) fn drop_after_loading(more: CapabilitySet) -> io::Result<CapabilitySet> {
    set_no_new_privs(true)?;
    keep(kept(capabilities(None)?.permitted, more))
}

/// Drops what loading BPF programs does not need; for the thread that loads the scheduler again. Returns what is left.
pub(crate) fn drop_for_loading() -> io::Result<CapabilitySet> {
    set_no_new_privs(true)?;
    keep(capabilities(None)?.permitted & LOADING)
}

/// Drops all of the calling thread's; for a thread that serves clients.
pub(crate) fn drop_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    keep(CapabilitySet::empty()).map(drop)
}

fn keep(left: CapabilitySet) -> io::Result<CapabilitySet> {
    set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() })?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_s_capabilities_go_and_the_old_name_stays_where_it_is_needed() {
        let root = CapabilitySet::all();
        let none = CapabilitySet::empty();
        assert_eq!(kept(root, none), KEPT);
        assert_eq!(kept(root, CapabilitySet::SYS_NICE), KEPT | CapabilitySet::SYS_NICE);
        let old = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::BPF;
        assert_eq!(kept(old, none), CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE);
        assert_eq!(kept(none, CapabilitySet::SYS_NICE), none);
    }

    #[test]
    fn a_thread_that_drops_all_has_none_and_leaves_others_theirs() {
        let before = capabilities(None).expect("readable");
        std::thread::spawn(|| {
            drop_all().expect("giving up is always allowed");
            let none = capabilities(None).expect("readable");
            assert!(none.effective.is_empty() && none.permitted.is_empty() && none.inheritable.is_empty());
        })
        .join()
        .expect("passed");
        assert_eq!(capabilities(None).expect("readable"), before);
    }
}
