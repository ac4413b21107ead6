//! What an operation costs, local and remote, and how often the owner is interrupted.
//!
//! `cargo run --release -p entrain-percpu --example cost [DRAINS]`; wants two CPUs with nothing else to do.

use std::error::Error;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use std::{env, fs, thread};

use entrain_percpu::{Cache, CpuSet, current_cpu, rseq_works};
use rustix::thread::{CpuSet as Mask, sched_setaffinity};

/// Pairs of push and pop for the local cost.
const PAIRS: u64 = 5_000_000;
/// The CPU that owns, and the one that drains.
const OWNER: usize = 1;
const DRAINER: usize = 0;

/// What is compared.
trait Store: Sync {
    fn pair(&self, object: Box<u64>) -> Box<u64>;
    fn drain(&self);
    fn restarts(&self) -> u64;
}

impl Store for Cache<u64> {
    fn pair(&self, object: Box<u64>) -> Box<u64> {
        match self.push(object) {
            Ok(()) => self.pop().unwrap_or_else(|| Box::new(0)),
            Err(back) => back,
        }
    }
    fn drain(&self) {
        self.drain_on(OWNER, |object| drop(black_box(object)));
    }
    fn restarts(&self) -> u64 {
        Cache::restarts(self, OWNER)
    }
}

/// The usual way: a mutex and a vector per CPU. Of boxes, as the caches hold.
#[allow(clippy::vec_box, reason = "the same objects as in the caches")]
struct Sharded(Vec<Mutex<Vec<Box<u64>>>>);

impl Store for Sharded {
    fn pair(&self, object: Box<u64>) -> Box<u64> {
        let shard = &self.0[current_cpu()];
        shard.lock().unwrap().push(object);
        shard.lock().unwrap().pop().unwrap_or_else(|| Box::new(0))
    }
    fn drain(&self) {
        drop(black_box(std::mem::take(&mut *self.0[OWNER].lock().unwrap())));
    }
    fn restarts(&self) -> u64 {
        0
    }
}

fn pin(cpu: usize) -> Result<(), Box<dyn Error>> {
    let mut mask = Mask::new();
    mask.set(cpu);
    Ok(sched_setaffinity(None, &mask)?)
}

/// Interrupts of the owner's CPU so far that other CPUs caused: rescheduling and function calls.
fn ipis() -> u64 {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let count = |line: &str| line.split_whitespace().nth(1 + OWNER)?.parse::<u64>().ok();
    text.lines().filter(|l| ["RES:", "CAL:"].iter().any(|n| l.trim_start().starts_with(n))).filter_map(count).sum()
}

fn measure(name: &str, store: &dyn Store, drains: u64) -> Result<(), Box<dyn Error>> {
    pin(OWNER)?;
    let mut object = Box::new(7);
    let start = Instant::now();
    for _ in 0..PAIRS {
        object = black_box(store.pair(object));
    }
    let local = start.elapsed().as_nanos() as f64 / PAIRS as f64;

    let (stop, pairs) = (AtomicBool::new(false), AtomicU64::new(0));
    let (remote, before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(OWNER);
            let mut object = Box::new(7);
            while !stop.load(Relaxed) {
                object = store.pair(object);
                pairs.store(pairs.load(Relaxed) + 1, Relaxed);
            }
        });
        let _ = pin(DRAINER);
        while pairs.load(Relaxed) == 0 {
            std::hint::spin_loop();
        }
        let (before, start) = (ipis(), Instant::now());
        for _ in 0..drains {
            store.drain();
        }
        let (time, after) = (start.elapsed(), ipis());
        stop.store(true, Relaxed);
        (time.as_nanos() as f64 / drains as f64, before, after)
    });
    println!("{name:<28} {local:>8.1} {remote:>10.1} {:>10} {:>10}", store.restarts(), after.saturating_sub(before));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let drains = env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let mut isolated = CpuSet::none();
    isolated.add(OWNER);
    println!("rseq: {}; {drains} remote drains of a busy owner", if rseq_works() { "yes" } else { "no" });
    println!("{:<28} {:>8} {:>10} {:>10} {:>10}", "", "local ns", "remote ns", "restarts", "IPIs");
    measure("mutex-sharded vectors", &Sharded((0..CpuSet::possible()).map(|_| Mutex::default()).collect()), drains)?;
    measure("lock (isolated CPU)", &Cache::new(64, &isolated), drains)?;
    measure("rseq (housekeeping CPU)", &Cache::new(64, &CpuSet::none()), drains)?;
    println!(
        "local: a pair of push and pop; IPIs: RES and CAL of the owner's CPU, those of the rest of the system too"
    );
    Ok(())
}
