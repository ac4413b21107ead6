//! Drawn worlds: the same whatever runs beside them.

use entrain_sim::search;

#[test]
fn one_thread_and_two_find_the_same() {
    let digest =
        |threads| -> Vec<_> { search::run_all(1..9, threads).iter().map(|run| (run.seed, run.trace)).collect() };
    assert_eq!(digest(1), digest(2));
}

#[test]
fn drawn_worlds_keep_their_schedulers() {
    for run in search::run_all(100..130, 2) {
        let left: Vec<_> = run.broken.iter().filter(|(rule, ..)| *rule == "failed").collect();
        assert!(left.is_empty(), "{}", run.text());
    }
}
