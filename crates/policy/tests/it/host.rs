//! Properties of the host scheduler's decisions, for every input: also those that only a hostile guest produces.

use entrain_policy::host::*;
use proptest::prelude::*;

/// Any u64, with the edges that break arithmetic more often than chance would bring them.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX / 2),
        Just(i64::MAX as u64 + 1),
        0..1_000_000_000_000u64,
    ]
}

/// Whether virtual time `a` lies before `b`, across the wrap.
fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// Virtual time of a task of its own weight, as cgroup v2 has it: 1..=10000.
fn charge(ran: u64, weight: u64) -> u64 {
    charge_share(ran, weight.clamp(1, 10_000) << 10)
}

fn limits() -> impl Strategy<Value = ExtendLimits> {
    (1..2_000_000u64, 0..5_000_000u64, 0..50_000_000u64, 0..1_000_000u64)
        .prop_map(|(step, event, burst, rate_ppm)| ExtendLimits { step, event, burst, rate_ppm })
}

proptest! {
    #[test]
    fn charge_is_monotone_in_time_and_inverse_in_weight(ran in word(), more in word(), weight in word(), heavier in word()) {
        let (ran, more) = (ran.min(more), ran.max(more));
        let (weight, heavier) = (weight.min(heavier), weight.max(heavier));
        prop_assert!(charge(ran, weight) <= charge(more, weight));
        prop_assert!(charge(ran, heavier) <= charge(ran, weight));
        prop_assert_eq!(charge(ran, weight) == 0, ran == 0, "who runs is charged");
        prop_assert!(charge(ran, weight) <= 10_000_000_000 * 100, "one stay can't throw a clock out of reach");
    }

    #[test]
    fn a_waking_clock_is_within_its_bounds(vtime in word(), queue in word(), credit in 0..1u64 << 40, debt in 0..1u64 << 40) {
        let woken = wake_vtime(vtime, queue, credit, debt);
        prop_assert!(!before(woken, queue.wrapping_sub(credit)));
        prop_assert!(!before(queue.wrapping_add(debt), woken));
        prop_assert_eq!(wake_vtime(woken, queue, credit, debt), woken, "asked twice, the same");
    }

    #[test]
    fn a_lead_is_worth_its_debt_at_any_share_and_no_wait_is_longer_than_the_bound(
        debt in 0..10_000_000_000u64, wait in 0..10_000_000_000u64, share in 1..10_000u64 << 10, others in 0..1u64 << 40
    ) {
        let load = (share + others).min(10_000 << 10);
        let lead = lead(debt, wait, share, load);
        prop_assert!(lead <= charge_share(debt, share), "of its own time no more than the debt");
        // The queue's clock comes that far in `wait`, at the speed of all who are there.
        prop_assert!(lead <= charge_share(wait, load));
        prop_assert!(lead == charge_share(debt, share) || lead == charge_share(wait, load), "one of the two binds");
    }

    #[test]
    fn who_goes_on_waiting_loses_nothing_that_it_is_owed(vtime in word(), queue in word(), lead in 0..1u64 << 40) {
        let led = led_vtime(vtime, queue, lead);
        prop_assert!(!before(queue.wrapping_add(lead), led));
        prop_assert!(led == vtime || before(queue.wrapping_add(lead), vtime));
    }

    #[test]
    fn a_latency_target_buys_at_most_a_period(target in word(), more in word(), period in word()) {
        let credit = latency_credit(target, period);
        prop_assert!(credit <= period);
        prop_assert!(latency_credit(target.saturating_add(more), period) <= credit, "a longer target has no more credit");
        prop_assert_eq!(latency_credit(period, period), 0);
    }

    #[test]
    fn parts_of_a_group_add_up_to_no_more_than_the_group(group in 1..10_000u64, weights in prop::collection::vec(1..10_000u64, 1..20)) {
        let group = group << 10;
        let active: u64 = weights.iter().sum();
        let parts: Vec<u64> = weights.iter().map(|w| share(group, *w, active)).collect();
        let sum: u64 = parts.iter().sum();
        // Each part is rounded, and none to nothing.
        prop_assert!(sum <= group + weights.len() as u64);
        prop_assert!(sum + weights.len() as u64 >= group);
        for (i, a) in weights.iter().enumerate() {
            for (j, b) in weights.iter().enumerate() {
                prop_assert!(a > b || parts[i] <= parts[j]);
            }
        }
    }

    #[test]
    fn share_and_charge_never_fail(group in word(), part in word(), active in word(), ran in word()) {
        let share = share(group, part, active);
        prop_assert!(share >= 1);
        prop_assert_eq!(charge_share(ran, share) == 0, ran == 0);
    }

    #[test]
    fn one_taken_out_of_turn_moves_the_queues_clock_no_further_than_the_first_that_waits(
        queue in word(), ahead in 0..1u64 << 40, further in 1..1u64 << 40
    ) {
        let (first, running) = (queue.wrapping_add(ahead), queue.wrapping_add(ahead).wrapping_add(further));
        prop_assert_eq!(queue_vtime(queue, running, Some(first)), first);
        prop_assert_eq!(queue_vtime(queue, running, None), running);
        prop_assert_eq!(queue_vtime(queue, first, Some(running)), first, "in turn");
        prop_assert_eq!(queue_vtime(queue, queue.wrapping_sub(further), None), queue, "it never goes back");
        prop_assert_eq!(queue_vtime(queue, running, Some(queue.wrapping_sub(further))), queue);
    }

    #[test]
    fn a_slice_is_within_its_bounds_and_falls_with_the_queue(
        period in 0..1u64 << 40, floor in 0..1u64 << 40, ceiling in 0..1u64 << 40, waiting in any::<u32>(), fewer in any::<u32>()
    ) {
        let (fewer, waiting) = (fewer.min(waiting), fewer.max(waiting));
        let input = SliceIn { period, floor, ceiling, waiting };
        let given = slice(&input);
        prop_assert!(given >= floor);
        prop_assert!(given <= floor.max(ceiling));
        let shorter_queue = slice(&SliceIn { waiting: fewer, ..input });
        prop_assert!(shorter_queue >= given);
    }

    #[test]
    fn extensions_stay_within_event_and_bucket_whatever_the_guest_claims(
        limits in limits(), steps in prop::collection::vec((0..3_000_000u64, any::<u32>(), any::<bool>()), 1..200)
    ) {
        let mut state = ExtendState { tokens: limits.burst, ..Default::default() };
        let (mut now, start, mut granted, mut this_event) = (1_000_000_000u64, 1_000_000_000u64, 0u64, 0u64);
        state.refilled = start;
        for (passed, level, ends) in steps {
            now += passed;
            // A hostile level is any number.
            if let Extend::Granted(step) = extend(&mut state, &limits, level, now) {
                prop_assert!(step > 0 && step <= limits.step.max(limits.event / 2));
                granted += step;
                this_event += step;
            }
            prop_assert!(this_event <= limits.event, "one event costs others a bounded wait");
            prop_assert!(state.tokens <= limits.burst);
            prop_assert!(state.debt <= limits.burst + limits.event, "who repays little is extended little");
            if ends {
                extend_repay(&mut state, 5_000_000, 1_000_000);
                this_event = 0;
            }
        }
        let refilled = (now - start) as u128 * limits.rate_ppm as u128 / 1_000_000;
        prop_assert!(granted as u128 <= limits.burst as u128 + refilled + 1, "burst + rate * time bound all extensions");
    }

    #[test]
    fn a_due_timer_bounds_an_extension(limits in limits(), left in 0..5_000_000u64, peace in 0..2_000_000u64) {
        let mut state = ExtendState { tokens: limits.burst, refilled: 1, ..Default::default() };
        let mut granted = 0;
        loop {
            let event = extend_event(limits.event, peace, state.used, left.saturating_sub(granted));
            prop_assert!(event <= limits.event);
            let limits = ExtendLimits { event, ..limits };
            match extend(&mut state, &limits, Critical::Section as u32, 1 + granted) {
                Extend::Granted(step) => granted += step,
                _ => break,
            }
        }
        prop_assert!(granted <= left.max(peace), "granted {}", granted);
    }

    #[test]
    fn what_was_granted_is_repaid(limits in limits(), asks in 1..50u32, slice in 1..20_000_000u64, floor in 0..20_000_000u64) {
        let mut state = ExtendState { tokens: limits.burst, refilled: 1, ..Default::default() };
        let mut granted = 0;
        for _ in 0..asks {
            if let Extend::Granted(step) = extend(&mut state, &limits, Critical::Section as u32, 1) {
                granted += step;
            }
        }
        prop_assert_eq!(state.debt, granted);
        let mut repaid = 0;
        for _ in 0..100 {
            let got = extend_repay(&mut state, slice, floor);
            prop_assert!(got <= slice);
            prop_assert!(got >= floor.min(slice - slice / 2), "repaying leaves the floor, or half");
            repaid += slice - got;
        }
        prop_assert_eq!(repaid + state.debt, granted, "nothing is forgiven and nothing taken twice");
        prop_assert!(state.debt == 0 || repaid == 100 * slice.saturating_sub(floor).max(slice / 2));
    }

    #[test]
    fn what_was_not_used_comes_back_and_no_more(limits in limits(), unused in word()) {
        let mut state = ExtendState { tokens: limits.burst, refilled: 1, ..Default::default() };
        let before = state;
        extend(&mut state, &limits, Critical::Section as u32, 1);
        extend_return(&mut state, &limits, unused);
        prop_assert!(state.tokens <= before.tokens);
        prop_assert_eq!(state.used, state.debt);
        prop_assert!(state.used <= limits.event);
    }

    #[test]
    fn only_a_waiting_sibling_that_may_hold_something_is_followed(
        waiting in 0..2u32, sibling in 0..2u32, allowed in 0..2u32, level in any::<u32>(), owes in 0..2u32, named in 0..2u32, next in 0..2u32, turn in 0..12_000_000u64
    ) {
        let limits = YieldLimits { turn: 6_000_000 };
        let verdict = yield_to(&YieldIn { waiting, sibling, allowed, level, owes, named, next, turn }, &limits);
        if verdict == Yield::Honoured {
            prop_assert!(waiting == 1 && sibling == 1 && allowed == 1);
            prop_assert!(next == 0);
            prop_assert!(turn < limits.turn, "no yield makes a turn longer");
            prop_assert!(owes == 1 || named == 1 || (level != Critical::User as u32 && level != Critical::Free as u32));
        }
        if sibling == 0 {
            prop_assert_eq!(verdict, Yield::Foreign, "a guest gives away no one else's time");
        }
    }

    #[test]
    fn who_moves_keeps_its_lag_to_what_clocks_are_comparable_by(vtime in word(), from in word(), drift in -1i64 << 60..1 << 60, keep in 0..1u64 << 40) {
        let to = from.wrapping_add_signed(drift);
        let moved = move_vtime(vtime, from, to, keep);
        let lag = |vtime: u64, queue: u64| queue.wrapping_sub(vtime) as i64;
        let gained = lag(moved, to).wrapping_sub(lag(vtime, from));
        prop_assert!(gained.unsigned_abs() <= keep, "gained {}", gained);
        prop_assert_eq!(move_vtime(vtime, from, to, 0).wrapping_sub(to), vtime.wrapping_sub(from), "EEVDF's placement");
        if drift.unsigned_abs() <= keep {
            prop_assert_eq!(moved, vtime, "clocks that are together are one clock");
        }
        prop_assert_eq!(move_vtime(moved, to, from, keep), vtime, "whoever goes there and back has gained nothing");
    }

    #[test]
    fn who_move_together_stay_in_order(a in word(), lag in -1i64 << 40..1 << 40, from in word(), to in word(), keep in 0..1u64 << 40) {
        let b = a.wrapping_add_signed(lag);
        prop_assert_eq!(move_vtime(b, from, to, keep).wrapping_sub(move_vtime(a, from, to, keep)), b.wrapping_sub(a));
    }

    #[test]
    fn who_is_alone_is_owed_no_more_than_the_bound(vtime in word(), lag in -1i64 << 60..1 << 60, bound in 0..1u64 << 40) {
        let furthest = vtime.wrapping_add_signed(lag);
        let alone = bounded_vtime(vtime, furthest, bound);
        prop_assert!(!before(alone, vtime), "its clock never goes back");
        prop_assert!(!before(alone, furthest.wrapping_sub(bound)));
        prop_assert!(alone == vtime || lag > 0);
    }

    #[test]
    fn a_lent_cpu_is_kept_only_while_the_guest_may_hold_something(level in any::<u32>(), others_wait in any::<bool>()) {
        let may_hold = level != Critical::Unknown as u32 && level != Critical::User as u32 && level != Critical::Free as u32;
        let verdict = lend(level, others_wait);
        prop_assert_eq!(verdict == Lend::Leaves, others_wait && !may_hold);
        // With nobody there to wait, no timer goes on looking: a guest that idles by polling is always in a section.
        prop_assert_eq!(verdict == Lend::GoesOn, others_wait && may_hold);
    }

    #[test]
    fn nobody_is_preempted_by_one_who_is_ahead(
        vtime in word(), ahead in 0..1u64 << 40, ran in word(), urgent in any::<bool>(), plain in 0..1u64 << 30, min_run in 0..1u64 << 30
    ) {
        let limits = PreemptLimits { granularity: granularity(plain, urgent), min_run };
        prop_assert!(limits.granularity <= plain, "urgency never delays");
        let input = PreemptIn { vtime: vtime.wrapping_add(ahead), victim_vtime: vtime, victim_ran: ran };
        prop_assert!(!preempt(&input, &limits));
        let behind = PreemptIn { vtime, victim_vtime: vtime.wrapping_add(limits.granularity + 1 + ahead), victim_ran: min_run };
        prop_assert!(preempt(&behind, &limits));
        // However urgent: a victim keeps its shortest stay.
        let fresh = PreemptIn { victim_ran: ran % (min_run + 1), ..behind };
        prop_assert_eq!(preempt(&fresh, &limits), fresh.victim_ran == min_run);
    }

    #[test]
    fn time_is_what_costs_so_much(vtime in word(), share in word()) {
        let time = time_of(vtime, share);
        prop_assert!(time <= 10_000_000_000);
        if time < 10_000_000_000 {
            prop_assert!(charge_share(time, share) + 1 >= vtime, "rounded up, but for what the charge rounds down");
            prop_assert!(time == 0 || charge_share(time - 1, share) <= vtime);
        }
    }

    #[test]
    fn a_wake_up_that_was_refused_is_let_in_when_it_was_told(
        vtime in word(), ahead in -1i64 << 30..1 << 30, ran in 0..10_000_000u64, granularity in 0..1u64 << 24, min_run in 0..1u64 << 24, share in 100..10_000u64 << 10
    ) {
        let limits = PreemptLimits { granularity, min_run };
        let input = PreemptIn { vtime, victim_vtime: vtime.wrapping_add_signed(ahead), victim_ran: ran };
        let after = preempt_after(&input, &limits, share);
        let then = |ns: u64| PreemptIn { victim_vtime: input.victim_vtime.wrapping_add(charge_share(ns, share)), victim_ran: ran + ns, ..input };
        prop_assert_eq!(after == 0, preempt(&input, &limits));
        // One stay is charged as ten seconds at most.
        prop_assume!(after < 9_000_000_000);
        // One ns of its own and one of virtual time are lost to rounding.
        prop_assert!(preempt(&then(after + 1 + share / (100 << 10)), &limits));
        prop_assert!(after < 2 || !preempt(&then(after - 2), &limits) || share > 100 << 10);
    }

    #[test]
    fn a_cost_follows_what_is_measured_and_one_interrupt_does_not_move_it_far(mean in 0..10_000_000u64, samples in prop::collection::vec(100..100_000u64, 40), outlier in word()) {
        let mut cost_now = samples.iter().fold(mean, |mean, sample| cost(mean, *sample));
        let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        // What is left of the first mean after 40 samples: less than a hundredth of it, and rounding.
        prop_assert!(cost_now + 8 >= *least && cost_now <= most + mean / 100 + 8, "{cost_now} of {least}..{most}");
        let before = cost_now;
        cost_now = cost(cost_now, outlier);
        prop_assert!(cost_now <= before * 11 / 8 + 1);
        prop_assert!(cost_now >= 1, "a cost that is known stays known");
    }

    #[test]
    fn the_least_is_found_among_samples_that_contain_other_work(before in word(), kick in 100..100_000u64, work in prop::collection::vec(0..1_000_000u64, 4000)) {
        // Nine of ten contain other work, of up to a millisecond.
        let samples = work.iter().enumerate().map(|(i, work)| kick + if i % 10 == 0 { 0 } else { *work });
        let found = samples.fold(before, least);
        prop_assert!(found >= kick.min(before.max(1)) && found < kick * 3 / 2 + 50_000, "{found} of {kick}");
        prop_assert_eq!(least(found, 0), found);
    }

    #[test]
    fn times_follow_costs_up_to_their_bounds(mean in word(), times in word(), most in word()) {
        let time = costs(mean, times, most);
        prop_assert!(time <= most);
        prop_assert!(mean != 0 || time == most, "no cost is known: the bound");
    }

    #[test]
    fn a_word_out_of_its_range_is_no_urgency(latency in word()) {
        prop_assert_eq!(urgent(latency), (1..=10_000).contains(&latency));
        prop_assert!(!urgent(0));
    }
}

/// A simulated queue: one clock-ordered queue and some CPUs, tasks of several weights, some of which sleep, some of which
/// claim to be in a critical section all the time.
mod simulation {
    use super::*;

    struct Task {
        weight: u64,
        vtime: u64,
        runnable: bool,
        waiting_since: u64,
        longest_wait: u64,
        got: u64,
        claims: bool,
        account: ExtendState,
    }

    const LIMITS: ExtendLimits = ExtendLimits { step: 100_000, event: 1_000_000, burst: 10_000_000, rate_ppm: 50_000 };
    const FLOOR: u64 = 3_000_000;

    /// Runs for `until` ns; `sleeper(i, turn)` says whether task i sleeps through its turn. Returns tasks and idle time.
    fn run(weights: &[(u64, bool)], cpus: usize, until: u64, sleeps: impl Fn(usize, u64) -> bool) -> (Vec<Task>, u64) {
        let mut tasks: Vec<Task> = weights
            .iter()
            .map(|(weight, claims)| Task {
                weight: *weight,
                vtime: u64::MAX - 5_000_000,
                runnable: true,
                waiting_since: 0,
                longest_wait: 0,
                got: 0,
                claims: *claims,
                account: ExtendState { tokens: LIMITS.burst, ..Default::default() },
            })
            .collect();
        let mut free_at = vec![0u64; cpus];
        let mut running: Vec<Option<usize>> = vec![None; cpus];
        let (mut queue, mut idle, mut turn) = (u64::MAX - 5_000_000, 0, 0u64);
        loop {
            let cpu = (0..cpus).min_by_key(|cpu| free_at[*cpu]).expect("there is one");
            let now = free_at[cpu];
            if now >= until {
                return (tasks, idle);
            }
            if let Some(last) = running[cpu].take() {
                turn += 1;
                tasks[last].runnable = !sleeps(last, turn);
                tasks[last].waiting_since = now;
            }
            for (index, task) in tasks.iter_mut().enumerate() {
                if !task.runnable && !running.contains(&Some(index)) && !sleeps(index, turn + 1) {
                    task.runnable = true;
                    task.waiting_since = now;
                    task.vtime = wake_vtime(task.vtime, queue, 6_000_000, 100_000_000);
                }
            }
            let ready = |i: usize| tasks[i].runnable && !running.contains(&Some(i));
            let next = (0..tasks.len())
                .filter(|i| ready(*i))
                .reduce(|a, b| if before(tasks[b].vtime, tasks[a].vtime) { b } else { a });
            let Some(next) = next else {
                idle += 1_000_000;
                free_at[cpu] = now + 1_000_000;
                turn += 1;
                continue;
            };
            let waiting = (0..tasks.len()).filter(|i| ready(*i)).count() as u32 - 1;
            let task = &mut tasks[next];
            task.longest_wait = task.longest_wait.max(now - task.waiting_since);
            let input =
                SliceIn { period: 24_000_000, floor: FLOOR, ceiling: 20_000_000, waiting: waiting / cpus as u32 };
            let mut ran = extend_repay(&mut task.account, slice(&input), FLOOR);
            while task.claims {
                match extend(&mut task.account, &LIMITS, Critical::Section as u32, now + ran) {
                    Extend::Granted(step) => ran += step,
                    _ => break,
                }
            }
            if before(queue, task.vtime) {
                queue = task.vtime;
            }
            task.got += ran;
            task.vtime = task.vtime.wrapping_add(charge(ran, task.weight));
            running[cpu] = Some(next);
            free_at[cpu] = now + ran;
        }
    }

    #[test]
    fn equal_tasks_get_equal_shares_though_one_always_claims_a_section() {
        let tasks = run(&[(100, true), (100, false), (100, false), (100, false)], 2, 10_000_000_000, |_, _| false).0;
        let mean = tasks.iter().map(|t| t.got).sum::<u64>() as f64 / 4.0;
        for task in &tasks {
            assert!((task.got as f64 / mean - 1.0).abs() < 0.02, "{} of {mean}", task.got);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

        #[test]
        fn nobody_starves_and_no_cpu_idles_while_somebody_waits(
            tasks in prop::collection::vec((prop_oneof![Just(25u64), Just(100), Just(300)], any::<bool>()), 2..12),
            cpus in 1usize..4,
            seed in any::<u64>(),
        ) {
            // Half of the tasks sleep through turns of their own.
            let sleeps = |i: usize, turn: u64| i % 2 == 1 && (turn ^ seed).wrapping_mul(i as u64 + 1) % 7 < 2;
            let (done, idle) = run(&tasks, cpus, 5_000_000_000, sleeps);
            let steady = tasks.len().div_ceil(2);
            if steady >= cpus {
                prop_assert_eq!(idle, 0, "work conservation: the steady tasks alone keep all CPUs busy");
            }
            // The lightest task's turn comes once all others have had what their weight gives them meanwhile.
            let sum: u64 = tasks.iter().map(|(weight, _)| weight).sum();
            let lightest = tasks.iter().map(|(weight, _)| *weight).min().expect("some");
            let bound = 21_000_000 * (sum / lightest + tasks.len() as u64) + 100_000_000;
            for task in &done {
                prop_assert!(task.longest_wait <= bound, "{} > {bound}", task.longest_wait);
            }
        }

        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(50..400u64, 2..8)) {
            let with: Vec<_> = weights.iter().map(|w| (*w, false)).collect();
            let (done, _) = run(&with, 1, 30_000_000_000, |_, _| false);
            let sum: u64 = weights.iter().sum();
            for (task, weight) in done.iter().zip(&weights) {
                let fair = 30e9 * *weight as f64 / sum as f64;
                prop_assert!((task.got as f64 - fair).abs() < 0.02 * 30e9, "weight {weight}: {} of {fair}", task.got);
            }
        }
    }
}
