//! What one decision costs natively, in nanoseconds: `cargo run --release -p entrain-policy --example cost`.

use std::hint::black_box;
use std::time::Instant;

use entrain_policy::host::*;
use entrain_policy::perf;

/// The best of some rounds: the others were disturbed.
fn measure(name: &str, mut decide: impl FnMut(u64)) {
    const CALLS: u64 = 1_000_000;
    let best = (0..7)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(&mut decide);
            start.elapsed().as_nanos() as f64 / CALLS as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<12} {best:6.2} ns");
}

fn main() {
    let limits = ExtendLimits { step: 100_000, event: 1_000_000, burst: 10_000_000, rate_ppm: 50_000 };
    let mut account = ExtendState { tokens: limits.burst, ..Default::default() };
    let input = SliceIn { period: 24_000_000, floor: 3_000_000, ceiling: 20_000_000, waiting: 3 };
    measure("charge", |n| {
        black_box(charge_share(black_box(4_000_000 + n), black_box(100 << 10)));
    });
    measure("wake_vtime", |n| {
        black_box(wake_vtime(black_box(n), black_box(n + 9_000_000), 6_000_000, 100_000_000));
    });
    measure("share", |n| {
        black_box(share(black_box(100 << 10), black_box(100), black_box(100 + n)));
    });
    measure("slice", |_| {
        black_box(slice(black_box(&input)));
    });
    measure("extend", |n| {
        black_box(extend(black_box(&mut account), &limits, Critical::Section as u32, n * 1000));
        extend_repay(&mut account, 4_000_000, 3_000_000);
    });
    measure("yield", |n| {
        let input = YieldIn { waiting: 1, sibling: 1, allowed: 1, level: 5, owes: 0, named: 0, next: 0, turn: n & 7 };
        black_box(yield_to(black_box(&input), &YieldLimits { turn: 6_000_000 }));
    });
    measure("preempt", |n| {
        let input = PreemptIn { vtime: n, victim_vtime: n + 9, victim_ran: n };
        black_box(preempt(black_box(&input), &PreemptLimits { granularity: 1_000_000, min_run: 200_000 }));
    });
    let mut level = perf::Level::default();
    measure("perf", |n| {
        let input = perf::PerfIn { all: 300, task: 100, claim: n as u32 & 1023, limit: 1024 };
        black_box(level.step(perf::wanted(black_box(&input)), n * 1000));
    });
    let mut util = perf::Util::default();
    measure("util_fold", |n| {
        util.ran += 700_000;
        util.fold(black_box(n * 2_000_000), 1024);
    });
    measure("capacity", |n| {
        black_box(perf::score(black_box(n as u32 & 1023), 446, 1024));
    });
}
