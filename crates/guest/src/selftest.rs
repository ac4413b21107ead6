//! The guest's side of the channel's self-test (experiment `channel`): BPF on one vCPU hammers the page of that vCPU, at
//! known levels of preempt_disable, while the host's BPF answers; afterwards nothing may be missing.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use entrain_channel::page::{Page, feature};
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::affinity;
use crate::agent::Companion;
use crate::error::{GuestError, Result};
use crate::pages::{Pages, paired_seed};
use crate::program;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/selftest.skel.rs"));
}
use skeleton::types::entrain_hammer as Hammer;
use skeleton::{SelftestSkel, SelftestSkelBuilder};

/// Additions of one call of the program: some milliseconds, so that preemption stays off for no longer.
const LOOPS: u32 = 20_000;
/// How long one beat hammers; the agent's heartbeat goes on in between.
const BURST: Duration = Duration::from_millis(400);

/// What came out, as printed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Whether a host took part.
    pub host: bool,
    /// Seconds of hammering.
    pub seconds: f64,
    /// Seconds from the start of the agent to the host's release of the pages.
    pub agent_seconds: f64,
    /// Round trips from guest to host and back.
    pub round_trips: u64,
    /// The shared word at the end.
    pub shared: u64,
    /// The guest's additions to it.
    pub guest_added: u64,
    /// The host's additions to it.
    pub host_added: u64,
    /// What is missing in it.
    pub lost: i64,
    /// Preempt counts that the host read while the guest's levels were known.
    pub samples: u64,
    /// Those that were exactly right.
    pub matches: u64,
}

/// Runs the self-test for some time once a host that takes part has paired, then ends the agent.
pub struct Selftest {
    vcpu: u32,
    time: Duration,
    /// When the agent was started.
    born: Instant,
    /// Without a host for so long, the test ends.
    patience: Duration,
    storage: Box<MaybeUninit<OpenObject>>,
    started: Option<Instant>,
    level: u32,
    outcome: Outcome,
}

impl Selftest {
    /// For `time` on `vcpu`; gives up after `patience` without a host.
    pub fn new(vcpu: u32, time: Duration, patience: Duration) -> Self {
        Self {
            vcpu,
            time,
            born: Instant::now(),
            patience,
            storage: Box::new(MaybeUninit::uninit()),
            started: None,
            level: 0,
            outcome: Outcome::default(),
        }
    }

    /// What came out; complete once the agent has ended.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn hammer(&mut self, pages: &Pages) -> Result<()> {
        let loading = "the BPF program of the self-test could not be loaded";
        let mut open = SelftestSkelBuilder::default().open(&mut self.storage).map_err(GuestError::bpf(loading))?;
        open.maps.entrain_pages.reuse_fd(pages.fd().as_fd()).map_err(GuestError::bpf(loading))?;
        let skel: SelftestSkel<'_> = open.load().map_err(GuestError::bpf(loading))?;
        let before = sched_getaffinity(None).map_err(GuestError::system("sched_getaffinity"))?;
        affinity::bind(self.vcpu as usize).map_err(GuestError::system("the self-test's vCPU is not there"))?;
        let end = Instant::now() + BURST;
        while Instant::now() < end {
            // Levels 0 to 4 in turn.
            let ask = Hammer { vcpu: self.vcpu, levels: self.level, loops: LOOPS, ..Hammer::default() };
            let seen = program::run(&skel.progs.hammer, ask)?;
            if seen.error != 0 {
                return Err(GuestError::SelfCheck(format!("the hammer failed: {}", seen.error)));
            }
            self.outcome.round_trips += seen.trips;
            self.level = (self.level + 1) % 5;
        }
        sched_setaffinity(None, &before).map_err(GuestError::system("sched_setaffinity"))
    }
}

impl Companion for Selftest {
    fn features(&self) -> u64 {
        feature::SELFTEST
    }

    fn beat(&mut self, pages: &Pages) -> Result<bool> {
        let page = pages.page(self.vcpu as usize % pages.count());
        if !host_takes_part(page) {
            return Ok(self.started.is_some() || self.born.elapsed() > self.patience);
        }
        let started = *self.started.get_or_insert_with(Instant::now);
        if started.elapsed() >= self.time {
            return Ok(true);
        }
        self.outcome.host = true;
        self.hammer(pages)?;
        self.outcome.seconds = started.elapsed().as_secs_f64();
        Ok(false)
    }

    /// The host adds nothing any more, and neither do we: now the sums must agree.
    fn after(&mut self, pages: &Pages) {
        let page = pages.page(self.vcpu as usize % pages.count());
        let outcome = &mut self.outcome;
        outcome.agent_seconds = self.born.elapsed().as_secs_f64();
        outcome.shared = page.selftest.shared.load(Relaxed);
        outcome.guest_added = page.selftest_guest.added.load(Relaxed);
        outcome.host_added = page.selftest_host.added.load(Relaxed);
        outcome.lost = outcome.guest_added.wrapping_add(outcome.host_added).wrapping_sub(outcome.shared) as i64;
        outcome.samples = page.selftest_host.samples.load(Relaxed);
        outcome.matches = page.selftest_host.matches.load(Relaxed);
    }
}

fn host_takes_part(page: &Page) -> bool {
    paired_seed(page).is_some_and(|seed| seed.unpack(page.host_slow.features.load(Relaxed)) & feature::SELFTEST != 0)
}
