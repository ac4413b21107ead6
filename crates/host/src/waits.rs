//! Who runs while vCPUs wait: kept only while somebody asks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::interface::WaitedFor;
use crate::programs::Programs;
use crate::status::{WaitCause, WaitStatus};

/// It is kept for so long after the last request.
const KEPT: Duration = Duration::from_secs(5);
/// Entries told for each vCPU, those with the most time.
const PER_VCPU: usize = 24;

/// Whether it is kept, and until when.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    until: Option<Instant>,
}

impl Waits {
    /// Somebody asks: begins the keeping, or goes on.
    pub(crate) fn ask(&mut self, programs: &mut Programs) {
        if self.until.replace(Instant::now() + KEPT).is_none() {
            programs.watch_waits(true);
        }
    }

    /// Ends the keeping when nobody has asked for long.
    pub(crate) fn expire(&mut self, programs: &mut Programs) {
        if self.until.take_if(|until| *until <= Instant::now()).is_some() {
            programs.watch_waits(false);
        }
    }

    /// What is known; nothing when nobody asks.
    pub(crate) fn status(&self, fleet: &Fleet) -> Vec<WaitStatus> {
        if self.until.is_none() {
            return Vec::new();
        }
        let vcpus: HashMap<u32, i32> =
            fleet.vms.values().flat_map(|vm| vm.vcpus.values()).map(|vcpu| (vcpu.index, vcpu.tid)).collect();
        let mut names: HashMap<i32, String> = fleet
            .vms
            .values()
            .flat_map(|vm| vm.vcpus.iter().map(|(id, vcpu)| (vcpu.tid, format!("{} vCPU {id}", vm.name))))
            .collect();
        names.extend(fleet.vms.values().map(|vm| (vm.found.tgid, format!("VMM of {}", vm.name))));
        names.insert(0, "nobody: the pCPU was idle".into());
        let mut all: Vec<WaitStatus> = fleet
            .programs
            .waits()
            .into_iter()
            .filter_map(|(key, wait)| {
                let comm = wait.comm.split(|byte| *byte == 0).next().unwrap_or_default();
                let comm: String =
                    String::from_utf8_lossy(comm).chars().filter(|c| entrain_system::is_plain(*c)).collect();
                Some(WaitStatus {
                    tid: *vcpus.get(&key.index)?,
                    who: key.who,
                    name: names.get(&key.who).cloned().unwrap_or_else(|| format!("{comm} ({})", key.who)),
                    cause: cause(key.cause),
                    ns: wait.ns,
                    waits: wait.waits,
                })
            })
            .collect();
        all.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
        let mut told: HashMap<i32, usize> = HashMap::new();
        all.retain(|wait| {
            let count = told.entry(wait.tid).or_default();
            *count += 1;
            *count <= PER_VCPU
        });
        all
    }
}

fn cause(why: WaitedFor) -> WaitCause {
    match why {
        WaitedFor::ENTRAIN_WAIT_PREEMPTED => WaitCause::Preempted,
        WaitedFor::ENTRAIN_WAIT_CRITICAL => WaitCause::Critical,
        WaitedFor::ENTRAIN_WAIT_GAVE_WAY => WaitCause::GaveWay,
        _ => WaitCause::Woken,
    }
}
