use entrain_workloads::wire::Figure;

use super::*;

/// A vCPU that has a pCPU for the whole of each of these stretches.
fn stretches(tid: u32, spans: &[(f64, f64)]) -> Vec<Run> {
    // In slices of 4 ms, as a host with others to run gives them.
    let slices = |(from, to): &(f64, f64)| {
        let (from, to) = (*from, *to);
        let n = ((to - from) / 0.004_f64).round() as usize;
        (0..n).map(move |i| Run { tid, start: from + i as f64 * 0.004, end: (from + (i + 1) as f64 * 0.004).min(to) })
    };
    spans.iter().flat_map(slices).collect()
}

fn sorted(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_by(|a, b| a.start.total_cmp(&b.start));
    runs
}

#[test]
fn growing_and_shrinking_are_timed_from_the_neighbour_s_steps() {
    // The neighbour works from 0 to 1 and from 2 to 3. The first guest grows 8.5 ms after 1, and gives a vCPU up 20 ms after 2.
    let neighbour = stretches(9, &[(0.0, 1.0), (2.0, 3.0)]);
    let own = sorted([stretches(1, &[(0.0, 3.4)]), stretches(2, &[(1.0085, 2.02), (3.0085, 3.4)])].concat());
    let mut readings = Readings::default();
    times(&own, &neighbour, 2, &mut readings).unwrap();
    let value = |name: &str| readings.iter().find(|one| one.metric == name).map(|one| one.value);
    assert_eq!((value("steps"), value("unshrunk")), (Some(2.0), Some(0.0)));
    assert!((6.0..=9.0).contains(&value("grow_max").unwrap()), "{:?}", value("grow_max"));
    assert!((10.0..=40.0).contains(&value("shrink_p50").unwrap()), "{:?}", value("shrink_p50"));
}

#[test]
fn a_guest_that_keeps_its_vcpus_in_use_is_told_as_such() {
    let neighbour = stretches(9, &[(0.5, 1.5)]);
    let own = sorted([stretches(1, &[(0.0, 3.0)]), stretches(2, &[(0.0, 3.0)])].concat());
    let mut readings = Readings::default();
    times(&own, &neighbour, 2, &mut readings).unwrap();
    assert_eq!(readings.iter().find(|one| one.metric == "unshrunk").unwrap().value, 1.0);
}

#[test]
fn throughput_is_compared_with_that_alone() {
    let line = |(at, value): (f64, f64)| Figure { metric: "x".into(), value, unit: "1/s".into(), at: Some(at) };
    let own: Vec<Figure> =
        (1..=60).map(|i| f64::from(i) / 10.0).map(|at| line((at, if at <= 4.0 { 100.0 } else { 90.0 }))).collect();
    // Started after 2 s; works from 0 to 1 and rests until 4 of its own clock.
    let theirs =
        (1..=40).map(|i| f64::from(i) / 10.0).map(|at| line((at, if at <= 1.0 { 50.0 } else { 0.0 }))).collect();
    let mut readings = Readings::default();
    let printed = |progress| Printed { progress, ..Printed::default() };
    throughput(&printed(own), &printed(theirs), 2.0, &mut readings).unwrap();
    let value = |name: &str| readings.iter().find(|one| one.metric == name).unwrap().value;
    assert_eq!((value("alone"), value("shared")), (100.0, 100.0));
    assert_eq!(value("regained"), 90.0, "the median of the rests is what came after 4 s");
}
