//! One VM that the daemon knows.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

use entrain_system::CpuSet;

use crate::cgroup::Group;
use crate::channel::Channel;
use crate::classes::Publish;
use crate::discover::FoundVm;
use crate::fleet::Ran;
use crate::identity::Identity;
use crate::pair::Paired;
use crate::rivals::{Refused, Rival};
use crate::scan::Scan;
use crate::silence::Silence;

/// Says something about a VM, by one of `tracing`'s levels: for people with its name before it, for the journal with its
/// name and UUID as fields. What is said of one user's VMs is bounded ([`crate::said`]), but for `debug`.
macro_rules! about {
    (debug, $vm:expr, $($text:tt)+) => { crate::vm::about!(@ debug, $vm, $($text)+) };
    (@ $level:ident, $vm:expr, $($text:tt)+) => {
        tracing::$level!(
            vm = $vm.name(),
            uuid = $vm.identity.uuid.as_deref(),
            "{}: {}",
            $vm.name(),
            format_args!($($text)+)
        )
    };
    ($level:ident, $vm:expr, $($text:tt)+) => {
        if crate::said::may($vm.found.user, $vm.number) {
            crate::vm::about!(@ $level, $vm, $($text)+);
        }
    };
}
pub(crate) use about;

/// Offers that wait to be considered. An honest guest has one; rings and finds beyond these are dropped, and an honest guest
/// rings again.
const OFFERS: usize = 12;

/// The vCPU whose page speaks for its guest as a whole, by KVM's vcpu_id.
pub(crate) const SPEAKER: u32 = 0;

/// What a guest has registered: the pages of one cookie.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// Guest-physical address of each page, by the guest's number of the vCPU.
    pub(crate) pages: Vec<u64>,
    /// The page of vCPU 0, as verified.
    pub(crate) first: entrain_channel::validate::ValidatedHeader,
    /// Which page the next look begins with.
    pub(crate) next: usize,
    /// When it was made, ns of the host's monotonic clock: times in its pages count from there.
    pub(crate) epoch: u64,
}

/// A vCPU that is watched.
#[derive(Debug)]
pub(crate) struct Vcpu {
    /// Its entry in BPF's tables.
    pub(crate) index: u32,
    pub(crate) tid: i32,
    pub(crate) kvm_vcpu: u64,
    pub(crate) paired: Option<Paired>,
    /// What it had run when that was compared last.
    pub(crate) ran: Option<Ran>,
}

/// A VM that is watched.
#[derive(Debug)]
pub(crate) struct Vm {
    /// Its entry in BPF's tables.
    pub(crate) number: u32,
    /// Who it is; its name is [`Vm::name`].
    pub(crate) identity: Identity,
    /// What it is called where no other VM of this host may be called the same.
    pub(crate) key: String,
    pub(crate) found: FoundVm,
    /// By KVM's vcpu_id.
    pub(crate) vcpus: BTreeMap<u32, Vcpu>,
    pub(crate) scan: Scan,
    /// Guest-physical addresses of pages that may be the first of a registration; [`OFFERS`] at most.
    pub(crate) offers: VecDeque<u64>,
    pub(crate) registration: Option<Registration>,
    /// What is registered and not paired is to be looked at again.
    pub(crate) look: bool,
    pub(crate) channel: Channel,
    /// Of its agent.
    pub(crate) silence: Silence,
    pub(crate) entitlement: u32,
    /// Its cgroup.
    pub(crate) group: Group,
    /// pCPUs that one or another of its vCPUs may use; `None`: not known.
    pub(crate) cpus: Option<CpuSet>,
    /// By the configuration.
    pub(crate) class: Option<String>,
    /// What its class lets its guest be told.
    pub(crate) publish: Publish,
    /// Another registration than the one that is there, while it is not clear whose agent lives.
    pub(crate) rival: Option<Rival>,
    /// Its registration has lost its place: its pages are to be let go of.
    pub(crate) replaced: bool,
    /// Two registrations contend for it: neither is paired before this.
    pub(crate) refused: Option<Refused>,
    said: HashSet<String>,
}

impl Vm {
    pub(crate) fn new(number: u32, identity: Identity, key: String, found: FoundVm) -> Self {
        Self {
            number,
            identity,
            key,
            found,
            vcpus: BTreeMap::new(),
            scan: Scan::new(),
            offers: VecDeque::new(),
            registration: None,
            look: false,
            channel: Channel::Silent,
            silence: Silence::new(Instant::now()),
            entitlement: 0,
            group: Group::default(),
            cpus: None,
            class: None,
            publish: Publish::All,
            rival: None,
            replaced: false,
            refused: None,
            said: HashSet::new(),
        }
    }

    /// For people.
    pub(crate) fn name(&self) -> &str {
        &self.identity.name
    }

    /// True the first time that this is to be said of this VM.
    pub(crate) fn first_time(&mut self, text: &str) -> bool {
        // A guest that makes up ever new mistakes fills neither the log nor the memory.
        self.said.len() < 32 && self.said.insert(text.to_owned())
    }

    /// A page at `gpa` may be the first of a registration.
    pub(crate) fn offer(&mut self, gpa: u64) {
        if self.offers.len() < OFFERS && !self.offers.contains(&gpa) {
            self.offers.push_back(gpa);
        }
    }

    /// Its pages are given up: the search begins anew, where the first of them was.
    pub(crate) fn start_over(&mut self, channel: Channel) {
        self.channel = channel;
        if let Some(rival) = self.rival.take() {
            self.offer(rival.gpa);
        }
        self.scan.restart(self.registration.take().and_then(|was| was.pages.first().copied()));
    }

    /// vCPUs that are paired.
    pub(crate) fn paired(&self) -> usize {
        self.vcpus.values().filter(|vcpu| vcpu.paired.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_beyond_what_is_kept_are_dropped() {
        let mut vm = Vm::new(0, Identity::unknown(7), "pid 7".into(), FoundVm::default());
        (0..1000).for_each(|page| vm.offer(page % 500));
        assert_eq!(vm.offers, (0..OFFERS as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_fact_is_said_once() {
        let mut vm = Vm::new(0, Identity::unknown(7), "pid 7".into(), FoundVm::default());
        assert!(vm.first_time("its RAM is private"));
        assert!(!vm.first_time("its RAM is private"));
        let new = (0..100).filter(|i| vm.first_time(&i.to_string())).count();
        assert_eq!(new, 31);
    }
}
