//! Whether what BPF counts of each vCPU keeps up with what the kernel counts of its thread.
//!
//! It must: both are of the same switches. Where it does not, the thread has lost its way to its entry; that has been seen
//! and not been explained. It is said once, with all that may explain it, and the thread is told its entry anew.

use entrain_bpf::Error;
use entrain_channel::word::Vcpu as State;
use entrain_system::{Root, monotonic_ns};
use tracing::warn;

use super::Fleet;
use crate::interface;
use crate::vm::Vm;

/// vCPUs that one look compares: bounds its work (one small file each), whatever the number of VMs.
const LOOKS: usize = 64;
/// Time on a CPU, ns, over which the two are compared: the kernel counts at ticks and switches, BPF at switches alone.
const OVER: u64 = 2_000_000_000;

/// What was read of a vCPU's time on CPUs, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    /// By the kernel: the first number of the thread's schedstat.
    kernel: u64,
    /// By BPF, the present stay included.
    counted: u64,
}

/// Whether a vCPU's count has stood still, from the reading that was compared last on; `None`: too early to say.
fn stands_still(before: Ran, now: Ran) -> Option<bool> {
    let ran = now.kernel.checked_sub(before.kernel).filter(|ran| *ran >= OVER)?;
    // A tenth: what is counted later, or charged to interrupts, is far less than the rest.
    Some(now.counted.saturating_sub(before.counted) < ran / 10)
}

fn read(root: &Root, entry: &interface::Vcpu, now: u64) -> Option<Ran> {
    let text = root.text(format!("proc/{}/schedstat", entry.tid))?;
    let kernel = text.split_ascii_whitespace().next()?.parse().ok()?;
    let present = if entry.state == State::Running as u32 { now.saturating_sub(entry.since) } else { 0 };
    Some(Ran { kernel, counted: entry.run_ns + present })
}

impl Fleet {
    /// Compares some of the vCPUs, the next ones the next time.
    pub(crate) fn check_counts(&mut self) -> Result<(), Error> {
        let all: usize = self.vms.values().map(|vm| vm.vcpus.len()).sum();
        let first = self.compared % all.max(1);
        let mut lost = Vec::new();
        let vcpus = self.vms.values_mut().flat_map(|vm| vm.vcpus.iter_mut());
        for (_, vcpu) in vcpus.skip(first).take(LOOKS) {
            let entry = self.programs.vcpus.get(vcpu.index as usize);
            let Some(now) = read(&self.root, &entry, monotonic_ns()) else { continue };
            match vcpu.ran.and_then(|before| stands_still(before, now)) {
                Some(true) => lost.push((vcpu.index, vcpu.tid, vcpu.ran, now)),
                None if vcpu.ran.is_some() => continue,
                _ => {}
            }
            vcpu.ran = Some(now);
        }
        self.compared = if first + LOOKS < all { first + LOOKS } else { 0 };
        for (index, tid, before, now) in lost {
            if !std::mem::replace(&mut self.told_standstill, true) {
                warn!("{}", self.evidence(index, tid, before.unwrap_or_default(), now));
            }
            self.programs.track(index, tid)?;
        }
        Ok(())
    }

    /// All that may explain it, in one line.
    fn evidence(&self, index: u32, tid: i32, before: Ran, now: Ran) -> String {
        let entry = self.programs.vcpus.get(index as usize);
        let vm = |vm: &&Vm| vm.number == entry.vm;
        let name = self.vms.values().find(vm).map_or("?", Vm::name);
        let known = match self.programs.index_of(tid) {
            Err(error) => format!("has no descriptor ({error})"),
            Ok(Some(at)) if at == index => "leads there".to_owned(),
            Ok(Some(at)) => format!("leads to entry {at}"),
            Ok(None) => "leads nowhere".to_owned(),
        };
        let sum = |of: fn(&interface::Pcpu) -> u64| {
            let pcpus = &self.programs.pcpus;
            (0..pcpus.entries()).map(|cpu| of(&pcpus.get(cpu))).fold(0, u64::wrapping_add)
        };
        let missed = |program: &str| {
            let figures = self.programs.figures();
            figures.iter().find(|one| one.name == program).map_or(0, |one| one.missed)
        };
        format!(
            "{name}: the kernel says that thread {tid} ran for {} ms more, BPF has counted {} ms of that; told it its \
             entry anew. Please report this line: entry {index}, its thread's number {}, state {}, since {} of {}, {} \
             switches, {} changes, used {}; the thread {known}; switches of vCPUs seen on all pCPUs {}, times that one \
             went idle {}; observe_switch missed {}, observe_wakeup {}",
            (now.kernel - before.kernel) / 1_000_000,
            now.counted.saturating_sub(before.counted) / 1_000_000,
            entry.tid,
            State::from_raw(entry.state).name(),
            entry.since,
            monotonic_ns(),
            entry.switches,
            entry.seq,
            entry.used,
            sum(|pcpu| pcpu.switches),
            sum(|pcpu| pcpu.idles),
            missed("observe_switch"),
            missed("observe_wakeup"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(kernel: u64, counted: u64) -> Ran {
        Ran { kernel, counted }
    }

    #[test]
    fn a_count_that_keeps_up_is_left_alone() {
        assert_eq!(stands_still(ran(0, 0), ran(OVER, OVER)), Some(false));
        // Counted when the daemon began to watch, or a little late.
        assert_eq!(stands_still(ran(9 * OVER, 0), ran(10 * OVER, OVER * 9 / 10)), Some(false));
        assert_eq!(stands_still(ran(5, 7), ran(OVER + 4, 7)), None, "too early to say");
        assert_eq!(stands_still(ran(5, 7), ran(4, 7)), None, "another thread of the same number");
    }

    #[test]
    fn one_that_stands_still_is_found() {
        assert_eq!(stands_still(ran(0, 5), ran(OVER, 5)), Some(true));
        assert_eq!(stands_still(ran(0, 5), ran(OVER, 4)), Some(true));
        assert_eq!(stands_still(ran(0, 0), ran(OVER, OVER / 100)), Some(true));
    }

    #[test]
    fn the_present_stay_counts() {
        let machine = entrain_system::fake::Machine::new([("proc/7/schedstat", "5000 30 2\n")]);
        let entry =
            interface::Vcpu { tid: 7, state: State::Running as u32, since: 100, run_ns: 40, ..Default::default() };
        assert_eq!(read(&machine.root(), &entry, 160), Some(ran(5000, 100)));
        let halted = interface::Vcpu { state: State::Halted as u32, ..entry };
        assert_eq!(read(&machine.root(), &halted, 160), Some(ran(5000, 40)));
        assert_eq!(read(&machine.root(), &interface::Vcpu { tid: 8, ..entry }, 160), None);
    }
}
