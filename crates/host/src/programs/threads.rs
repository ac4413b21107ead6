//! From a vCPU's thread to its entry: by the thread's storage, or by a hash of thread numbers.

use std::io;
use std::os::fd::AsRawFd;

use entrain_bpf::{Error, Step};
use entrain_channel::word::Vcpu as State;
use entrain_system::{Root, monotonic_ns};
use libbpf_rs::{MapCore, MapFlags};

use super::{Kind, Programs, run};
use crate::interface::{TrackArgs, Vcpu, from_bytes};
use crate::pidfd;

impl Programs {
    /// Watches the thread of entry `index`, which is filled. False: the thread has ended meanwhile.
    pub(crate) fn track(&self, index: u32, tid: i32) -> Result<bool, Error> {
        let watch = match &self.kernel {
            Kind::Loaded(skel, _) => {
                let mut args = TrackArgs { index, tid, error: 0 };
                run(&skel.progs.track, "track", &mut args)?;
                return Ok(args.error == 0);
            }
            Kind::Watch(skel, _) => skel,
            #[cfg(feature = "fake")]
            Kind::Fake(fake) => return Ok(fake.track(&self.vcpus, index, tid)),
        };
        let mut entry = self.vcpus.get(index as usize);
        let Some((state, pcpu)) = at_first(&Root::live(), entry.tgid, tid) else { return Ok(false) };
        entry = Vcpu { state: state as u32, pcpu, since: monotonic_ns(), used: 1, ..entry };
        self.vcpus.set(index as usize, entry);
        let told = watch.maps.vcpu_tids.update(&tid.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY);
        told.map(|()| true).map_err(Error::at(Step::Run, "vcpu_tids"))
    }

    /// Forgets entry `index`, its thread and its pairing.
    pub(crate) fn untrack(&self, index: u32) -> Result<(), Error> {
        let watch = match &self.kernel {
            Kind::Loaded(skel, _) => {
                return run(&skel.progs.untrack, "untrack", &mut TrackArgs { index, tid: 0, error: 0 });
            }
            Kind::Watch(skel, _) => skel,
            #[cfg(feature = "fake")]
            Kind::Fake(fake) => {
                fake.untrack(&self.vcpus, index);
                return Ok(());
            }
        };
        let entry = self.vcpus.get(index as usize);
        // The thread may run another vCPU by now, whose entry it leads to; where it has ended, BPF has forgotten it.
        if self.index_of(entry.tid).is_ok_and(|known| known == Some(index)) {
            let _ = watch.maps.vcpu_tids.delete(&entry.tid.to_ne_bytes());
        }
        self.vcpus.set(index as usize, Vcpu { used: 0, ..entry });
        Ok(())
    }

    /// The entry that BPF finds from a thread; `None` when it finds none. An error: the thread cannot be asked about.
    pub(crate) fn index_of(&self, tid: i32) -> io::Result<Option<u32>> {
        let found = match &self.kernel {
            Kind::Loaded(skel, _) => {
                let fd = pidfd::of_thread(tid)?;
                skel.maps.vcpu_refs.lookup(&fd.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            }
            Kind::Watch(skel, _) => skel.maps.vcpu_tids.lookup(&tid.to_ne_bytes(), MapFlags::ANY),
            #[cfg(feature = "fake")]
            Kind::Fake(_) => unreachable!("only what the fleet calls is there"),
        };
        Ok(found.ok().flatten().and_then(|bytes| from_bytes(&bytes)))
    }
}

/// What a thread does before its first switch is seen, and where; `None`: it has ended. `/proc` does not tell a thread
/// that runs from one that is ready to: until its next switch that counts as running.
fn at_first(root: &Root, tgid: i32, tid: i32) -> Option<(State, u32)> {
    let text = root.text(format!("proc/{tgid}/task/{tid}/stat"))?;
    // After the name, which may hold anything: the state is the third field of all, the CPU the 39th.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = match fields.next()? {
        "R" => State::Running,
        "X" | "Z" => return None,
        _ => State::Halted,
    };
    Some((state, fields.nth(35)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn what_a_thread_does_at_first_stands_in_its_stat() {
        let stat = |state: &str| format!("71 (CPU 0) R/KVM) {state} 1 {}5 0 0\n", "0 ".repeat(34));
        let of = |state| at_first(&Machine::new([("proc/7/task/71/stat", stat(state))]).root(), 7, 71);
        assert_eq!(of("R"), Some((State::Running, 5)));
        assert_eq!(of("S"), Some((State::Halted, 5)));
        assert_eq!(of("X"), None);
        assert_eq!(at_first(&Machine::new([("proc/8/task/71/stat", stat("R"))]).root(), 7, 71), None, "another's");
        // This thread's own, as the running kernel writes it.
        // SAFETY: gettid touches no memory.
        let (tgid, tid) = (std::process::id() as i32, unsafe { libc::gettid() });
        let (state, _) = at_first(&Root::live(), tgid, tid).expect("it lives");
        assert_eq!(state, State::Running);
    }
}
