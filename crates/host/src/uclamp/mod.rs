//! `entrain host --uclamp`: utilisation clamps on vCPU threads, for hosts that keep their own scheduler.
//!
//! What the guest says it needs becomes the `uclamp_min` of the vCPU's thread: the kernel then runs the CPU at that level
//! at least while the thread is on it, and places the thread by it. Reference 2 measured this as the peer of its own way:
//! a minimum is not added to what other tasks of the CPU need. The kernel cuts it at the `cpu.uclamp.max` of the thread's
//! cgroups, and nothing is set above the thread's own maximum. Threads that are real-time already run at their level.
//!
//! Clamps belong to threads, not to this process, so they would outlive it. They are put back when it ends; what was
//! there before stands in a file, too, so that the next start puts back what a `kill -9` left.

mod attr;
pub mod error;
mod record;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use entrain_channel::page::feature;
use entrain_policy::perf::{Level, PerfIn, claim, wanted};
use rustix::thread::CapabilitySet;
use tracing::{debug, info, warn};

use crate::error::HostError;
use crate::fleet::Fleet;
use crate::mode::{Figures, Mode};
use attr::{Attr, get, set};
use error::UclampError;
use record::Record;

/// Between two looks while vCPUs run: about a timer tick.
const PERIOD: Duration = Duration::from_millis(4);
/// While none does.
const CALM: Duration = Duration::from_millis(20);
/// A guest's words expire with its agent's heartbeat (`ENTRAIN_GUEST_EXPIRY_NS`).
const EXPIRY: Duration = Duration::from_secs(2);
/// SCHED_OTHER, SCHED_BATCH, SCHED_IDLE and SCHED_EXT: the policies whose level follows utilisation.
const POLICIES: [u32; 4] = [0, 3, 5, 7];

/// One vCPU thread.
#[derive(Debug)]
struct Clamp {
    /// As it was.
    before: Attr,
    /// What was set last; `None` = nothing yet.
    set: Option<u32>,
    level: Level,
    beat: (u64, Instant),
    /// It cannot be clamped: it is real-time, or the kernel refused.
    never: bool,
}

/// All clamps; dropping it puts everything back.
pub(crate) struct Clamps {
    record: Record,
    threads: BTreeMap<i32, Clamp>,
    started: Instant,
}

/// Puts back what a daemon left that was killed. For every start, with clamps or without.
pub(crate) fn clean_up(run_dir: &Path) -> usize {
    let left = Record::open(run_dir).take_left();
    let back = left.iter().filter(|(tid, before)| put_back(*tid, before, None)).count();
    if back > 0 {
        info!("put back the utilisation clamps of {back} threads that an earlier daemon left");
    }
    back
}

impl Clamps {
    /// Looks whether the kernel has clamps.
    pub(crate) fn start(run_dir: &Path) -> Result<Self, UclampError> {
        // The clamp that this thread has already: nothing changes but that the kernel begins to honour clamps.
        match get(0).and_then(|own| set(0, &own, own.util_min)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Err(UclampError::Missing),
            Err(error) => return Err(UclampError::Try(error)),
        }
        info!("setting utilisation clamps on vCPU threads");
        Ok(Self { record: Record::open(run_dir), threads: BTreeMap::new(), started: Instant::now() })
    }

    /// One look at all vCPUs. Returns whether any of them runs.
    fn look(&mut self, fleet: &Fleet) -> bool {
        let mut busy = false;
        let mut known = HashSet::new();
        for vm in fleet.vms.values() {
            let words = vm.registration.as_ref().is_some_and(|r| r.first.features & feature::GUEST_WORDS != 0);
            for vcpu in vm.vcpus.values() {
                known.insert(vcpu.tid);
                let entry = fleet.programs.vcpus.get(vcpu.index as usize);
                let halted = entry.state == entrain_channel::word::Vcpu::Halted as u32;
                busy |= !halted;
                // Asleep it counts nowhere: what it had is what it begins with when it wakes up.
                if halted && vcpu.paired.is_some() {
                    continue;
                }
                let scale = fleet.programs.pcpus.get(entry.pcpu as usize % fleet.programs.pcpus.entries());
                let scale = scale.capacity.min(1024) * scale.perf.min(1024) / 1024;
                let told = vcpu.paired.is_some().then_some((entry.util, entry.guest_beat));
                self.follow(vcpu.tid, told, words, scale);
            }
        }
        let gone: Vec<i32> = self.threads.keys().filter(|tid| !known.contains(tid)).copied().collect();
        for tid in gone {
            self.release(tid);
        }
        busy
    }

    /// Sets one thread's clamp, if it should change. `told`: utilisation and heartbeat of its guest; `None` when it has
    /// no pairing (any more).
    fn follow(&mut self, tid: i32, told: Option<(u64, u64)>, words: bool, scale: u32) {
        let now = Instant::now();
        let clamp = match self.threads.entry(tid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if told.is_none() => return,
            Entry::Vacant(free) => {
                // It may have ended a moment ago.
                let Ok(before) = get(tid) else { return };
                let never = !POLICIES.contains(&before.policy);
                free.insert(Clamp { before, set: None, level: Level::default(), beat: (0, now), never })
            }
        };
        if clamp.never {
            return;
        }
        let util = told.map_or(0, |(util, beat)| {
            if beat != clamp.beat.0 {
                clamp.beat = (beat, now);
            }
            let fresh = !words || clamp.beat.1.elapsed() < EXPIRY;
            if fresh { claim(util, words, scale) } else { 0 }
        });
        // Nothing is measured here: the kernel does that, and takes the larger of the two.
        let input = PerfIn { all: 0, task: 0, claim: util, limit: clamp.before.util_max };
        let clock = self.started.elapsed().as_nanos() as u64 + 1;
        let (level, ask) = clamp.level.step(wanted(&input), clock);
        if !ask {
            return;
        }
        let level = level.max(clamp.before.util_min).min(clamp.before.util_max);
        if clamp.set == Some(level) || (clamp.set.is_none() && level <= clamp.before.util_min) {
            return;
        }
        if clamp.set.is_none() {
            self.record.add(tid, &clamp.before);
        }
        match set(tid, &clamp.before.without_inheritance(), level) {
            Ok(()) => clamp.set = Some(level),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                warn!("thread {tid}: cannot set its utilisation clamp, and will not try again: {error}");
                clamp.never = true;
                if clamp.set.is_none() {
                    self.record.remove(tid);
                }
            }
        }
    }

    fn release(&mut self, tid: i32) {
        let Some(clamp) = self.threads.remove(&tid) else { return };
        if clamp.set.is_some() {
            put_back(tid, &clamp.before, clamp.set);
            self.record.remove(tid);
        }
    }
}

impl Drop for Clamps {
    fn drop(&mut self) {
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        let set = self.threads.values().filter(|clamp| clamp.set.is_some()).count();
        tids.into_iter().for_each(|tid| self.release(tid));
        info!("put back the utilisation clamps of {set} vCPU threads");
    }
}

/// Puts a thread's clamp back as it was. A clamp other than `ours` is somebody else's by now and stays.
fn put_back(tid: i32, before: &Attr, ours: Option<u32>) -> bool {
    let Ok(now) = get(tid) else { return false };
    if ours.is_some_and(|ours| now.util_min != ours) {
        debug!("thread {tid}: its clamp has been changed by somebody else and stays");
        return false;
    }
    match set(tid, before, before.reset_min()) {
        Ok(()) => true,
        Err(error) => {
            warn!("thread {tid}: cannot put its utilisation clamp back: {error}");
            false
        }
    }
}

impl Mode for Clamps {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn figures(&self, _fleet: &Fleet) -> Figures {
        let clamps = self.threads.iter().filter_map(|(tid, clamp)| Some((*tid, clamp.set?))).collect();
        Figures { clamps, ..Figures::default() }
    }

    /// The kernel lets nobody change the scheduling of a thread that has more capabilities, whoever its owner is.
    fn needs(&self) -> CapabilitySet {
        CapabilitySet::SYS_NICE
    }

    fn fine(&mut self, fleet: &Fleet) -> Result<Option<Duration>, HostError> {
        fleet.publish_levels()?;
        let busy = self.look(fleet);
        Ok(Some(if busy { PERIOD } else { CALM }))
    }
}
