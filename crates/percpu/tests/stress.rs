//! Owners on every CPU against a drainer, with and without sequences: each object comes out once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use entrain_percpu::{Cache, CpuSet};
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};

const TIME: Duration = Duration::from_secs(2);
/// More threads than CPUs, so that owners of the same CPU preempt one another inside of sequences.
const PER_CPU: usize = 3;

fn run(isolated: &CpuSet) {
    let cache: Cache<u64> = Cache::new(16, isolated);
    let stop = AtomicBool::new(false);
    let (made, out) = (AtomicU64::new(0), AtomicU64::new(0));
    // Sums tell a lost or doubled object even where counts agree.
    let (made_sum, out_sum) = (AtomicU64::new(0), AtomicU64::new(0));
    let leaves = |object: Box<u64>| {
        out.fetch_add(1, Relaxed);
        out_sum.fetch_add(*object, Relaxed);
    };
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::possible()).filter(|&cpu| allowed.is_set(cpu)).collect();
    thread::scope(|scope| {
        for (number, &cpu) in cpus.iter().cycle().take(cpus.len() * PER_CPU).enumerate() {
            let (cache, stop, leaves, made, made_sum) = (&cache, &stop, &leaves, &made, &made_sum);
            scope.spawn(move || {
                // The last of each CPU's threads may wander.
                if number < cpus_pinned(number) {
                    let mut mask = Mask::new();
                    mask.set(cpu);
                    sched_setaffinity(None, &mask).unwrap();
                }
                let mut value = number as u64 * 1_000_003;
                while !stop.load(Relaxed) {
                    for _ in 0..20 {
                        value += 1;
                        made.fetch_add(1, Relaxed);
                        made_sum.fetch_add(value, Relaxed);
                        if let Err(back) = cache.push(Box::new(value)) {
                            leaves(back);
                        }
                    }
                    for _ in 0..15 {
                        if let Some(object) = cache.pop() {
                            leaves(object);
                        }
                    }
                }
            });
        }
        let end = Instant::now() + TIME;
        let mut drains = 0_u32;
        while Instant::now() < end {
            for &cpu in &cpus {
                cache.drain_on(cpu, leaves);
                drains += 1;
            }
        }
        stop.store(true, Relaxed);
        assert!(drains > 0);
    });
    cache.drain_all(leaves);
    assert_eq!(made.load(Relaxed), out.load(Relaxed));
    assert_eq!(made_sum.load(Relaxed), out_sum.load(Relaxed));
    for cpu in cpus {
        assert_eq!(cache.restarts(cpu) == 0, cache.is_locked(cpu), "CPU {cpu}");
    }
}

/// All but every third thread are pinned.
fn cpus_pinned(number: usize) -> usize {
    if number % PER_CPU == PER_CPU - 1 { 0 } else { usize::MAX }
}

#[test]
fn sequences_lose_and_double_nothing() {
    run(&CpuSet::none());
}

#[test]
fn locks_lose_and_double_nothing() {
    let mut all = CpuSet::none();
    (0..CpuSet::possible()).for_each(|cpu| all.add(cpu));
    run(&all);
}

#[test]
fn both_side_by_side_lose_and_double_nothing() {
    let mut odd = CpuSet::none();
    (0..CpuSet::possible()).filter(|cpu| cpu % 2 == 1).for_each(|cpu| odd.add(cpu));
    run(&odd);
}
