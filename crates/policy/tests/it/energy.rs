//! Placement by energy.

use entrain_policy::energy::{COST_MAX, EnergyIn, Model, POINTS, Point, more};
use proptest::prelude::*;

fn points() -> impl Strategy<Value = Vec<Point>> {
    // From slow to fast, the faster the dearer, as `power / performance` of every published table is.
    let steps = prop::collection::vec((1..64u32, 0..COST_MAX / 64), 1..2 * POINTS);
    steps.prop_map(|steps| {
        let sum = |at: &mut Point, (performance, cost): (u32, u32)| {
            *at = Point { performance: at.performance + performance, cost: (at.cost + cost).min(COST_MAX) };
            Some(*at)
        };
        steps.into_iter().scan(Point::default(), sum).collect()
    })
}

proptest! {
    #[test]
    fn more_work_never_costs_less(points in points(), others in any::<u64>(), level in any::<u32>(), demand in 0..1024u32) {
        let model = Model::new(&points);
        let of = |demand| more(&model, &EnergyIn { others, level, demand });
        prop_assert!(of(demand) <= of(demand + 1));
        prop_assert_eq!(of(0), 0);
        // Beside others it may make their work dearer, so it costs at least what it would at their level alone.
        let alone = more(&model, &EnergyIn { others: 0, level, demand });
        prop_assert!(of(demand) >= alone);
    }

    #[test]
    fn whatever_stands_there_is_computed(words in prop::collection::vec(any::<u32>(), 2 * POINTS), nr in any::<u32>(), others in any::<u64>(), level in any::<u32>(), demand in any::<u32>()) {
        let mut model = Model::new(&[]);
        model.nr = nr;
        for (point, word) in model.at.iter_mut().zip(words.chunks(2)) {
            *point = Point { performance: word[0], cost: word[1] };
        }
        let more = more(&model, &EnergyIn { others, level, demand });
        prop_assert!(more < 1 << 42);
    }

    #[test]
    fn the_fastest_point_stays(points in points()) {
        let model = Model::new(&points);
        let kept = &model.at[..model.nr as usize];
        prop_assert_eq!(kept.last(), points.last());
        prop_assert!(kept.is_sorted_by_key(|point| point.performance) && 2 * kept.len() >= points.len().min(POINTS));
    }
}
