//! Who runs while vCPUs wait: kept only while somebody asks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::culprits::{Culprit, Culprits, Sum, WaitedFor, program};
use crate::fleet::Fleet;
use crate::interface::WaitedFor as Why;
use crate::programs::Programs;
use crate::status::{WaitCause, WaitStatus};

/// It is kept for so long after the last request.
const KEPT: Duration = Duration::from_secs(5);
/// And after the last scrape of the metrics: a scrape comes every 15 s to 2 min, and Prometheus takes what is older than
/// this for gone.
const KEPT_FOR_METRICS: Duration = Duration::from_secs(300);
/// BPF's sums are taken in this often, before there is no room for more of them; and not more often, since that takes two
/// system calls for each of up to 8192.
const LOOK: Duration = Duration::from_secs(5);
/// Entries told for each vCPU, those with the most time.
const PER_VCPU: usize = 24;

/// Whether it is kept, and until when.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    until: Option<Instant>,
    culprits: Culprits,
    /// When BPF's sums were taken in last.
    looked: Option<Instant>,
}

impl Waits {
    /// Somebody asks: begins the keeping, or goes on. `metrics`: a scrape, after which it is kept for longer.
    pub(crate) fn ask(&mut self, programs: &mut Programs, metrics: bool) {
        let until = Instant::now() + if metrics { KEPT_FOR_METRICS } else { KEPT };
        if self.until.replace(self.until.map_or(until, |now| now.max(until))).is_none() {
            programs.watch_waits(true);
        }
    }

    /// Ends the keeping when nobody has asked for long.
    pub(crate) fn expire(&mut self, programs: &mut Programs) {
        if self.until.take_if(|until| *until <= Instant::now()).is_some() {
            programs.watch_waits(false);
        }
    }

    /// Takes in what BPF has summed, if that is due.
    pub(crate) fn learn(&mut self, fleet: &Fleet) {
        if self.until.is_none() || self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        self.culprits.keep(|key| fleet.vms.values().any(|vm| vm.key == key));
        self.culprits.learn(sums(fleet));
    }

    /// For whom the VM with this key waited, since it is counted.
    pub(crate) fn culprits(&self, vm: &str) -> Vec<WaitedFor> {
        self.culprits.of(vm)
    }

    /// What is known.
    pub(crate) fn status(fleet: &Fleet) -> Vec<WaitStatus> {
        let vcpus: HashMap<u32, i32> =
            fleet.vms.values().flat_map(|vm| vm.vcpus.values()).map(|vcpu| (vcpu.index, vcpu.tid)).collect();
        let mut names: HashMap<i32, String> = fleet
            .vms
            .values()
            .flat_map(|vm| vm.vcpus.iter().map(|(id, vcpu)| (vcpu.tid, format!("{} vCPU {id}", vm.name()))))
            .collect();
        names.extend(fleet.vms.values().map(|vm| (vm.found.tgid, format!("VMM of {}", vm.name()))));
        names.insert(0, "nobody: the pCPU was idle".into());
        let mut all: Vec<WaitStatus> = fleet
            .programs
            .waits()
            .into_iter()
            .filter_map(|(key, wait)| {
                Some(WaitStatus {
                    tid: *vcpus.get(&key.index)?,
                    who: key.who,
                    name: names.get(&key.who).cloned().unwrap_or_else(|| format!("{} ({})", comm(&wait.comm), key.who)),
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

/// BPF's sums with the names of VMs and programs.
fn sums(fleet: &Fleet) -> Vec<Sum> {
    let vms = || fleet.vms.values();
    let vcpus: HashMap<u32, (i32, &str)> =
        vms().flat_map(|vm| vm.vcpus.values().map(|vcpu| (vcpu.index, (vcpu.tid, vm.key.as_str())))).collect();
    // A VM's vCPUs and its VMM's other threads are the VM.
    let of_vms: HashMap<i32, Culprit> = vms()
        .flat_map(|vm| {
            let culprit = Culprit { name: vm.name().to_owned(), vm: vm.key.clone() };
            let threads = vm.vcpus.values().map(|vcpu| vcpu.tid).chain([vm.found.tgid]);
            threads.map(move |thread| (thread, culprit.clone()))
        })
        .collect();
    let culprit = |who: i32, name: &[u8]| match of_vms.get(&who) {
        Some(vm) => vm.clone(),
        None if who == 0 => Culprit { name: "idle".to_owned(), vm: String::new() },
        None => Culprit { name: program(&comm(name)).to_owned(), vm: String::new() },
    };
    let waits = fleet.programs.waits().into_iter();
    let all = waits.filter_map(|(key, wait)| {
        let (tid, vm) = vcpus.get(&key.index)?;
        let (cause, culprit) = (cause(key.cause), culprit(key.who, &wait.comm));
        Some(Sum { key: (key.index, key.who, cause), tid: *tid, vm: (*vm).to_owned(), culprit, ns: wait.ns })
    });
    all.collect()
}

/// A task's name, as it may be shown.
fn comm(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).chars().filter(|c| entrain_system::is_plain(*c)).collect()
}

fn cause(why: Why) -> WaitCause {
    match why {
        Why::ENTRAIN_WAIT_PREEMPTED => WaitCause::Preempted,
        Why::ENTRAIN_WAIT_CRITICAL => WaitCause::Critical,
        Why::ENTRAIN_WAIT_GAVE_WAY => WaitCause::GaveWay,
        _ => WaitCause::Woken,
    }
}
