//! `entrain guest --status`: what is registered in this guest, and what the host publishes about each vCPU.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use entrain_channel::page::{HeaderValues, HostFastValues, HostSlowValues, Page, feature};
use entrain_channel::word::{Link, LinkState, Seed, TIME_SHIFT, VcpuState};
use serde::Serialize;

use crate::error::{GuestError, Result};
use crate::lock::Lock;
use crate::pages::Pages;
use crate::schedule::shown;

/// Time between two looks at the heartbeats: more than one beat of either side.
const LOOK_TWICE: Duration = Duration::from_millis(700);

/// The whole, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Version of this form.
    pub schema: u32,
    /// Process of the agent that runs.
    pub agent: Option<u32>,
    /// Whether the guest's heartbeat moved while it was watched.
    pub agent_beats: bool,
    /// In mode `schedule`: whether tasks run on the agent's scheduler; `false` while it stands by.
    pub schedules: Option<bool>,
    /// Identity of the registration, hexadecimal.
    pub cookie: String,
    /// Of the guest.
    pub features: Vec<&'static str>,
    /// `enum entrain_preempt_layout`.
    pub preempt_layout: u32,
    /// vCPUs that a host publishes for.
    pub paired: usize,
    /// By vCPU number.
    pub vcpus: Vec<VcpuStatus>,
}

/// One vCPU's page.
#[derive(Debug, Serialize)]
pub struct VcpuStatus {
    /// The guest's number of the CPU.
    pub vcpu: u32,
    /// KVM's vcpu_id, if known.
    pub hwid: Option<u32>,
    /// Guest-physical address of the page.
    pub gpa: u64,
    /// offered, paired, …; "foreign" for a word that no side of ours writes.
    pub link: &'static str,
    /// Of the offer.
    pub generation: u32,
    /// Whether the host's heartbeat moved while it was watched.
    pub host_beats: bool,
    /// What the host publishes; all 0 while none does.
    pub host: HostStatus,
}

/// What a host publishes.
#[derive(Debug, Serialize)]
pub struct HostStatus {
    /// Version of the channel that it speaks.
    pub version: u64,
    /// What it keeps current.
    pub features: Vec<&'static str>,
    /// Its clock at the last beat, ns.
    pub heartbeat_ns: u64,
    /// running, halted, preempted, unknown.
    pub state: &'static str,
    /// The pCPU that the vCPU is on or was on last.
    pub pcpu: u16,
    /// Changes of state, modulo 2^24.
    pub seq: u32,
    /// Was in a critical section when it was preempted.
    pub in_cs: bool,
    /// Would run at once if kicked.
    pub instant: bool,
    /// The host's clock at the last change of state, ns.
    pub since_ns: u64,
    /// Runnable but not running since pairing, ns.
    pub steal_ns: u64,
    /// Involuntary switch-outs since pairing.
    pub preemptions: u64,
    /// Those inside critical sections.
    pub preemptions_cs: u64,
    /// Yields and extensions granted.
    pub boosts: u64,
    /// Of the pCPU, 0..=1024.
    pub capacity: u64,
    /// Of the pCPU, 0..=1024.
    pub perf: u64,
    /// 1/1024 pCPU.
    pub entitlement: u64,
}

/// Looks twice at the pages, 0.7 s apart.
pub fn status(bpffs: &Path, run_folder: &Path) -> Result<Status> {
    let pages = Pages::open(bpffs, false)?.ok_or(GuestError::NothingRegistered)?;
    let beats = |page: &Page| (page.guest.heartbeat.load(Relaxed), page.host_slow.heartbeat.load(Relaxed));
    let before: Vec<_> = pages.iter().map(beats).collect();
    std::thread::sleep(LOOK_TWICE);
    let after: Vec<_> = pages.iter().map(beats).collect();
    let first = HeaderValues::load(&pages.page(0).header);
    let vcpus: Vec<_> =
        pages.iter().zip(before.iter().zip(&after)).map(|(page, (b, a))| vcpu_status(page, b.1 != a.1)).collect();
    let agent = Lock::holder(run_folder)?;
    Ok(Status {
        schema: 1,
        agent,
        agent_beats: before.iter().zip(&after).all(|(b, a)| b.0 != a.0),
        schedules: agent.and_then(|_| shown::attached(run_folder)),
        cookie: format!("{:016x}", first.cookie),
        features: feature_names(first.features),
        preempt_layout: first.preempt_layout,
        paired: vcpus.iter().filter(|vcpu| vcpu.link == "paired").count(),
        vcpus,
    })
}

fn vcpu_status(page: &Page, host_beats: bool) -> VcpuStatus {
    let header = HeaderValues::load(&page.header);
    let link = Link::from_raw(page.link.link.load(Relaxed));
    // A page without a seed has no host words: any seed reads 0 from them.
    let seed = Seed::from_raw(page.link.seed.load(Relaxed)).unwrap_or(Seed::from_random(1));
    VcpuStatus {
        vcpu: header.vcpu,
        hwid: (header.vcpu_hwid != u32::MAX).then_some(header.vcpu_hwid),
        gpa: header.gpa,
        link: link.map_or("foreign", |link| link_name(link.state)),
        generation: link.map_or(0, |link| link.generation),
        host_beats,
        host: host_status(seed, HostSlowValues::load(&page.host_slow), HostFastValues::load(&page.host_fast)),
    }
}

fn host_status(seed: Seed, slow: HostSlowValues, fast: HostFastValues) -> HostStatus {
    let value = |word| seed.unpack(word);
    let time = |word| value(word) << TIME_SHIFT;
    let state = VcpuState::unpack(value(fast.state));
    HostStatus {
        version: value(slow.version),
        features: feature_names(value(slow.features)),
        heartbeat_ns: time(slow.heartbeat),
        state: state.vcpu.name(),
        pcpu: state.pcpu,
        seq: state.seq,
        in_cs: state.in_cs,
        instant: value(fast.instant) & 1 != 0,
        since_ns: time(fast.since),
        steal_ns: time(fast.steal),
        preemptions: value(fast.preemptions),
        preemptions_cs: value(fast.preemptions_cs),
        boosts: value(fast.boosts),
        capacity: value(slow.capacity),
        perf: value(slow.perf),
        entitlement: value(slow.entitlement),
    }
}

fn link_name(state: LinkState) -> &'static str {
    match state {
        LinkState::None => "none",
        LinkState::Offered => "offered",
        LinkState::Paired => "paired",
        LinkState::Releasing => "releasing",
        LinkState::Released => "released",
        LinkState::Withdrawn => "withdrawn",
    }
}

/// Names of the features in a word.
fn feature_names(bits: u64) -> Vec<&'static str> {
    feature::NAMES.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect()
}

impl Status {
    /// The agent that runs, if it has offered no page yet.
    pub fn starting(&self) -> Option<u32> {
        self.agent.filter(|_| self.vcpus.iter().all(|vcpu| vcpu.link == link_name(LinkState::None)))
    }

    /// For people: a few lines and a table.
    pub fn text(&self) -> String {
        let mut text = match (self.agent, self.agent_beats) {
            (Some(pid), true) => format!("agent: process {pid}\n"),
            (Some(pid), false) => format!("agent: process {pid}, but its heartbeat stands still\n"),
            (None, _) => "agent: none runs; what it left behind is taken back by: entrain guest --release\n".to_owned(),
        };
        text += match self.schedules {
            Some(true) => "scheduler: works\n",
            Some(false) => "scheduler: stands by, since the host withholds nothing; the kernel's own works\n",
            None => "",
        };
        let _ = writeln!(
            text,
            "registration {}: {}; {} of {} vCPUs paired\n",
            self.cookie,
            self.features.join(" "),
            self.paired,
            self.vcpus.len()
        );
        text += "vCPU  link      host   state      pCPU  instant  steal ms  preempted  in CS  capacity  perf\n";
        for vcpu in &self.vcpus {
            let host = &vcpu.host;
            let _ = writeln!(
                text,
                "{:>4}  {:<9} {:<6} {:<10} {:>4}  {:<7}  {:>8}  {:>9}  {:>5}  {:>8}  {:>4}",
                vcpu.vcpu,
                vcpu.link,
                if vcpu.host_beats { "alive" } else { "silent" },
                host.state,
                host.pcpu,
                if host.instant { "yes" } else { "no" },
                host.steal_ns / 1_000_000,
                host.preemptions,
                host.preemptions_cs,
                host.capacity,
                host.perf
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use entrain_channel::word::Vcpu;

    use super::*;

    #[test]
    fn host_words_are_unpacked_and_strange_ones_read_as_nothing() {
        let page = Page::zeroed();
        let seed = Seed::from_random(0x1234_5678_9abc_def1);
        let state = VcpuState { vcpu: Vcpu::Preempted, in_cs: true, extended: false, pcpu: 3, seq: 9 };
        page.link.seed.store(seed.raw(), Relaxed);
        page.link.link.store(Link { generation: 7, state: LinkState::Paired }.raw(), Relaxed);
        page.host_fast.state.store(seed.pack(state.pack()), Relaxed);
        page.host_fast.steal.store(seed.pack(1_000), Relaxed);
        page.host_fast.boosts.store(12_345, Relaxed);
        let seen = vcpu_status(&page, true);
        assert_eq!((seen.link, seen.generation), ("paired", 7));
        assert_eq!((seen.host.state, seen.host.pcpu, seen.host.in_cs), ("preempted", 3, true));
        assert_eq!(seen.host.steal_ns, 1_024_000);
        assert_eq!(seen.host.boosts, 0, "not a word of this pairing");
    }

    #[test]
    fn an_agent_without_an_offer_is_starting() {
        let status = |agent, links: [LinkState; 2]| Status {
            schema: 1,
            agent,
            agent_beats: false,
            schedules: None,
            cookie: String::new(),
            features: Vec::new(),
            preempt_layout: 0,
            paired: 0,
            vcpus: links.map(|link| VcpuStatus { link: link_name(link), ..vcpu_status(&Page::zeroed(), false) }).into(),
        };
        assert_eq!(status(Some(7), [LinkState::None; 2]).starting(), Some(7));
        assert_eq!(status(Some(7), [LinkState::Offered, LinkState::None]).starting(), None);
        assert_eq!(status(None, [LinkState::None; 2]).starting(), None, "what a killed one left behind");
    }

    #[test]
    fn an_empty_page_can_be_shown() {
        let seen = vcpu_status(&Page::zeroed(), false);
        assert_eq!((seen.link, seen.host.state, seen.host.heartbeat_ns), ("none", "unknown", 0));
    }
}
