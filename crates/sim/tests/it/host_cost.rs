//! What the host's scheduler, and what watches its vCPUs, does for each event (issue 26): calls out of BPF and atomics.

use entrain_sim::kernel::Kernel;
use entrain_sim::kernel::counts::{Count, Kind};
use entrain_sim::kernel::topology::Shape;
use entrain_sim::program::Step::{Compute, Done, Post, PostSync, Sleep, Wait};
use entrain_sim::program::Time::{Fixed, Mean};
use entrain_sim::program::{MS, SEC, Step, US};
use entrain_sim::scenario::{Arm, guest_in, host, tasks};
use entrain_sim::world::{HOST, Policy};

/// Calls and atomics of one event, in the mean. Of the look-ups those count that are calls on a real kernel.
#[derive(Debug)]
struct Cost {
    calls: f64,
    atomics: f64,
}

impl Cost {
    fn of(count: Count) -> Self {
        assert!(count.events > 1_000, "{count:?}");
        Self {
            calls: count.per_event(count.operations + count.helpers + count.lookups - count.inlined),
            atomics: count.per_event(count.atomics),
        }
    }
}

/// Two guests with 4 vCPUs on 2 pCPUs, each vCPU in a cgroup of its own as libvirt has them, whose tasks wake one another
/// and compute: what a wake-up costs the host, and what a switch.
fn costs(paired: bool) -> (Cost, Cost) {
    let arm = Arm { host: Policy::Entrain, guest: Policy::Eevdf, paired, tunables: &[] };
    let mut world = host(1, Shape::flat(2), arm);
    let slice = world.add_group(HOST, Kernel::ROOT, 100);
    for _ in 0..2 {
        let scope = world.add_group(HOST, slice, 100);
        let above = world.add_group(HOST, scope, 100);
        let m = guest_in(&mut world, 4, arm, above);
        for vcpu in 0..4 {
            let own = world.add_group(HOST, above, 100);
            let thread = world.thread_of(m, vcpu);
            world.move_task(HOST, thread, own);
        }
        let client: &[Step] = &[Sleep(Mean(400 * US)), Compute(Fixed(5 * US)), Post(1), Wait(2), Done];
        tasks(&mut world, m, "client", 2, client);
        tasks(&mut world, m, "server", 2, &[Wait(1), Compute(Mean(20 * US)), PostSync(2)]);
        tasks(&mut world, m, "hog", 1, &[Compute(Fixed(10 * MS)), Done]);
    }
    world.run(SEC);
    let kernel = &world.machines[0].kernel;
    assert_eq!(kernel.failed, None);
    (Cost::of(kernel.counts.of(Kind::Wake)), Cost::of(kernel.counts.of(Kind::Switch)))
}

/// The bounds are those of what was reached, and a tenth. A kernel's own scheduler makes no calls; at 15 ns each, these are
/// what a guest pays for ours.
#[test]
fn an_event_costs_so_many_calls() {
    let bounds =
        [(false, "silent guests", [(18.6, 5.0), (27.3, 5.9)]), (true, "paired guests", [(20.7, 9.4), (29.5, 18.2)])];
    for (paired, name, [of_wake, of_switch]) in bounds {
        let (wake, switch) = costs(paired);
        println!("{name}: a wake-up {wake:.1?}, a switch {switch:.1?}");
        for (what, cost, (calls, atomics)) in [("wake-up", wake, of_wake), ("switch", switch, of_switch)] {
            assert!(cost.calls <= calls && cost.atomics <= atomics, "{name}: a {what} makes {cost:?}");
        }
    }
}
