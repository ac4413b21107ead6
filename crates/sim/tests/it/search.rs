//! Drawn worlds: the same whatever runs beside them.

use entrain_sim::search::{self, Hunt};

#[test]
fn one_thread_and_two_find_the_same() {
    let digest = |threads| -> Vec<_> {
        search::run_all(Hunt::Worlds, 1..9, threads).iter().map(|run| (run.seed, run.trace)).collect()
    };
    assert_eq!(digest(1), digest(2));
}

#[test]
fn drawn_worlds_keep_their_schedulers() {
    for run in search::run_all(Hunt::Worlds, 100..160, 2) {
        for rule in ["failed", "queue", "budget"] {
            assert!(!run.breaks(rule), "{}", run.text());
        }
    }
}

#[test]
fn a_plan_is_kept_and_run_again() {
    let plan = search::plan_of(11);
    let kept: search::Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(kept, plan);
    assert_eq!(search::run_plan(11, &kept).trace, search::run(11).trace);
}
