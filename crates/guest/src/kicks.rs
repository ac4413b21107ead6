//! The instant hint against the truth, for the lab's experiment `hint`: one vCPU kicks others that halt, and looks
//! beforehand at what the host says of them and afterwards at how long the host let them wait.
//!
//! The wait is the host's own: the growth of the page's `steal`, which counts the time that a vCPU was runnable without a
//! pCPU, from the wake-up in KVM to its first instruction. What the guest's own wake-up costs is not in it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use entrain_channel::page::{HostFastValues, Page};
use entrain_channel::word::{TIME_SHIFT, Vcpu, VcpuState};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::json;

use crate::affinity;
use crate::error::{GuestError, Result};
use crate::pages::{Pages, paired_seed};

/// "At once": far less than a slice of the task that would be waited for, ns of the host's time.
const AT_ONCE_NS: u64 = 100_000;
/// Longest pause between two kicks, µs: long enough for the vCPU to halt and for the host's other work to come and go.
const PAUSE_US: u64 = 6_000;
/// For so long a vCPU may take to halt before its turn is skipped, in steps of 50 µs.
const HALT_STEPS: u32 = 200;

/// What the page of a vCPU said at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    state: VcpuState,
    instant: bool,
    steal_ns: u64,
    preemptions: u64,
}

impl Look {
    /// `None` while no host publishes.
    fn at(page: &Page) -> Option<Look> {
        let seed = paired_seed(page)?;
        let words = HostFastValues::load(&page.host_fast);
        Some(Look {
            state: VcpuState::unpack(seed.unpack(words.state)),
            instant: seed.unpack(words.instant) & 1 != 0,
            steal_ns: seed.unpack(words.steal) << TIME_SHIFT,
            preemptions: seed.unpack(words.preemptions),
        })
    }
}

/// The hint and the wait of every kick that counts.
#[derive(Debug, Default)]
struct Tally {
    instant: Vec<u64>,
    not_instant: Vec<u64>,
    skipped: u64,
}

/// A vCPU other than the kicker's, with a thread that sleeps on it.
struct Target {
    vcpu: usize,
    kick: Sender<()>,
    answers: Receiver<Option<Look>>,
}

/// Kicks until `kicks` of them have counted, or three times as many were tried; prints the figures as JSON lines.
///
/// # Errors
/// When no agent has registered, or this guest has a single CPU.
pub fn run(pages: &Pages, kicks: usize) -> Result<()> {
    let cpus: Vec<usize> = allowed()?;
    let Some((first, others)) = cpus.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(GuestError::SelfCheck("kicks need a second CPU to kick".into()));
    };
    let tally = thread::scope(|scope| {
        let targets: Vec<Target> = others
            .iter()
            .filter(|&&vcpu| vcpu < pages.count())
            .map(|&vcpu| {
                let ((kick, kicked), (answer, answers)) = (channel(), channel());
                let page = pages.page(vcpu);
                scope.spawn(move || sleep_on(vcpu, page, &kicked, &answer));
                Target { vcpu, kick, answers }
            })
            .collect();
        pin(*first);
        // The threads end when their channels do.
        kick_all(pages, &targets, kicks)
    });
    print(&tally);
    Ok(())
}

/// The thread that is woken: what the host has counted by then is in the page before its first instruction.
fn sleep_on(vcpu: usize, page: &Page, kicked: &Receiver<()>, answer: &Sender<Option<Look>>) {
    pin(vcpu);
    while kicked.recv().is_ok() {
        if answer.send(Look::at(page)).is_err() {
            return;
        }
    }
}

fn kick_all(pages: &Pages, targets: &[Target], kicks: usize) -> Tally {
    let mut tally = Tally::default();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for turn in 0..3 * kicks {
        if tally.instant.len() + tally.not_instant.len() >= kicks {
            break;
        }
        let target = &targets[turn % targets.len()];
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_micros((state >> 33) % PAUSE_US));
        match one(pages.page(target.vcpu), target) {
            Some((true, wait)) => tally.instant.push(wait),
            Some((false, wait)) => tally.not_instant.push(wait),
            None => tally.skipped += 1,
        }
    }
    tally
}

/// One kick: the hint before it, and the wait. `None` if it was not a kick of a halted vCPU and nothing else: the vCPU
/// did not halt, woke by itself in between, or was preempted before its thread could look.
fn one(page: &Page, target: &Target) -> Option<(bool, u64)> {
    let mut before = Look::at(page)?;
    for _ in 0..HALT_STEPS {
        if before.state.vcpu == Vcpu::Halted {
            break;
        }
        thread::sleep(Duration::from_micros(50));
        before = Look::at(page)?;
    }
    target.kick.send(()).ok()?;
    let after = target.answers.recv().ok()??;
    // Halted, runnable, running: two changes of state, or one where the host saw it run at once.
    let steps = after.state.seq.wrapping_sub(before.state.seq) & 0xff_ffff;
    let clean =
        before.state.vcpu == Vcpu::Halted && (1..=2).contains(&steps) && after.preemptions == before.preemptions;
    clean.then(|| (before.instant, after.steal_ns.saturating_sub(before.steal_ns)))
}

fn print(tally: &Tally) {
    let line = |metric: &str, value: f64, unit: &str| {
        println!("{}", json!({ "metric": metric, "value": value, "unit": unit }));
    };
    let (yes, no) = (&tally.instant, &tally.not_instant);
    line("kicks", (yes.len() + no.len()) as f64, "1");
    line("skipped", tally.skipped as f64, "1");
    line("kicks_instant", yes.len() as f64, "1");
    line("instant_right", percent(yes, |wait| wait <= AT_ONCE_NS), "%");
    line("not_instant_right", percent(no, |wait| wait > AT_ONCE_NS), "%");
    line("missed", missed(yes, no), "%");
    for (name, waits) in [("instant", yes), ("not_instant", no)] {
        line(&format!("{name}_wait_p50"), quantile_us(waits, 50), "us");
        line(&format!("{name}_wait_p95"), quantile_us(waits, 95), "us");
    }
}

/// 100 if there is none to judge: the count of kicks says so.
fn percent(waits: &[u64], right: impl Fn(u64) -> bool) -> f64 {
    match waits.len() {
        0 => 100.0,
        n => 100.0 * waits.iter().filter(|&&wait| right(wait)).count() as f64 / n as f64,
    }
}

/// Kicks that ran at once though the hint did not say so, of all.
fn missed(yes: &[u64], no: &[u64]) -> f64 {
    let missed = no.iter().filter(|&&wait| wait <= AT_ONCE_NS).count();
    100.0 * missed as f64 / (yes.len() + no.len()).max(1) as f64
}

fn quantile_us(waits: &[u64], percent: usize) -> f64 {
    let mut sorted = waits.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * percent / 100).map_or(0.0, |&ns| ns as f64 / 1000.0)
}

fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(GuestError::system("the allowed CPUs could not be read"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

fn pin(cpu: usize) {
    if let Err(error) = affinity::bind(cpu) {
        tracing::warn!("a thread could not be bound to CPU {cpu}: {error}; its kicks mean nothing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_quantiles_are_those_of_the_waits() {
        let waits = [50_000, 90_000, 150_000, 2_000_000];
        assert_eq!(percent(&waits, |wait| wait <= AT_ONCE_NS), 50.0);
        assert_eq!(percent(&[], |_| false), 100.0);
        assert_eq!((missed(&[5_000], &[50_000, 150_000, 2_000_000]), missed(&[], &[])), (25.0, 0.0));
        assert_eq!(quantile_us(&waits, 50), 150.0);
        assert_eq!(quantile_us(&[], 95), 0.0);
    }

    #[test]
    fn nothing_is_seen_in_a_page_that_no_host_publishes_in() {
        assert!(Look::at(&Page::zeroed()).is_none());
    }
}
