//! The guest's decisions: bounds under whatever the host writes, order, stability.

use entrain_policy::guest::*;
use entrain_policy::host::{charge_share, wake_vtime};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        (any::<u64>(), any::<u64>(), any::<u64>()),
        (any::<bool>(), any::<bool>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()),
    )
        .prop_map(|((features, state, instant), (idle, previous, queued, burst, host_wait, capacity, stolen))| {
            Candidate {
                view: vcpu_view(features, state, instant),
                parked: 0,
                idle: idle.into(),
                previous: previous.into(),
                far: u32::from(queued % 3 == 0),
                held: u32::from(burst % 5 == 0),
                queued,
                burst,
                host_wait,
                capacity,
                stolen,
            }
        })
}

fn halted(instant: bool) -> Candidate {
    Candidate {
        view: VcpuView { state: state::HALTED, instant: instant.into(), ..VcpuView::default() },
        idle: 1,
        capacity: 1024,
        ..Candidate::default()
    }
}

fn running(queued: u32, burst: u64) -> Candidate {
    Candidate {
        view: VcpuView { state: state::RUNNING, ..VcpuView::default() },
        queued,
        burst,
        capacity: 1024,
        ..Candidate::default()
    }
}

proptest! {
    #[test]
    fn a_view_is_always_one_of_the_known_states(features: u64, state: u64, instant: u64) {
        let view = vcpu_view(features, state, instant);
        prop_assert!(view.state <= state::PREEMPTED);
        prop_assert!(view.instant <= 1 && view.extended <= 1 && view.pcpu <= 0xffff);
        prop_assert!(view.instant == 0 || matches!(view.state, state::RUNNING | state::HALTED));
        // Without the feature nothing is believed.
        prop_assert_eq!(vcpu_view(features & !(1 << 3), state, instant), VcpuView::default());
    }

    #[test]
    fn scales_and_entitlements_stay_in_range(features: u64, value: u64, nr in 1u32..=256) {
        prop_assert!((1..=1024).contains(&scale(features, value)));
        if let Some(entitled) = entitlement(features, value, nr) {
            prop_assert!(entitled <= u64::from(nr) * 1024);
        }
    }

    #[test]
    fn a_silent_host_expires_after_a_second(start in 1u64..1 << 60, beat in 1u64..1 << 48, gap in 0u64..10_000 * MS) {
        let mut heartbeat = Heartbeat::default();
        prop_assert!(host_alive(&mut heartbeat, beat, start));
        // The same beat again, however often it is read, does not make the host younger.
        for step in 1..=4 {
            let now = start + gap * step / 4;
            prop_assert_eq!(host_alive(&mut heartbeat, beat, now), now - start < 1000 * MS);
        }
        prop_assert!(host_alive(&mut heartbeat, beat ^ 1 | 2, start + gap) || beat ^ 1 | 2 == beat);
    }

    #[test]
    fn a_price_is_finite_and_monotone(c in candidate(), util in 0u32..=2048, more in 1u64..1 << 40) {
        let price = wake_price(&c, util);
        prop_assert!(price < 1024 * 200 * 1000 * MS);
        let longer = Candidate { queued: c.queued.saturating_add(more as u32 & 0xff), ..c };
        prop_assert!(wake_price(&longer, util) >= price);
        let burstier = Candidate { burst: c.burst.saturating_add(more), ..c };
        prop_assert!(wake_price(&burstier, util) >= price);
        let faster = Candidate { capacity: c.capacity.saturating_add(more as u32 & 0x3ff), ..c };
        prop_assert!(wake_price(&faster, util) <= price);
        let here = Candidate { previous: 1, ..c };
        prop_assert!(wake_price(&here, util) <= price);
        if c.view.state == state::HALTED {
            let sure = Candidate { view: VcpuView { instant: 1, ..c.view }, ..c };
            prop_assert!(wake_price(&sure, util) <= price);
        }
        prop_assert_eq!(wake_price(&Candidate { parked: 1, ..c }, util), PRICE_NEVER);
        let parked = Candidate { parked: 1, ..c };
        prop_assert!(!wake_direct(&parked));
    }

    #[test]
    fn nothing_waits_for_a_free_vcpu(victim_state in 0u32..=8, parked: bool, idle: bool, own: u64, head: u64) {
        let takeover = Takeover {
            victim_state,
            victim_parked: parked.into(),
            victim_idle: idle.into(),
            own_vtime: own,
            head_vtime: head,
            ..Takeover::default()
        };
        prop_assert!(take_over(&takeover));
    }

    #[test]
    fn who_starts_sooner_where_it_is_is_left_there(victim_state in 0u32..=8, own: u64, head: u64) {
        let takeover = Takeover { victim_state, own_vtime: own, head_vtime: head, stays: 1, ..Takeover::default() };
        prop_assert!(!take_over(&takeover));
    }

    #[test]
    fn nobody_waits_for_longer_than_a_kick_costs(stay: u64, ahead: u64, kick: u64) {
        if wake_stays(stay, ahead, kick) {
            let waits = (1 + u128::from(ahead)) * u128::from(stay);
            // Whatever a clock said: 100 ms is no time that a wake-up takes, nor its sender.
            prop_assert!(waits < u128::from(kick.min(200 * MS)));
            prop_assert!(wake_stays(stay, ahead / 2, kick) && wake_stays(stay, ahead, kick.saturating_mul(2)));
        }
        prop_assert!(!wake_stays(stay, ahead, 0));
    }

    #[test]
    fn what_waits_behind_a_preempted_vcpu_needs_no_advantage(own: u64, ahead in 1u64..1 << 62, slice: u64) {
        let mut takeover = Takeover {
            victim_state: state::PREEMPTED,
            own_work: 1,
            own_vtime: own,
            head_vtime: own.wrapping_sub(ahead),
            slice,
            ..Takeover::default()
        };
        prop_assert!(take_over(&takeover));
        // Older work of one's own is never left for it.
        takeover.head_vtime = own.wrapping_add(ahead);
        prop_assert!(!take_over(&takeover));
    }

    #[test]
    fn load_stays_on_its_scale(load: u64, worked: u64, elapsed: u64, capacity: u32, perf: u32) {
        prop_assert!(load_update(load, worked, elapsed, capacity, perf) <= 1024 * 1024);
        prop_assert!(util(load) <= 1024);
        prop_assert!(stolen_share(worked, elapsed) <= 1024);
        prop_assert!(real_time(worked, elapsed) <= worked);
        prop_assert!(mean(load, worked) <= 10_000_000_000);
    }

    #[test]
    fn load_settles_at_what_is_worked(share in 0u64..=1024, capacity in 1u32..=1024) {
        let mut load = 0;
        for _ in 0..200 {
            load = load_update(load, share * 4 * MS / 1024, 4 * MS, capacity, 1024);
        }
        let expected = share * u64::from(capacity);
        prop_assert!(load <= expected + 1024 && load + 2048 >= expected, "{} for {}", load, expected);
    }

    #[test]
    fn the_controller_keeps_within_bounds_whatever_it_is_told(
        inputs in prop::collection::vec(
            (0u64..2000 * MS, any::<u32>(), any::<u32>(), any::<i64>(), any::<u64>(), any::<u64>()), 1..200),
        nr_vcpus in 1u32..=256,
    ) {
        let mut vcpud = Vcpud::default();
        let mut now = 1;
        for (step, floor, wants, entitlement, ran, stolen) in inputs {
            now += step;
            let room = wants / 2;
            let input = VcpudInput { now, nr_vcpus, floor, wants, room, entitlement, ran, stolen, random: ran ^ stolen };
            let keep = vcpud.step(&input);
            prop_assert!(vcpud.first < nr_vcpus);
            prop_assert!(keep >= floor.clamp(1, nr_vcpus) && keep <= nr_vcpus);
        }
    }

    #[test]
    fn a_steady_entitlement_is_reached_and_kept(entitlement in 0i64..=16 * 1024, nr_vcpus in 1u32..=16) {
        let mut vcpud = Vcpud::default();
        let mut keeps = vec![];
        for tick in 1..200 {
            keeps.push(told(&mut vcpud, tick * MS, nr_vcpus, entitlement));
        }
        let last = u64::from(*keeps.last().unwrap());
        prop_assert!(keeps[50..].iter().all(|&keep| u64::from(keep) == last));
        // Never a vCPU for which less than a sixteenth of a pCPU is left, never one too few by more than that.
        let entitlement = (entitlement as u64).min(u64::from(nr_vcpus) * 1024);
        prop_assert!(last == 1 || entitlement > (last - 1) * 1024 + 64);
        prop_assert!(entitlement <= last * 1024 + 192);
    }

    #[test]
    fn an_entitlement_that_trembles_does_not_flap(
        whole in 1i64..=8, noise in prop::collection::vec(-60i64..=60, 400),
    ) {
        let mut vcpud = Vcpud::default();
        let keeps: Vec<u32> = noise.iter().zip(1..)
            .map(|(noise, tick)| told(&mut vcpud, tick * MS, 8, whole * 1024 + noise))
            .collect();
        let changes = keeps.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(changes <= 1, "{changes} changes: {keeps:?}");
        prop_assert_eq!(i64::from(*keeps.last().unwrap()), whole);
    }

    #[test]
    fn changes_are_rare_whatever_the_entitlement_does(
        entitlements in prop::collection::vec(0i64..8 * 1024, 1000),
    ) {
        let mut vcpud = Vcpud::default();
        let mut shrinks = vec![];
        let mut last = 8;
        for (entitlement, tick) in entitlements.into_iter().zip(1..) {
            let keep = told(&mut vcpud, tick * MS, 8, entitlement);
            if keep < last {
                shrinks.push(tick);
            }
            last = keep;
        }
        prop_assert!(shrinks.windows(2).all(|pair| pair[1] - pair[0] >= 19));
    }

    #[test]
    fn pinned_vcpus_are_kept_and_the_rest_filled_up(pinned in prop::collection::vec(any::<bool>(), 1..=256), keep in 1u32..=256, first in 0u32..256) {
        let kept = vcpud_kept(&pinned, keep, first);
        let count = |list: &[bool]| list.iter().filter(|&&set| set).count() as u32;
        prop_assert!(pinned.iter().zip(&kept).all(|(&pinned, &kept)| kept || !pinned));
        prop_assert_eq!(count(&kept), keep.min(pinned.len() as u32).max(count(&pinned)));
    }

    #[test]
    fn whoever_comes_to_a_vcpu_is_left_in_peace(cost in any::<u64>(), ran in any::<u64>()) {
        let (fresh, now) = (peace(cost, 0), peace(cost, ran));
        prop_assert!(fresh <= MS, "a millisecond at most: {}", fresh);
        prop_assert!(now >= fresh / 2 && now <= fresh, "{} of {}", now, fresh);
        prop_assert!(now + ran.min(fresh.div_ceil(2)) >= fresh, "only what it has worked counts: {} of {}", now, fresh);
    }

    #[test]
    fn slices_shrink_with_the_queue_and_end_at_the_floor(waiting in 0u32..100_000) {
        prop_assert!(slice(waiting) >= slice(waiting + 1));
        prop_assert!(slice(waiting) >= MS);
    }
}

/// A step of a guest whose host entitles it to so much, and gives it that: what it wants beyond is steal.
fn told(vcpud: &mut Vcpud, now: u64, nr_vcpus: u32, entitlement: i64) -> u32 {
    let keep = if vcpud.keep == 0 { nr_vcpus } else { vcpud.keep };
    let ran = (u64::from(keep) * 1024).min(entitlement as u64) * MS / 1024;
    let stolen = u64::from(keep) * MS - ran;
    vcpud.step(&VcpudInput { now, nr_vcpus, wants: nr_vcpus, entitlement, ran, stolen, ..VcpudInput::default() })
}

#[test]
fn an_instant_vcpu_beats_every_queue_and_a_short_queue_beats_a_busy_pcpu() {
    let instant = wake_price(&halted(true), 0);
    let busy = wake_price(&halted(false), 0);
    assert!(instant < wake_price(&running(0, 200_000), 0));
    assert!(wake_price(&running(1, 200_000), 0) < busy, "0.4 ms in a queue against 3 ms at the host");
    assert!(wake_price(&running(2, 4 * MS), 0) > busy, "12 ms in a queue against 3 ms at the host");
    // The previous one of two equals, but not a previous one that is busy.
    let previous = Candidate { previous: 1, ..halted(true) };
    assert!(wake_price(&previous, 0) < instant);
    assert!(wake_price(&Candidate { previous: 1, ..running(0, MS) }, 0) > instant);
}

#[test]
fn a_big_task_prefers_the_faster_pcpu_and_a_small_one_its_cache() {
    let slow_previous = Candidate { previous: 1, capacity: 400, ..halted(true) };
    let fast = halted(true);
    assert!(wake_price(&fast, 800) < wake_price(&slow_previous, 800));
    assert!(wake_price(&fast, 100) > wake_price(&slow_previous, 100));
}

#[test]
fn a_neighbour_that_leaves_is_noticed_at_the_first_step() {
    let mut vcpud = Vcpud::default();
    for tick in 1..100 {
        told(&mut vcpud, tick * MS, 4, 1024);
    }
    assert_eq!(vcpud.keep, 1);
    assert_eq!(told(&mut vcpud, 100 * MS, 4, 4096), 4);
    // And its return when the host has said it twice, 20 ms apart, not before.
    let back: Vec<u32> = (101..160).map(|tick| told(&mut vcpud, tick * MS, 4, 1024)).collect();
    assert_eq!(back.iter().position(|&keep| keep == 1), Some(41));
}

/// One look of the host that finds a neighbour for a moment parks nothing: it stands until the next, 20 ms later.
#[test]
fn one_look_of_the_host_parks_nothing() {
    let mut vcpud = Vcpud::default();
    let keeps: Vec<u32> =
        (1..1000).map(|tick| told(&mut vcpud, tick * MS, 4, if tick / 20 % 10 == 5 { 1024 } else { 4096 })).collect();
    assert!(keeps.iter().all(|&keep| keep == 4), "{keeps:?}");
}

/// Steps of 4 ms of a guest with `vcpus` vCPUs that want `want` of their time, and get what `withheld` leaves, 0..1.
fn modes(vcpus: u64, want: f64, steps: u64, withheld: impl Fn(u64) -> f64) -> Vec<bool> {
    let mut mode = Mode::default();
    let ns = |part: f64| (part * 4e6) as u64;
    (1..=steps)
        .map(|step| {
            let stolen = want * withheld(step);
            let now = step * 4 * MS;
            let stolen_each = host_withheld(ns(stolen), 4 * MS);
            let (ran, stolen) = (vcpus * ns(want - stolen), vcpus * stolen_each);
            mode.step(&ModeInput { now, ran, stolen, length: 4 * MS, ..ModeInput::default() })
        })
        .collect()
}

#[test]
fn a_neighbour_makes_a_guest_contended_within_two_steps_and_its_leaving_calm() {
    let modes = modes(4, 1.0, 200, |step| if (20..100).contains(&step) { 0.5 } else { 0.0 });
    assert!(modes[..19].iter().all(|contended| !contended));
    assert!(modes[21..100].iter().all(|contended| *contended), "{modes:?}");
    assert!(modes[160..].iter().all(|contended| !contended), "{modes:?}");
}

#[test]
fn what_wake_ups_take_on_an_idle_host_is_no_contention() {
    for vcpus in [1, 4, 64] {
        for want in [0.001, 0.2, 1.0] {
            assert!(modes(vcpus, want, 100, |_| 0.05).iter().all(|contended| !contended), "{vcpus}, {want}");
        }
    }
}

proptest! {
    #[test]
    fn a_parked_vcpu_is_contention_and_garbage_does_no_harm(
        inputs in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), 0u32..3), 1..100),
    ) {
        let mut mode = Mode::default();
        for ((ran, stolen, length, held, parked), now) in inputs.into_iter().zip(1..) {
            let contended = mode.step(&ModeInput { now: now * MS, ran, stolen, length, held, parked });
            prop_assert!(contended || parked == 0);
        }
    }

    #[test]
    fn how_long_the_host_lets_wait_counts_each_wait_and_is_bounded(
        rounds in prop::collection::vec((0u64..1 << 50, 0u64..1 << 24, 0u64..1 << 20), 1..200),
    ) {
        let mut mean = 0;
        for (waited, changes, preemptions) in rounds {
            mean = host_wait_mean(mean, waited, host_waits(changes, preemptions));
            prop_assert!(mean <= 100 * MS);
        }
    }
}

/// A vCPU that halts a thousand times for each time that it is preempted, and waits 20 µs at each wake-up.
#[test]
fn the_waits_of_wake_ups_are_not_those_of_preemptions() {
    let mut mean = 0;
    for _ in 0..100 {
        let (wakeups, preemptions) = (1000, 1);
        let waits = host_waits(3 * wakeups + 2 * preemptions, preemptions);
        assert_eq!(waits, wakeups + preemptions);
        mean = host_wait_mean(mean, wakeups * 20_000 + 3 * MS, waits);
    }
    assert!((20_000..30_000).contains(&mean), "{mean}");
}

#[test]
fn a_vcpu_that_another_class_holds_or_the_vmm_blocks_is_no_bargain() {
    let free = wake_price(&running(0, 20_000), 0);
    assert!(wake_price(&Candidate { held: 1, ..running(0, 20_000) }, 0) > free + MS);
    let blocked = Candidate { idle: 0, burst: 20_000, ..halted(true) };
    assert!(wake_price(&blocked, 0) > free + MS);
    let near = halted(true);
    assert!(wake_price(&Candidate { far: 1, ..near }, 0) > wake_price(&near, 0));
}

/// A guest of four busy vCPUs, entitled to one of two pCPUs, whose neighbour works when `works(t)` says so.
fn beside(works: impl Fn(u64) -> bool, milliseconds: u64) -> Vec<u32> {
    let mut vcpud = Vcpud::default();
    (1..=milliseconds)
        .map(|t| {
            let keep = if vcpud.keep == 0 { 4 } else { vcpud.keep };
            let pcpus = if works(t) { 1 } else { 2 };
            let ran = u64::from(keep).min(pcpus) * MS;
            let (stolen, room) = (u64::from(keep) * MS - ran, if pcpus > u64::from(keep) { 4 - keep } else { 0 });
            let all = VcpudInput { now: t * MS, nr_vcpus: 4, wants: 8, entitlement: 1024, ..VcpudInput::default() };
            vcpud.step(&VcpudInput { room, ran, stolen, ..all })
        })
        .collect()
}

/// Whatever the host's word is by then: the pCPU idles, the guest has work, nobody waits.
#[test]
fn a_pcpu_that_idles_is_taken_within_two_ms_and_kept_until_its_owner_is_back() {
    let keeps = beside(|t| !(200..600).contains(&t), 800);
    assert!(keeps[100..200].iter().all(|&keep| keep == 1), "{keeps:?}");
    assert!(keeps[202..599].iter().all(|&keep| keep == 2), "{keeps:?}");
    let back = keeps[600..].iter().position(|&keep| keep == 1);
    assert!(back.is_some_and(|ms| ms <= 45), "{back:?}");
}

/// One that rests for 3 ms now and then: each time its pCPU is taken it has to wait for its return.
#[test]
fn pauses_of_a_neighbour_are_no_room_after_some_mistakes() {
    let keeps = beside(|t| t % 60 > 3, 4000);
    let more = keeps[2000..].iter().filter(|&&keep| keep > 1).count();
    assert!(more < 200, "{more} of 2,000 ms with a vCPU too many");
}

/// A host whose word is too good (a limit, a real-time task, vCPUs bound to one pCPU): the steal time is believed.
#[test]
fn steal_time_bounds_what_the_host_says() {
    let mut vcpud = Vcpud::default();
    let keeps: Vec<u32> = (1..=2000)
        .map(|t| {
            let keep = if vcpud.keep == 0 { 4 } else { vcpud.keep };
            let (ran, stolen) = (MS, u64::from(keep - 1) * MS);
            let input = VcpudInput { now: t * MS, nr_vcpus: 4, wants: 8, entitlement: 3072, ..VcpudInput::default() };
            vcpud.step(&VcpudInput { ran, stolen, ..input })
        })
        .collect();
    let more = keeps[500..].iter().filter(|&&keep| keep > 1).count();
    assert!(more < 150, "{more} of 1,500 ms with a vCPU too many");
}

/// Two guests on two pCPUs to which their vCPUs are bound alike: both kept vCPU 0, on one and the same pCPU.
#[test]
fn guests_bound_alike_come_to_use_different_pcpus() {
    for seed in 1..50u64 {
        let mut guests = [Vcpud::default(); 2];
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut apart = 0;
        for t in 1..=6000 {
            let apart_now = guests[0].keep == 1 && guests[1].keep == 1 && guests[0].first % 2 != guests[1].first % 2;
            apart += u64::from(t > 3000 && apart_now);
            for guest in &mut guests {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let keep = if guest.keep == 0 { 4 } else { guest.keep };
                // Each vCPU would compute all the time; four of them on two pCPUs, two of each.
                let ran = if keep == 1 && apart_now { MS } else { u64::from(keep) * MS / 2 };
                let stolen = u64::from(keep) * MS - ran;
                let input = VcpudInput { now: t * MS, nr_vcpus: 4, wants: 8, ran, stolen, ..VcpudInput::default() };
                guest.step(&VcpudInput { entitlement: 1024, random: random >> 33, ..input });
            }
        }
        assert!(apart > 2000, "seed {seed}: on different pCPUs for {apart} of 3,000 ms");
    }
}

/// A busy guest that hears nothing of its host.
fn silent(now: u64, nr_vcpus: u32, ran: u64, stolen: u64) -> VcpudInput {
    VcpudInput { now, nr_vcpus, wants: 2 * nr_vcpus, entitlement: -1, ran, stolen, ..VcpudInput::default() }
}

/// A guest of four busy vCPUs on a host that gives it `pcpus(t)`: what it runs is what it gets, the rest is steal.
fn on_a_silent_host(pcpus: impl Fn(u64) -> f64, milliseconds: u64) -> Vec<u32> {
    let mut vcpud = Vcpud::default();
    let mut keep = 4;
    (1..=milliseconds)
        .step_by(4)
        .map(|t| {
            let ran = (pcpus(t).min(f64::from(keep)) * 4e6) as u64;
            let stolen = u64::from(keep) * 4 * MS - ran;
            keep = vcpud.step(&silent(t * MS, 4, ran, stolen));
            keep
        })
        .collect()
}

#[test]
fn without_a_host_it_shrinks_to_what_it_gets_and_probes_ever_more_seldom() {
    let keeps = on_a_silent_host(|_| 1.0, 4000);
    assert!(keeps[10..].iter().all(|&keep| keep <= 2), "{keeps:?}");
    let wrong = |part: &[u32]| part.iter().filter(|&&keep| keep > 1).count();
    let (first, second) = keeps[10..].split_at(keeps.len() / 2);
    assert!(wrong(second) * 2 < wrong(first).max(1) + 16, "{} then {}", wrong(first), wrong(second));
    assert!(wrong(second) * 20 < second.len() * 2, "more than a tenth of the time one vCPU too many");
}

#[test]
fn without_a_host_it_grows_back_when_steal_ends() {
    let keeps = on_a_silent_host(|t| if t < 1000 { 1.0 } else { 4.0 }, 4000);
    assert_eq!(*keeps.last().unwrap(), 4, "{keeps:?}");
}

/// A guest of 64 vCPUs that had shrunk to one: growing one by one it would need more than a second, and with a pause
/// after each step that was right it needed one pause for each.
#[test]
fn without_a_host_a_big_guest_grows_back_in_doubled_steps_without_a_pause() {
    let mut vcpud = Vcpud::default();
    let mut keep = 64;
    let (mut first_at, mut all_at) = (None, None);
    for t in (4..8000u64).step_by(4) {
        let pcpus: u64 = if t < 4000 { 1 } else { 64 };
        let ran = pcpus.min(u64::from(keep)) * 4 * MS;
        let stolen = u64::from(keep) * 4 * MS - ran;
        keep = vcpud.step(&silent(t * MS, 64, ran, stolen));
        if t > 4000 && keep > 2 {
            first_at.get_or_insert(t);
        }
        if t > 4000 && keep == 64 {
            all_at.get_or_insert(t);
        }
    }
    // The pause before the first probe is up to a second by then, for probes that were mistakes.
    let (first, all) = (first_at.expect("a probe"), all_at.expect("all in use"));
    assert!(first < 4000 + 1100 && all < first + 7 * 24, "{first}, {all}");
}

/// In user mode steal is read every 100 ms: one look was as long as a probe had to last to count as right.
#[test]
fn a_probe_is_judged_by_more_than_one_look() {
    let mut vcpud = Vcpud::default();
    let mut keep = 4u32;
    let keeps: Vec<u32> = (1..=200)
        .map(|look| {
            let ran = 100 * MS;
            keep = vcpud.step(&silent(look * 100 * MS, 4, ran, u64::from(keep - 1) * 100 * MS));
            keep
        })
        .collect();
    let wrong = keeps[50..].iter().filter(|&&keep| keep > 1).count();
    assert!(wrong * 8 < 150, "{wrong} of 150 looks with a vCPU too many: {keeps:?}");
}

/// Time of the last task, of all on one vCPU, where each has its turn when its clock is the least.
fn time_of_last(shares: &[u64]) -> f64 {
    let total: u64 = shares.iter().sum();
    let (mut now, mut ran) = (0, 0);
    let mut clocks = vec![0; shares.len()];
    let turns = 20_000;
    for _ in 0..turns {
        let next = (0..clocks.len()).min_by_key(|&i| clocks[i]).unwrap();
        clocks[next] += charge_share(4 * MS, shares[next]);
        now += charge_share(4 * MS, total);
        clocks[next] = wake_vtime(clocks[next], now, 4 * MS, debt(shares[next], total));
        ran += u64::from(next + 1 == shares.len());
    }
    ran as f64 / f64::from(turns)
}

#[test]
fn a_crowd_in_a_cgroup_takes_no_more_than_its_weight() {
    let crowd: Vec<u64> = [[2 * 1024; 50].as_slice(), &[100 * 1024]].concat();
    let share = time_of_last(&crowd);
    assert!((0.45..0.55).contains(&share), "one task of a group as heavy as that of fifty others had {share}");
}

proptest! {
    #[test]
    fn no_debt_is_waited_for_so_long_that_the_kernel_loses_patience(share in 1..10_000_000u64, others in 0..1u64 << 40) {
        let total = share + others;
        prop_assert!(debt(share, total) <= charge_share(4_000 * MS, total));
    }
}
