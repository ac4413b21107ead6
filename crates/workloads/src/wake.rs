//! `wake`: message threads wake worker threads, in schbench's sense.
//!
//! What it measures: a worker posts itself to its message thread and sleeps on a futex. The message thread takes all
//! posted workers and wakes each. *Wake-up latency* is the time from just before the wake-up call to the worker
//! running; only wake-ups of workers that slept are counted (all, if none ever did: on one CPU a message thread that
//! preempts the worker wakes it before it can sleep). The worker then does a request's worth of arithmetic
//! under the lock of the CPU it runs on: whoever is preempted while holding it delays those that run there meanwhile,
//! as with a server's per-CPU data. Without `--rate` a worker is woken as soon as it is posted; with it, each message
//! thread wakes one worker at fixed times, and a request for which no worker is free is missed, not queued.

use crate::clock::now_ns;
use crate::cpu;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::spin::iteration;
use crate::sync::{Counter, Phase, futex_wait, futex_wake};
use anyhow::{Result, bail, ensure};
use entrain_workloads::catalog;
use hdrhistogram::Histogram;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Wake-up latency and requests per second, in schbench's sense
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Message threads, beside the --threads workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    messages: u32,
    /// Requests per second, all message threads together; as many as possible if not given
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Work of a request, in pieces of 1,000 arithmetic steps
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=10_000_000), value_name = "PIECES")]
    work: u64,
    /// Do the work without the lock of the CPU
    #[arg(long)]
    no_lock: bool,
}

/// A worker, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Worker {
    /// 1 once woken.
    word: AtomicU32,
    /// When the wake-up was made, in monotonic ns.
    woken_ns: AtomicU64,
}

/// A message thread's side.
#[derive(Default)]
struct Desk {
    posted: Mutex<Vec<usize>>,
    /// Counts posts; the message thread sleeps on it.
    bell: AtomicU32,
    due: Counter,
    missed: Counter,
}

struct Shared<'a> {
    session: &'a Session,
    args: &'a Args,
    phase: Phase,
    workers: Vec<Worker>,
    desks: Vec<Desk>,
    requests: Vec<Counter>,
    locks: Vec<Mutex<()>>,
}

/// What one worker saw, in ns.
struct Seen {
    /// Of workers that slept.
    wake: Histogram<u64>,
    /// Of all.
    woken: Histogram<u64>,
    request: Histogram<u64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let workers = session.threads();
    let desks = args.messages as usize;
    ensure!(desks <= workers, "{desks} message threads need at least as many workers; there are {workers}");
    if let Some(rate) = args.rate {
        ensure!(rate.is_finite() && (0.1..=10e6).contains(&rate), "--rate must lie between 0.1 and 10,000,000");
    }
    let cpus = cpu::allowed()?.last().map_or(1, |last| last + 1);
    let shared = Shared {
        session: &session,
        args,
        phase: Phase::default(),
        workers: (0..workers).map(|_| Worker::default()).collect(),
        desks: (0..desks).map(|_| Desk::default()).collect(),
        requests: Counter::many(workers),
        locks: (0..cpus).map(|_| Mutex::new(())).collect(),
    };
    let (measured, seen) = std::thread::scope(|scope| -> Result<_> {
        let handles: Vec<_> = (0..workers)
            .map(|index| {
                let shared = &shared;
                scope.spawn(move || shared.work(index))
            })
            .collect();
        for index in 0..desks {
            let shared = &shared;
            scope.spawn(move || shared.message(index));
        }
        let read = || (sum(&shared.requests), shared.sum_desks(|d| &d.due), shared.sum_desks(|d| &d.missed));
        let measured = session.measure(&shared.phase, read, |_, _| Ok(()));
        // Those that sleep look at the phase only once they are woken.
        shared.wake_all();
        let mut seen = Seen { wake: latencies(), woken: latencies(), request: latencies() };
        for handle in handles {
            let one = handle.join().expect("no worker panics");
            seen.wake.add(one.wake)?;
            seen.woken.add(one.woken)?;
            seen.request.add(one.request)?;
        }
        Ok((measured?, seen))
    })?;
    let wake = if seen.wake.is_empty() { &seen.woken } else { &seen.wake };
    if wake.is_empty() {
        bail!("no worker was woken within {:.1} s: measure longer", measured.seconds);
    }
    let out = session.out;
    for (metric, quantile) in [
        (&catalog::WAKE_P50, 0.5),
        (&catalog::WAKE_P75, 0.75),
        (&catalog::WAKE_P90, 0.9),
        (&catalog::WAKE_P95, 0.95),
        (&catalog::WAKE_P99, 0.99),
        (&catalog::WAKE_P995, 0.995),
        (&catalog::WAKE_P999, 0.999),
        (&catalog::WAKE_MAX, 1.0),
    ] {
        out.metric(metric, quantile_us(wake, quantile))?;
    }
    out.metric(&catalog::REQUEST_P50, quantile_us(&seen.request, 0.5))?;
    out.metric(&catalog::REQUEST_P99, quantile_us(&seen.request, 0.99))?;
    let (before, after) = (measured.before, measured.after);
    out.metric(&catalog::REQUESTS, (after.0 - before.0) as f64 / measured.seconds)?;
    if args.rate.is_some() && after.1 > before.1 {
        out.metric(&catalog::RATE_MISSED, (after.2 - before.2) as f64 / (after.1 - before.1) as f64)?;
    }
    out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn sum(counters: &[Counter]) -> u64 {
    counters.iter().map(Counter::get).sum()
}

impl Shared<'_> {
    fn sum_desks(&self, counter: impl Fn(&Desk) -> &Counter) -> u64 {
        self.desks.iter().map(|desk| counter(desk).get()).sum()
    }

    fn wake_all(&self) {
        for worker in &self.workers {
            worker.word.store(1, Ordering::Release);
            futex_wake(&worker.word, 1);
        }
        for desk in &self.desks {
            desk.bell.fetch_add(1, Ordering::Release);
            futex_wake(&desk.bell, 1);
        }
    }

    fn work(&self, index: usize) -> Seen {
        self.session.enter(index);
        let mut seen = Seen { wake: latencies(), woken: latencies(), request: latencies() };
        let (me, desk) = (&self.workers[index], &self.desks[index % self.desks.len()]);
        if !self.phase.wait_start() {
            return seen;
        }
        while self.phase.running() {
            desk.posted.lock().expect("no thread panics with it").push(index);
            if self.args.rate.is_none() {
                desk.bell.fetch_add(1, Ordering::Release);
                futex_wake(&desk.bell, 1);
            }
            let mut slept = false;
            // A stop that came since the check above has set the word, or finds us asleep: see wake_all.
            while me.word.load(Ordering::Acquire) == 0 {
                slept |= futex_wait(&me.word, 0);
            }
            let running_ns = now_ns();
            if !self.phase.running() {
                break;
            }
            // Acquire: if this takes back the 1 of wake_all, the loop's next look at the phase must see the stop.
            me.word.swap(0, Ordering::Acquire);
            let woken_ns = me.woken_ns.load(Ordering::Relaxed);
            self.request();
            if self.phase.measuring() {
                let latency = running_ns.saturating_sub(woken_ns).max(1);
                seen.woken.saturating_record(latency);
                if slept {
                    seen.wake.saturating_record(latency);
                }
                seen.request.saturating_record((now_ns() - woken_ns).max(1));
            }
            self.requests[index].add(1);
        }
        seen
    }

    fn request(&self) {
        let _held = match self.args.no_lock {
            true => None,
            false => Some(self.locks[cpu::current() % self.locks.len()].lock().expect("no thread panics with it")),
        };
        (0..self.args.work).for_each(|_| iteration());
    }

    fn message(&self, index: usize) {
        let desk = &self.desks[index];
        if !self.phase.wait_start() {
            return;
        }
        match self.args.rate {
            None => self.message_at_once(desk),
            Some(rate) => self.message_at_rate(desk, rate / self.desks.len() as f64),
        }
    }

    fn message_at_once(&self, desk: &Desk) {
        let mut batch = Vec::with_capacity(self.workers.len());
        while self.phase.running() {
            let rung = desk.bell.load(Ordering::Acquire);
            std::mem::swap(&mut batch, &mut desk.posted.lock().expect("no thread panics with it"));
            if batch.is_empty() {
                futex_wait(&desk.bell, rung);
            }
            for worker in batch.drain(..) {
                self.wake(worker);
            }
        }
    }

    fn message_at_rate(&self, desk: &Desk, rate: f64) {
        let interval = (1e9 / rate).max(1.0) as u64;
        let mut next = now_ns();
        while self.phase.running() {
            next += interval;
            let now = now_ns();
            if next > now {
                // At most 100 ms at a time, to see the end of the run.
                let mut left = next - now;
                while left > 0 && self.phase.running() {
                    std::thread::sleep(Duration::from_nanos(left.min(100_000_000)));
                    left = next.saturating_sub(now_ns());
                }
            }
            let worker = desk.posted.lock().expect("no thread panics with it").pop();
            desk.due.add(1);
            match worker {
                Some(worker) => self.wake(worker),
                None => desk.missed.add(1),
            }
        }
    }

    fn wake(&self, worker: usize) {
        let worker = &self.workers[worker];
        worker.woken_ns.store(now_ns(), Ordering::Relaxed);
        worker.word.store(1, Ordering::Release);
        futex_wake(&worker.word, 1);
    }
}
