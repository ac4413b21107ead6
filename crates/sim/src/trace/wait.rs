//! Why a task waited: what ran where it wanted to run meanwhile, and for a guest's task what became of its vCPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::text::{self, clock, duration};
use super::timeline::Run;
use super::{Record, Timeline, What};
use crate::kernel::TaskId;
use crate::world::{HOST, MachineId, World};

/// Runs that are listed one by one; beyond that only their sums.
const LISTED: usize = 24;

/// The longest wait of some tasks: whose, from when until when, ns.
pub fn longest(world: &World, tasks: &[(MachineId, TaskId)]) -> Option<(MachineId, TaskId, u64, u64)> {
    tasks
        .iter()
        .filter_map(|&(m, task)| world.longest_wait(m, task).map(|(from, until)| (m, task, from, until)))
        // The first of equals, so that there is one answer.
        .max_by_key(|&(m, task, from, until)| (until - from, std::cmp::Reverse((m, task))))
}

/// Tells why a task waited, out of records of at least that time.
pub fn why(world: &World, records: &[Record], m: MachineId, task: TaskId, from: u64, until: u64) -> String {
    let timeline = Timeline::of(records, until);
    let mut text = format!(
        "{} ({}, task {}) waited {}: from {:.9} s to {:.9} s\n",
        world.name(m, task),
        text::machine(m),
        task.0,
        duration(until - from),
        from as f64 / 1e9,
        until as f64 / 1e9
    );
    let teller = Teller { world, timeline: &timeline, records };
    if m == HOST {
        teller.waits(&mut text, m, task, from, until);
    } else {
        let last = |run: &&Run| run.machine == m && run.task == task;
        let cpu = timeline.runs.iter().rev().find(last).map_or(world.cpu_of(m, task), |run| run.cpu);
        let _ = writeln!(text, "\nInside, its CPU {cpu}:");
        teller.ran(&mut text, m, cpu, from, until);
        let thread = world.thread_of(m, cpu);
        teller.thread(&mut text, thread, from, until);
        teller.waits(&mut text, HOST, thread, from, until);
    }
    text
}

/// What the runs of one task on a CPU come to.
#[derive(Default)]
struct Sum {
    runs: usize,
    taken: usize,
    time: u64,
    spun: u64,
    first: Option<i64>,
    last: Option<i64>,
}

struct Teller<'a> {
    world: &'a World,
    timeline: &'a Timeline,
    records: &'a [Record],
}

impl Teller<'_> {
    /// Each wait of a task for a CPU, with what ran there.
    fn waits(&self, text: &mut String, m: MachineId, task: TaskId, from: u64, until: u64) {
        let mine = |wait: &&super::timeline::Wait| {
            wait.machine == m && wait.task == task && wait.from < until && wait.until > from
        };
        let mut waits: Vec<_> = self.timeline.waits.iter().filter(mine).collect();
        waits.sort_by_key(|wait| wait.from);
        for wait in waits {
            let (begin, end) = (wait.from.max(from), wait.until.min(until));
            let _ = writeln!(
                text,
                "\n{} waits {} for CPU {} of the {}, from {:.9} s on, {}:",
                self.world.name(m, task),
                duration(end - begin),
                wait.cpu,
                text::machine(m),
                begin as f64 / 1e9,
                self.clock_at(m, task, wait.from)
            );
            self.ran(text, m, wait.cpu, begin, end);
        }
    }

    /// The clock with which a task came to its queue.
    fn clock_at(&self, m: MachineId, task: TaskId, at: u64) -> String {
        let its =
            self.records.iter().filter(|record| record.at == at && record.machine == m).find_map(|record| match record
                .what
            {
                What::Queued { task: queued, clock, .. } if queued == task => Some(clock),
                What::Switch { prev: Some((prev, clock)), .. } if prev == task => Some(clock),
                _ => None,
            });
        its.map_or("clock not recorded".to_owned(), |its| format!("clock {}", clock(its)))
    }

    /// What the thread of a vCPU was at.
    fn thread(&self, text: &mut String, thread: TaskId, from: u64, until: u64) {
        let cut = |a: u64, b: u64| b.min(until).saturating_sub(a.max(from));
        let of = |m: MachineId, task: TaskId| m == HOST && task == thread;
        let ran: u64 =
            self.timeline.runs.iter().filter(|run| of(run.machine, run.task)).map(|run| cut(run.from, run.until)).sum();
        let waited: u64 = self
            .timeline
            .waits
            .iter()
            .filter(|wait| of(wait.machine, wait.task))
            .map(|wait| cut(wait.from, wait.until))
            .sum();
        let _ = writeln!(
            text,
            "\nIts vCPU's thread, {} of the host: on a CPU for {}, waited for one {}, slept {}",
            self.world.name(HOST, thread),
            duration(ran),
            duration(waited),
            duration((until - from).saturating_sub(ran + waited))
        );
    }

    /// How long who runs spins meanwhile: itself, or where it is a vCPU's thread, its guest's CPU.
    fn spun(&self, run: &Run) -> u64 {
        match (run.machine, self.world.vcpu_of(run.task)) {
            (HOST, Some((m, cpu))) => self.timeline.spun(m, cpu, run.from, run.until),
            _ => self.timeline.spun(run.machine, run.cpu, run.from, run.until),
        }
    }

    /// What ran on a CPU: sums, then one by one.
    fn ran(&self, text: &mut String, m: MachineId, cpu: u32, from: u64, until: u64) {
        let mut runs: Vec<_> = self.timeline.runs_on(m, cpu, from, until).collect();
        runs.sort_by_key(|run| run.from);
        let mut sums: BTreeMap<TaskId, Sum> = BTreeMap::new();
        for run in &runs {
            let sum = sums.entry(run.task).or_default();
            sum.runs += 1;
            sum.taken += usize::from(run.waits);
            sum.time += run.until - run.from;
            sum.spun += self.spun(run);
            sum.first.get_or_insert(run.clock.ahead);
            sum.last = run.end.map(|clock| clock.ahead).or(sum.last);
        }
        let busy: u64 = sums.values().map(|sum| sum.time).sum();
        let ms = |ns: Option<i64>| ns.map_or("?".to_owned(), |ns| format!("{:+.3}", ns as f64 / 1e6));
        for (task, sum) in &sums {
            let _ = writeln!(
                text,
                "  {:<24} {:>5} runs, {:>10}, of that spinning {:>10}; taken off {} times; clock {} → {} ms",
                self.world.name(m, *task),
                sum.runs,
                duration(sum.time),
                duration(sum.spun),
                sum.taken,
                ms(sum.first),
                ms(sum.last)
            );
        }
        let _ = writeln!(text, "  {:<24} {:>22}", "idle or switching", duration((until - from).saturating_sub(busy)));
        for run in runs.iter().take(LISTED) {
            let end = match (run.end, run.waits) {
                (None, _) => "runs on".to_owned(),
                (Some(its), true) => format!("taken off at {}", clock(its)),
                (Some(its), false) => format!("sleeps at {}", clock(its)),
            };
            let _ = writeln!(
                text,
                "    {:.9} s {:>10} {:<24} {}; spun {}; {end}",
                run.from as f64 / 1e9,
                duration(run.until - run.from),
                self.world.name(m, run.task),
                clock(run.clock),
                duration(self.spun(run))
            );
        }
        if runs.len() > LISTED {
            let _ = writeln!(text, "    and {} more", runs.len() - LISTED);
        }
    }
}
