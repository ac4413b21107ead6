//! What each vCPU did at every moment of a recording, and who ran when it could not.

mod replay;
mod who;

use std::collections::HashMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::file::Recording;
use replay::{Replay, Track};
use who::Directory;
pub use who::{Sort, Who};

/// Raised when a field of the JSON changes its meaning or goes away; new fields do not raise it.
pub const SCHEMA: u32 = 1;
/// Waits listed in the report.
const WAITS: usize = 20;
/// Culprits listed for each vCPU, VM and the whole.
const CULPRITS: usize = 12;

/// What a vCPU can be doing, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// On a pCPU.
    Running,
    /// On a pCPU, where KVM polls for work of a guest that has halted.
    Polling,
    /// It spins and waits for a sibling: on a pCPU, or after it gave its pCPU away for that.
    Sibling,
    /// Runnable, but not on a pCPU.
    Ready,
    /// The same, and switched out inside a critical section of the guest's kernel: others may spin until it is back.
    Holder,
    /// Waits for an interrupt or for its VMM.
    Halted,
    /// The recording does not tell.
    Unknown,
}

impl State {
    /// All, in the order in which reports show them.
    pub const ALL: [Self; 7] =
        [Self::Running, Self::Polling, Self::Sibling, Self::Ready, Self::Holder, Self::Halted, Self::Unknown];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Polling => "halted, polling",
            Self::Sibling => "waiting on a sibling",
            Self::Ready => "ready",
            Self::Holder => "holder preempted",
            Self::Halted => "halted",
            Self::Unknown => "not known",
        }
    }

    /// For JSON and style sheets.
    pub fn key(self) -> &'static str {
        ["running", "polling", "sibling", "ready", "holder", "halted", "unknown"][self as usize]
    }
}

/// Time in each state, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [u64; 7]);

impl Times {
    /// Of one state.
    pub fn of(&self, state: State) -> u64 {
        self.0[state as usize]
    }

    /// Of all.
    pub fn total(&self) -> u64 {
        // Saturating, here and in other sums: a file that somebody made up may tell of any times.
        self.0.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// Share of one state in all, 0..=1.
    pub fn share(&self, state: State) -> f64 {
        self.of(state) as f64 / self.total().max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(State::ALL.len()))?;
        for state in State::ALL {
            map.serialize_entry(&format!("{}_ns", state.key()), &self.of(state))?;
        }
        map.end()
    }
}

/// A time in one state, ns since the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Begin.
    pub start: u64,
    /// End.
    pub end: u64,
    /// What it did.
    pub state: State,
}

/// Why a vCPU waited for a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It had halted and was woken.
    Woken,
    /// It was switched out while it ran.
    Preempted,
    /// The same, inside a critical section.
    Holder,
    /// It spun, and KVM gave its pCPU to another.
    GaveWay,
}

impl Reason {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Woken => "after its wake-up",
            Self::Preempted => "preempted",
            Self::Holder => "preempted in a critical section",
            Self::GaveWay => "gave way while it spun",
        }
    }
}

/// One wait for a pCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The VM.
    pub vm: String,
    /// The vCPU.
    pub vcpu: u32,
    /// Begin, ns since the begin of the recording.
    pub start_ns: u64,
    /// How long.
    pub ns: u64,
    /// Why.
    pub reason: Reason,
    /// The pCPU on whose queue it ended.
    pub pcpu: u16,
    /// Who ran there meanwhile and how long, ns; longest first.
    pub ran: Vec<(Who, u64)>,
}

/// Somebody who ran while vCPUs waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Who.
    pub who: Who,
    /// While a vCPU waited, in all.
    pub ns: u64,
    /// Of that, while the vCPU was inside a critical section.
    pub holder_ns: u64,
    /// Waits in which it ran.
    pub waits: u64,
}

/// Directed yields to one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Yields {
    /// To whom.
    pub to: Who,
    /// How many.
    pub count: u64,
    /// Of those, how many the scheduler honoured.
    pub honoured: u64,
}

/// One vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VcpuTime {
    /// KVM's vcpu_id.
    pub id: u32,
    /// Its thread.
    pub tid: u32,
    /// Where its time went.
    pub times: Times,
    /// Wake-ups.
    pub wakeups: u64,
    /// Switch-outs while it would have gone on; without those of [`Reason::GaveWay`].
    pub preemptions: u64,
    /// Of those, how often it is known whether it was inside a critical section.
    pub preemptions_known: u64,
    /// ... and how often it was.
    pub preemptions_cs: u64,
    /// Times it spun and gave way.
    pub gave_way: u64,
    /// Times KVM was called since it spun.
    pub spins: u64,
    /// Moves from one queue to another while it waited.
    pub migrations: u64,
    /// Its longest wait, ns.
    pub longest_wait_ns: u64,
    /// Whom it yielded to.
    pub yields: Vec<Yields>,
    /// Who ran while it waited.
    pub culprits: Vec<Culprit>,
    /// What it did, gapless from begin to end.
    #[serde(skip)]
    pub segments: Vec<Segment>,
    /// Its waits.
    #[serde(skip)]
    pub waits: Vec<Wait>,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmTime {
    /// For people.
    pub name: String,
    /// The VMM's process.
    pub pid: i32,
    /// Of all its vCPUs.
    pub times: Times,
    /// Who ran while they waited.
    pub culprits: Vec<Culprit>,
    /// The vCPUs.
    pub vcpus: Vec<VcpuTime>,
}

/// Who was on a pCPU, as far as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// The pCPU.
    pub cpu: u16,
    /// Begin, ns since the begin.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Who.
    pub who: Who,
}

/// Everything that a recording tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Analysis {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The host's kernel.
    pub kernel: String,
    /// Its architecture.
    pub arch: String,
    /// pCPUs.
    pub pcpus: u32,
    /// Wall clock of the begin, seconds since 1970.
    pub began_unix: u64,
    /// CLOCK_MONOTONIC at the begin of what is analysed, ns.
    #[serde(skip)]
    pub began_ns: u64,
    /// Length of what is analysed, ns.
    pub span_ns: u64,
    /// Critical sections of paired guests are known.
    pub daemon: bool,
    /// What the kernel could not tell.
    pub unseen: Vec<String>,
    /// The recording was ended in good order.
    pub complete: bool,
    /// Events in the file.
    pub events: u64,
    /// Events lost since the recorder could not follow.
    pub dropped: u64,
    /// Older events that were overwritten.
    pub overwritten: u64,
    /// Blocks of the file that cannot be read or are not there.
    pub damaged: u64,
    /// Names of threads that the file had no room for.
    pub unnamed: u64,
    /// The VMs that were recorded.
    pub vms: Vec<VmTime>,
    /// Who ran while vCPUs waited.
    pub culprits: Vec<Culprit>,
    /// The longest waits.
    pub longest_waits: Vec<Wait>,
    /// Who was where.
    #[serde(skip)]
    pub occupancy: Vec<Occupancy>,
}

impl Analysis {
    /// Works it out.
    pub fn of(recording: &Recording) -> Self {
        let host = &recording.host;
        let ends = (recording.events.first().map_or(0, |e| e.ns), recording.events.last().map_or(0, |e| e.ns));
        // What was overwritten is not known; then the recording begins with the oldest event that is left.
        let lost_begin = host.began_ns == 0 || host.overwritten > 0;
        let began = if lost_begin { ends.0 } else { host.began_ns };
        // While the programs are detached one by one, events are missing: what comes then does not count. An end that
        // the recorder did not write is that of the last event; one that it did may be long after that.
        let good_end = host.complete && host.ended_ns >= began;
        let ended = if good_end { host.ended_ns } else { ends.1.max(began) };
        let directory = Directory::new(recording);
        let mut replay = Replay::new(recording, began, ended);
        recording.events.iter().take_while(|event| event.ns <= ended).for_each(|event| replay.event(event));
        let (tracks, occupancy) = replay.finish();
        let mut tracks: HashMap<u32, Track> = tracks.into_iter().map(|track| (track.tid, track)).collect();
        let mut vms = Vec::new();
        for vm in recording.vms.iter().filter(|vm| vm.chosen) {
            let mut vcpus: Vec<VcpuTime> = vm
                .vcpus
                .iter()
                .filter_map(|(id, tid)| Some(vcpu(&vm.name, *id, tracks.remove(tid)?, &directory)))
                .collect();
            vcpus.sort_by_key(|vcpu| (vcpu.id, vcpu.tid));
            let mut times = Times::default();
            vcpus.iter().for_each(|vcpu| times.add(&vcpu.times));
            let culprits = sum(vcpus.iter().flat_map(|vcpu| &vcpu.culprits));
            vms.push(VmTime { name: vm.name.clone(), pid: vm.pid, times, culprits, vcpus });
        }
        let all = vms.iter().flat_map(|vm| &vm.vcpus).flat_map(|vcpu| &vcpu.waits);
        let mut longest: Vec<&Wait> = all.filter(|wait| wait.reason != Reason::GaveWay).collect();
        longest.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
        let longest_waits = longest.into_iter().take(WAITS).cloned().collect();
        // Who is not among the first of any vCPU may be among the first of all.
        let mut culprits = sum(vms.iter().flat_map(|vm| &vm.culprits));
        culprits.truncate(CULPRITS);
        for vm in &mut vms {
            vm.culprits.truncate(CULPRITS);
            vm.vcpus.iter_mut().for_each(|vcpu| vcpu.culprits.truncate(CULPRITS));
        }
        let who = |(cpu, start, end, tid)| Occupancy { cpu, start, end, who: directory.who(tid) };
        Self {
            schema: SCHEMA,
            kernel: host.kernel.clone(),
            arch: host.arch.clone(),
            pcpus: host.pcpus,
            began_unix: host.began_unix,
            began_ns: began,
            span_ns: ended.saturating_sub(began),
            daemon: host.daemon,
            unseen: host.unseen.clone(),
            complete: host.complete,
            events: recording.events.len() as u64,
            dropped: host.dropped,
            overwritten: host.overwritten,
            damaged: recording.missing.saturating_add(recording.damaged as u64),
            unnamed: host.unnamed,
            culprits,
            longest_waits,
            vms,
            occupancy: occupancy.into_iter().map(who).collect(),
        }
    }
}

fn vcpu(vm: &str, id: u32, track: Track, directory: &Directory<'_>) -> VcpuTime {
    let mut times = Times::default();
    for segment in &track.segments {
        times.0[segment.state as usize] += segment.end - segment.start;
    }
    let waits: Vec<Wait> = track
        .waits
        .iter()
        .map(|wait| Wait {
            vm: vm.to_owned(),
            vcpu: id,
            start_ns: wait.start,
            ns: wait.end - wait.start,
            reason: wait.reason,
            pcpu: wait.cpu,
            ran: directory.merge(&wait.ran),
        })
        .collect();
    let forced = || waits.iter().filter(|wait| wait.reason != Reason::GaveWay);
    let one = |wait: &Wait| {
        let holder = wait.reason == Reason::Holder;
        let culprit = |(who, ns): &(Who, u64)| Culprit {
            who: who.clone(),
            ns: *ns,
            holder_ns: if holder { *ns } else { 0 },
            waits: 1,
        };
        wait.ran.iter().map(culprit).collect::<Vec<_>>()
    };
    let culprits: Vec<Culprit> = forced().flat_map(one).collect();
    let mut yields: Vec<Yields> = track
        .yields
        .iter()
        .map(|(to, (count, honoured))| Yields { to: directory.who(*to), count: *count, honoured: *honoured })
        .collect();
    yields.sort_by_key(|yields| std::cmp::Reverse(yields.count));
    yields.truncate(CULPRITS);
    VcpuTime {
        id,
        tid: track.tid,
        times,
        wakeups: track.wakeups,
        preemptions: track.preemptions,
        preemptions_known: track.preemptions_known,
        preemptions_cs: track.preemptions_cs,
        gave_way: track.gave_way,
        spins: track.spins.len() as u64,
        migrations: track.migrations,
        longest_wait_ns: forced().map(|wait| wait.ns).max().unwrap_or(0),
        yields,
        culprits: sum(culprits.iter()),
        segments: track.segments,
        waits,
    }
}

/// One line for each culprit, most time first.
fn sum<'a>(culprits: impl Iterator<Item = &'a Culprit>) -> Vec<Culprit> {
    let mut all: HashMap<&Who, Culprit> = HashMap::new();
    for culprit in culprits {
        let zero = || Culprit { who: culprit.who.clone(), ns: 0, holder_ns: 0, waits: 0 };
        let sum = all.entry(&culprit.who).or_insert_with(zero);
        sum.ns = sum.ns.saturating_add(culprit.ns);
        sum.holder_ns = sum.holder_ns.saturating_add(culprit.holder_ns);
        sum.waits += culprit.waits;
    }
    let mut all: Vec<Culprit> = all.into_values().collect();
    all.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.who.cmp(&b.who)));
    all
}

#[cfg(test)]
pub(crate) mod tests;
