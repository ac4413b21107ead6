//! One VM that the daemon knows.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use crate::cgroup::Group;
use crate::channel::Channel;
use crate::discover::FoundVm;
use crate::pair::Paired;
use crate::scan::Scan;

/// What a guest has registered: the pages of one cookie.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// Guest-physical address of each page, by the guest's number of the vCPU.
    pub(crate) pages: Vec<u64>,
    /// The page of vCPU 0, as verified.
    pub(crate) first: entrain_channel::validate::ValidatedHeader,
}

/// A vCPU that is watched.
#[derive(Debug)]
pub(crate) struct Vcpu {
    /// Its entry in BPF's tables.
    pub(crate) index: u32,
    pub(crate) tid: i32,
    pub(crate) kvm_vcpu: u64,
    pub(crate) paired: Option<Paired>,
}

/// A VM that is watched.
#[derive(Debug)]
pub(crate) struct Vm {
    /// Its entry in BPF's tables.
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) found: FoundVm,
    /// By KVM's vcpu_id.
    pub(crate) vcpus: BTreeMap<u32, Vcpu>,
    pub(crate) scan: Scan,
    pub(crate) registration: Option<Registration>,
    pub(crate) channel: Channel,
    /// The agent's heartbeat and when it last changed.
    pub(crate) beat: (u64, Instant),
    /// Switches of its vCPUs at that time.
    pub(crate) ran: u64,
    pub(crate) entitlement: u32,
    /// Its cgroup.
    pub(crate) group: Group,
    /// By the configuration.
    pub(crate) class: Option<String>,
    said: HashSet<String>,
}

impl Vm {
    pub(crate) fn new(number: u32, name: String, found: FoundVm) -> Self {
        Self {
            number,
            name,
            found,
            vcpus: BTreeMap::new(),
            scan: Scan::new(),
            registration: None,
            channel: Channel::Silent,
            beat: (0, Instant::now()),
            ran: 0,
            entitlement: 0,
            group: Group::default(),
            class: None,
            said: HashSet::new(),
        }
    }

    /// True the first time that this is to be said of this VM.
    pub(crate) fn first_time(&mut self, text: &str) -> bool {
        // A guest that makes up ever new mistakes fills neither the log nor the memory.
        self.said.len() < 32 && self.said.insert(text.to_owned())
    }

    /// Its pages are given up: the search begins anew, where the first of them was.
    pub(crate) fn start_over(&mut self, channel: Channel) {
        self.channel = channel;
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
    fn a_fact_is_said_once() {
        let mut vm = Vm::new(0, "vm".into(), FoundVm::default());
        assert!(vm.first_time("its RAM is private"));
        assert!(!vm.first_time("its RAM is private"));
        let new = (0..100).filter(|i| vm.first_time(&i.to_string())).count();
        assert_eq!(new, 31);
    }
}
