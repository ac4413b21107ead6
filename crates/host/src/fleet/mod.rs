//! All VMs of this host: who is there, and the pairing of each.
//!
//! `follow` keeps the table as discovery finds the VMs, `search` looks for their agents and pairs, `let_go` ends pairings,
//! `remembered` keeps for the next daemon where their pages are, `shares` tells each VM what it can have of the pCPUs,
//! `standstill` compares what is counted with what the kernel counts.

mod follow;
mod let_go;
mod numbers;
mod remembered;
mod search;
mod shares;
mod standstill;
mod turns;

pub(crate) use standstill::Ran;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use entrain_bpf::Error;
use entrain_system::Root;

use crate::allowance::Allowance;
use crate::entitlement::Shares;
use crate::entitlement::others::Others;
use crate::eyes::Eyes;
use crate::groups::Groups;
use crate::interface::{HOST_VCPUS, HOST_VMS};
use crate::programs::Programs;
use crate::vm::Vm;
use numbers::Numbers;
pub(crate) use remembered::Remembered;
pub(crate) use search::Search;
use turns::Turns;

/// All looking, verifying and pairing takes one part in so many of a CPU: 3 %.
const SEARCH_PART: u32 = 33;
/// And what can be saved up of that: the first pass over 16 GiB.
const SEARCH_SAVED: Duration = Duration::from_millis(1600);

/// All VMs.
pub(crate) struct Fleet {
    pub(crate) programs: Programs,
    pub(crate) root: Root,
    /// By the address of the kernel's struct kvm.
    pub(crate) vms: BTreeMap<u64, Vm>,
    vcpu_numbers: Numbers,
    vm_numbers: Numbers,
    full: bool,
    shares: Shares,
    others: Others,
    search: Search,
    remembered: Remembered,
    groups: Groups,
    turns: Turns,
    allowance: Allowance,
    eyes: Eyes,
    /// How many vCPUs' counts have been compared with the kernel's in this round.
    compared: usize,
    told_standstill: bool,
}

impl Fleet {
    /// No VMs yet, under the kernel's own scheduler.
    pub(crate) fn new(programs: Programs, root: Root, search: Search, remembered: Remembered) -> Self {
        Self {
            programs,
            root,
            vms: BTreeMap::new(),
            vcpu_numbers: Numbers::new(HOST_VCPUS),
            vm_numbers: Numbers::new(HOST_VMS),
            full: false,
            shares: Shares::new(Instant::now(), false),
            others: Others::new(),
            search,
            remembered,
            groups: Groups::default(),
            turns: Turns::default(),
            allowance: Allowance::new(Instant::now(), SEARCH_PART, SEARCH_SAVED),
            eyes: Eyes::default(),
            compared: 0,
            told_standstill: false,
        }
    }

    /// The host's scheduler has changed: it is Entrain's now (`schedules`), or the kernel's own.
    pub(crate) fn set_scheduler(&mut self, schedules: bool) {
        self.programs.tell_schedules(schedules);
        self.shares.set_by_group(schedules);
    }

    /// Entries of vCPUs in BPF's table that may be in use: the highest used number + 1.
    pub(crate) fn entries(&self) -> u32 {
        self.vcpu_numbers.end()
    }

    /// The host's side of the self-test, for so long.
    pub(crate) fn selftest(&self, time: Duration) -> Result<(), Error> {
        self.programs.selftest(self.entries(), time)
    }

    /// Publishes the pCPUs' levels now; a pairing that is found to have ended is let go of after the next heartbeat.
    pub(crate) fn publish_levels(&self) -> Result<(), Error> {
        if self.vms.values().any(|vm| vm.paired() > 0) {
            self.programs.tick(self.entries())?;
        }
        Ok(())
    }
}
