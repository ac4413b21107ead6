//! The decisions (C headers, also compiled into BPF) with numbers that only a hostile guest or a broken host writes.
//! The C is built with traps for undefined behaviour; the bounds that docs/security.md promises are asserted.

use arbitrary::{Result, Unstructured};
use entrain_policy::{entitle, guest, host};

pub(crate) fn run(data: &[u8]) {
    let mut data = Unstructured::new(data);
    let _ = extensions(&mut data);
    let _ = yields(&mut data);
    let _ = entitlements(&mut data);
    let _ = guest_words(&mut data);
}

/// A guest that claims critical sections as it likes gets burst + rate * time, and an event its bound.
fn extensions(data: &mut Unstructured<'_>) -> Result<()> {
    let limits = host::ExtendLimits {
        step: data.int_in_range(1..=2_000_000)?,
        event: data.int_in_range(0..=5_000_000)?,
        burst: data.int_in_range(0..=50_000_000)?,
        rate_ppm: data.int_in_range(0..=1_000_000)?,
    };
    let start = data.int_in_range(1..=u64::MAX / 2)?;
    let mut state = host::ExtendState { tokens: limits.burst, refilled: start, ..Default::default() };
    let (mut now, mut granted, mut event) = (start, 0u128, 0);
    for _ in 0..data.int_in_range(0..=32)? {
        now = now.saturating_add(data.arbitrary::<u32>()?.into());
        match host::extend(&mut state, &limits, data.arbitrary()?, now) {
            host::Extend::Granted(step) => {
                assert!(step > 0 && step <= limits.step.max(limits.event / 2));
                granted += u128::from(step);
                event += step;
            }
            host::Extend::NotCritical | host::Extend::EventSpent | host::Extend::BudgetSpent => {}
        }
        assert!(event <= limits.event && state.tokens <= limits.burst);
        if data.arbitrary()? {
            let slice = data.arbitrary()?;
            assert!(host::extend_repay(&mut state, slice, data.arbitrary()?) <= slice);
            event = 0;
        }
    }
    let refilled = u128::from(now - start) * u128::from(limits.rate_ppm) / 1_000_000;
    assert!(granted <= u128::from(limits.burst) + refilled + 1);
    Ok(())
}

fn yields(data: &mut Unstructured<'_>) -> Result<()> {
    let input = host::YieldIn {
        waiting: data.arbitrary()?,
        sibling: data.arbitrary()?,
        allowed: data.arbitrary()?,
        level: data.arbitrary()?,
        owes: data.arbitrary()?,
        named: data.arbitrary()?,
        next: data.arbitrary()?,
        turn: data.arbitrary()?,
    };
    let limits = host::YieldLimits { turn: 6_000_000 };
    if host::yield_to(&input, &limits) == host::Yield::Honoured {
        assert!(input.turn < limits.turn, "no yield makes a turn longer");
        assert!(input.sibling != 0 && input.waiting != 0 && input.allowed != 0, "a guest gives away only its own time");
    }
    let slice = host::SliceIn {
        period: data.arbitrary()?,
        floor: data.arbitrary()?,
        ceiling: data.arbitrary()?,
        waiting: data.arbitrary()?,
    };
    assert!(host::slice(&slice) >= slice.floor);
    let (ran, weight) = (data.arbitrary()?, data.arbitrary::<u64>()?.clamp(1, 10_000));
    assert!(host::charge_share(ran, weight << 10) <= 1_000_000_000_000);
    assert!(host::share(data.arbitrary()?, data.arbitrary()?, data.arbitrary()?) >= 1);
    Ok(())
}

/// No guest's wish gives it more than the host has, nor takes from another what is its own.
fn entitlements(data: &mut Unstructured<'_>) -> Result<()> {
    let capacity: u64 = data.int_in_range(0..=64 * 1024)?;
    let vms = (0..data.int_in_range(0..=8)?)
        .map(|_| {
            let demand = entitle::demand(data.arbitrary()?, data.arbitrary()?, data.arbitrary()?);
            Ok(entitle::Vm::new(data.arbitrary()?, demand, data.arbitrary()?))
        })
        .collect::<Result<Vec<_>>>()?;
    let got = entitle::entitle(&vms, capacity);
    let weights: u64 = vms.iter().map(|vm| vm.weight).sum();
    assert!(got.iter().map(|got| got.share).sum::<u64>() <= capacity);
    for (vm, got) in vms.iter().zip(&got) {
        assert!(got.share <= got.entitlement && got.entitlement <= vm.ceiling);
        assert!(got.entitlement >= (capacity * vm.weight / weights).min(vm.ceiling));
    }
    Ok(())
}

/// What the guest makes of the host's words.
fn guest_words(data: &mut Unstructured<'_>) -> Result<()> {
    let (features, nr) = (data.arbitrary()?, data.int_in_range(1..=256)?);
    let view = guest::vcpu_view(features, data.arbitrary()?, data.arbitrary()?);
    assert!(view.state <= guest::state::PREEMPTED && view.instant <= 1 && view.pcpu <= 0xffff);
    assert!((1..=1024).contains(&guest::scale(features, data.arbitrary()?)));
    let candidate = guest::Candidate {
        view,
        queued: data.arbitrary()?,
        burst: data.arbitrary()?,
        host_wait: data.arbitrary()?,
        capacity: data.arbitrary()?,
        stolen: data.arbitrary()?,
        ..Default::default()
    };
    assert!(guest::wake_price(&candidate, data.arbitrary()?) < guest::PRICE_NEVER);
    let mut vcpud = guest::Vcpud::default();
    let mut now: u64 = data.int_in_range(1..=u64::MAX / 2)?;
    for _ in 0..data.int_in_range(0..=16)? {
        now = now.saturating_add(data.arbitrary::<u32>()?.into());
        let floor = data.int_in_range(0..=nr)?;
        let entitlement = guest::entitlement(features, data.arbitrary()?, nr).map_or(-1, |e| e as i64);
        let (wants, ran, stolen) = (data.arbitrary()?, data.arbitrary()?, data.arbitrary()?);
        let (room, random) = (data.arbitrary()?, data.arbitrary()?);
        let input = guest::VcpudInput { now, nr_vcpus: nr, floor, wants, room, entitlement, ran, stolen, random };
        let keep = vcpud.step(&input);
        assert!((floor.max(1)..=nr).contains(&keep) && vcpud.first < nr, "{keep} of {nr} from {}", vcpud.first);
    }
    Ok(())
}
