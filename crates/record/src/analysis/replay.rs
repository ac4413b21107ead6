//! Goes through the events in their order and keeps what each vCPU is doing.

use std::collections::{BTreeMap, HashMap};

use super::{Reason, Segment, State};
use crate::event::{Event, Kind, flag};
use crate::file::Recording;

/// Two calls for help within this time, and the vCPU has been spinning in between.
const SPIN_GAP_NS: u64 = 1_000_000;

/// A wait whose end has not come yet, or has.
#[derive(Debug)]
pub(super) struct OpenWait {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) reason: Reason,
    pub(super) cpu: u16,
    /// Who ran on the pCPU, and how long.
    pub(super) ran: Vec<(u32, u64)>,
    /// Who runs there now, since when.
    runs: Option<(u32, u64)>,
}

impl OpenWait {
    fn new(start: u64, reason: Reason, cpu: u16, runs: Option<u32>) -> Self {
        Self { start, end: start, reason, cpu, ran: Vec::new(), runs: runs.map(|tid| (tid, start)) }
    }

    /// Charges whoever has run until now; from now on it is `next`.
    fn change(&mut self, now: u64, next: Option<u32>) {
        if let Some((tid, since)) = self.runs {
            let ns = now.saturating_sub(since);
            match self.ran.iter_mut().find(|(known, _)| *known == tid) {
                Some((_, sum)) => *sum += ns,
                // The vCPU itself, when it comes.
                None if ns == 0 => {}
                None => self.ran.push((tid, ns)),
            }
        }
        self.runs = next.map(|tid| (tid, now));
    }
}

/// One vCPU.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) tid: u32,
    state: State,
    since: u64,
    /// No event of its own has come yet.
    fresh: bool,
    began_runnable: Option<bool>,
    wait: Option<OpenWait>,
    halts: Vec<(u64, u64)>,
    pub(super) segments: Vec<Segment>,
    pub(super) waits: Vec<OpenWait>,
    pub(super) spins: Vec<u64>,
    pub(super) yields: BTreeMap<u32, (u64, u64)>,
    pub(super) wakeups: u64,
    pub(super) preemptions: u64,
    pub(super) preemptions_known: u64,
    pub(super) preemptions_cs: u64,
    pub(super) gave_way: u64,
    pub(super) migrations: u64,
}

impl Track {
    fn new(tid: u32) -> Self {
        Self {
            tid,
            state: State::Unknown,
            since: 0,
            fresh: true,
            began_runnable: None,
            wait: None,
            halts: Vec::new(),
            segments: Vec::new(),
            waits: Vec::new(),
            spins: Vec::new(),
            yields: BTreeMap::new(),
            wakeups: 0,
            preemptions: 0,
            preemptions_known: 0,
            preemptions_cs: 0,
            gave_way: 0,
            migrations: 0,
        }
    }

    /// Drops what has been counted, but not what the vCPU is doing.
    fn forget(&mut self) {
        let (state, since, fresh) = (self.state, self.since, self.fresh);
        let (began_runnable, wait) = (self.began_runnable, self.wait.take());
        *self = Self { state, since, fresh, began_runnable, wait, ..Self::new(self.tid) };
    }

    /// Ends the present state, which must have been `was`: else events are missing, and it is not known.
    fn enter(&mut self, now: u64, was: State, next: State) {
        let true_state = if self.fresh || self.state == was { was } else { State::Unknown };
        // All ways of waiting are left by the same event.
        let waits = |state| matches!(state, State::Ready | State::Holder | State::Sibling);
        let true_state = if !self.fresh && waits(was) && waits(self.state) { self.state } else { true_state };
        self.fresh = false;
        self.push(now, true_state);
        self.state = next;
    }

    /// What it did when the recorder met it: of the time before, in which it may not have existed, nothing is known.
    fn met(&mut self, now: u64, runnable: bool) {
        if self.fresh {
            self.push(now, State::Unknown);
        }
        self.began_runnable = Some(runnable);
    }

    fn push(&mut self, now: u64, state: State) {
        if now > self.since {
            self.segments.push(Segment { start: self.since, end: now, state });
        }
        self.since = now.max(self.since);
    }

    fn end_wait(&mut self, now: u64) {
        if let Some(mut wait) = self.wait.take() {
            wait.change(now, None);
            wait.end = now;
            self.waits.push(wait);
        }
    }

    fn finish(&mut self, end: u64) {
        self.end_wait(end);
        let state = match (self.fresh, self.began_runnable) {
            (false, _) => self.state,
            // It has done the same all the time; one that waits for that long would have been switched.
            (true, Some(true)) => State::Running,
            (true, Some(false)) => State::Halted,
            (true, None) => State::Unknown,
        };
        self.push(end, state);
        let polls = std::mem::take(&mut self.halts);
        let spins: Vec<(u64, u64)> = self
            .spins
            .windows(2)
            .filter(|pair| pair[1] - pair[0] <= SPIN_GAP_NS)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        self.segments = relabel(std::mem::take(&mut self.segments), &polls, State::Polling);
        self.segments = relabel(std::mem::take(&mut self.segments), &spins, State::Sibling);
    }
}

/// Gives the parts of running segments that lie in one of `spans` another state. Both are in order and disjoint.
fn relabel(segments: Vec<Segment>, spans: &[(u64, u64)], state: State) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::with_capacity(segments.len());
    let mut push = |start: u64, end: u64, state: State| match out.last_mut() {
        Some(last) if last.state == state && last.end == start => last.end = end,
        _ if end > start => out.push(Segment { start, end, state }),
        _ => {}
    };
    let mut next = 0;
    for segment in segments {
        let mut at = segment.start;
        if segment.state == State::Running {
            while next < spans.len() && spans[next].1 <= segment.start {
                next += 1;
            }
            for (start, end) in spans[next..].iter().take_while(|(start, _)| *start < segment.end) {
                let (start, end) = ((*start).max(at), (*end).min(segment.end));
                push(at, start, segment.state);
                push(start, end.max(start), state);
                at = end.max(start);
            }
        }
        push(at, segment.end, segment.state);
    }
    out
}

/// Who was on a pCPU: pCPU, begin, end, thread.
pub(super) type Stay = (u16, u64, u64, u32);

/// All vCPUs, while the events pass by.
pub(super) struct Replay {
    began: u64,
    ended: u64,
    /// No event of the recording's own time has come yet.
    early: bool,
    tracks: Vec<Track>,
    by_tid: HashMap<u32, usize>,
    /// vCPUs that queue on a pCPU.
    queues: HashMap<u16, Vec<usize>>,
    /// Who runs on a pCPU since when; only while switches there are recorded.
    runs: HashMap<u16, (u32, u64)>,
    stays: Vec<Stay>,
}

impl Replay {
    pub(super) fn new(recording: &Recording, began: u64, ended: u64) -> Self {
        let tids = recording.vms.iter().filter(|vm| vm.chosen).flat_map(|vm| &vm.vcpus).map(|(_, tid)| *tid);
        let mut by_tid = HashMap::new();
        let mut tracks = Vec::new();
        for tid in tids {
            by_tid.entry(tid).or_insert_with(|| {
                tracks.push(Track::new(tid));
                tracks.len() - 1
            });
        }
        Self {
            began,
            ended,
            early: true,
            tracks,
            by_tid,
            queues: HashMap::new(),
            runs: HashMap::new(),
            stays: Vec::new(),
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        // While programs are attached one by one events come already: they tell where a vCPU is, and count for nothing.
        if self.early && event.ns >= self.began {
            self.early = false;
            self.tracks.iter_mut().for_each(Track::forget);
        }
        let now = event.ns.clamp(self.began, self.ended) - self.began;
        let one = self.by_tid.get(&event.tid).copied();
        match (event.kind, one) {
            (Kind::Switch, _) => self.switch(event, now),
            (Kind::Wakeup, Some(one)) => self.wakeup(event, one, now),
            (Kind::Migrate, Some(one)) => self.migrate(event, one, now),
            (Kind::Halt, Some(one)) => {
                let track = &mut self.tracks[one];
                let start = now.saturating_sub(event.arg).max(track.halts.last().map_or(0, |last| last.1));
                if start < now {
                    track.halts.push((start, now));
                }
            }
            (Kind::Spin, Some(one)) => self.tracks[one].spins.push(now),
            (Kind::Yield, Some(one)) => {
                let sum = self.tracks[one].yields.entry(event.other).or_default();
                sum.0 += 1;
                sum.1 += u64::from((event.arg as i64) > 0);
            }
            (Kind::State, Some(one)) => self.tracks[one].met(now, event.has(flag::RUNNABLE)),
            _ => {}
        }
    }

    fn switch(&mut self, event: &Event, now: u64) {
        let cpu = event.cpu;
        for &waiting in self.queues.get(&cpu).into_iter().flatten() {
            if let Some(wait) = &mut self.tracks[waiting].wait {
                wait.change(now, Some(event.other));
            }
        }
        if let Some((tid, since)) = self.runs.remove(&cpu) {
            self.stays.push((cpu, since, now, tid));
        }
        if let Some(&out) = self.by_tid.get(&event.tid) {
            self.out(event, out, now);
        }
        if let Some(&one) = self.by_tid.get(&event.other) {
            self.end_wait(one, now);
            self.tracks[one].enter(now, State::Ready, State::Running);
            self.runs.insert(cpu, (event.other, now));
        } else if self.queues.get(&cpu).is_some_and(|queue| !queue.is_empty()) {
            self.runs.insert(cpu, (event.other, now));
        }
    }

    fn out(&mut self, event: &Event, one: usize, now: u64) {
        self.end_wait(one, now);
        let track = &mut self.tracks[one];
        if !event.has(flag::RUNNABLE) {
            let next = if event.has(flag::EXITED) { State::Unknown } else { State::Halted };
            track.enter(now, State::Running, next);
            return;
        }
        let (reason, state) = if event.has(flag::GAVE_WAY) {
            (Reason::GaveWay, State::Sibling)
        } else if event.has(flag::CS) {
            (Reason::Holder, State::Holder)
        } else {
            (Reason::Preempted, State::Ready)
        };
        if reason == Reason::GaveWay {
            track.gave_way += 1;
        } else {
            track.preemptions += 1;
            track.preemptions_known += u64::from(event.has(flag::CS_KNOWN));
            track.preemptions_cs += u64::from(event.has(flag::CS));
        }
        track.enter(now, State::Running, state);
        track.wait = Some(OpenWait::new(now, reason, event.cpu, Some(event.other)));
        self.queues.entry(event.cpu).or_default().push(one);
    }

    fn wakeup(&mut self, event: &Event, one: usize, now: u64) {
        // Woken before it has left its pCPU: it goes on running.
        if !self.tracks[one].fresh && self.tracks[one].state == State::Running {
            return;
        }
        self.end_wait(one, now);
        let track = &mut self.tracks[one];
        track.wakeups += 1;
        track.enter(now, State::Halted, State::Ready);
        track.wait = Some(OpenWait::new(now, Reason::Woken, event.cpu, running(event)));
        self.queues.entry(event.cpu).or_default().push(one);
    }

    fn migrate(&mut self, event: &Event, one: usize, now: u64) {
        let Some(mut wait) = self.tracks[one].wait.take() else { return };
        self.dequeue(one, wait.cpu, now);
        wait.change(now, running(event));
        wait.cpu = event.cpu;
        self.tracks[one].migrations += 1;
        self.tracks[one].wait = Some(wait);
        self.queues.entry(event.cpu).or_default().push(one);
    }

    /// The vCPU waits no more, if it did.
    fn end_wait(&mut self, one: usize, now: u64) {
        if let Some(cpu) = self.tracks[one].wait.as_ref().map(|wait| wait.cpu) {
            self.tracks[one].end_wait(now);
            self.dequeue(one, cpu, now);
        }
    }

    fn dequeue(&mut self, one: usize, cpu: u16, now: u64) {
        let Some(queue) = self.queues.get_mut(&cpu) else { return };
        queue.retain(|waiting| *waiting != one);
        // With nobody waiting there, switches between others are not recorded any more.
        let others = |(tid, _): &(u32, u64)| !self.by_tid.contains_key(tid);
        if queue.is_empty() && self.runs.get(&cpu).is_some_and(others) {
            let (tid, since) = self.runs.remove(&cpu).expect("looked at above");
            self.stays.push((cpu, since, now, tid));
        }
    }

    pub(super) fn finish(mut self) -> (Vec<Track>, Vec<Stay>) {
        let end = self.ended - self.began;
        self.tracks.iter_mut().for_each(|track| track.finish(end));
        let open = self.runs.into_iter().map(|(cpu, (tid, since))| (cpu, since, end, tid));
        self.stays.extend(open);
        self.stays.retain(|(_, start, end, _)| end > start);
        (self.tracks, self.stays)
    }
}

fn running(event: &Event) -> Option<u32> {
    event.has(flag::OTHER_KNOWN).then_some(event.other)
}
