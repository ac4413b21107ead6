//! The simulator's work grows with the machine as n log n at most, counted and not timed: `kernel::looks`.

use entrain_sim::kernel::looks::looks;
use entrain_sim::program::MS;
use entrain_sim::scenario::{Arm, bench_of};

/// Events, and what was looked at for them, in 40 ms of a host of so many threads with twice as many vCPUs.
fn work(arm: Arm, threads: u32) -> (f64, f64) {
    let mut setup = bench_of(1, arm, threads);
    let before = looks();
    setup.world.run(40 * MS);
    for machine in &setup.world.machines {
        assert_eq!(machine.kernel.failed, None);
    }
    (setup.world.events as f64, (looks() - before) as f64)
}

/// A tenth above what the logarithm allows: the first milliseconds differ a little from one size to the next.
const SLACK: f64 = 1.1;

fn grows_as_n_log_n(arm: Arm, sizes: &[u32]) {
    let all: Vec<_> = sizes.iter().map(|threads| (f64::from(*threads), work(arm, *threads))).collect();
    for pair in all.windows(2) {
        let [(n, (events, looks)), (more, (more_events, more_looks))] = [pair[0], pair[1]];
        eprintln!("{n} to {more} threads: events {events} to {more_events}, looks {looks} to {more_looks}");
        assert!(more_events / events < more / n * SLACK, "events grow with the threads: {events} to {more_events}");
        let bound = more / n * (more.log2() / n.log2()) * SLACK;
        assert!(more_looks / looks < bound, "{looks} looks at {n} threads became {more_looks} at {more}");
    }
}

#[test]
fn stock_grows_as_n_log_n() {
    grows_as_n_log_n(Arm::STOCK, &[256, 1024]);
}

#[test]
fn stock_goes_on_so_to_4096_threads() {
    grows_as_n_log_n(Arm::STOCK, &[1024, 4096]);
}

/// Its own scheduler goes to 1,024.
#[test]
fn entrain_grows_as_n_log_n_up_to_1024_threads() {
    grows_as_n_log_n(Arm::BOTH, &[128, 256, 1024]);
}

#[test]
fn beyond_its_tables_entrain_leaves_the_host_to_eevdf_and_says_so() {
    let mut setup = bench_of(1, Arm::BOTH, 2048);
    setup.world.run(10 * MS);
    assert!(setup.world.machines.iter().all(|machine| machine.kernel.failed.is_none()));
    assert!(setup.world.notes.iter().any(|note| note.contains("2048 CPUs")), "{:?}", setup.world.notes);
}
