use super::*;
use crate::event::{Event, Kind, flag};
use crate::file::{Host, RecordedVm};

const MS: u64 = 1_000_000;

fn event(ms: u64, kind: Kind, flags: u8, cpu: u16, tid: u32, other: u32) -> Event {
    Event { ns: 1000 * MS + ms * MS, kind, flags, cpu, tid, other, arg: 0 }
}

/// Two vCPUs (threads 10 and 11) of `web` and one of `db` (20, not recorded), on pCPU 3, for 100 ms.
pub(crate) fn recording() -> Recording {
    let host =
        Host { began_ns: 1000 * MS, ended_ns: 1100 * MS, pcpus: 4, daemon: true, complete: true, ..Host::default() };
    let web =
        RecordedVm { name: "web".into(), pid: 9, chosen: true, vcpus: vec![(0, 10), (1, 11)], ..RecordedVm::default() };
    let db = RecordedVm { name: "db".into(), pid: 19, chosen: false, vcpus: vec![(0, 20)], ..RecordedVm::default() };
    let names = [(10, (9, "CPU 0/KVM")), (30, (30, "stress")), (31, (30, "stress-worker")), (40, (9, "worker"))];
    let events = vec![
        event(0, Kind::State, flag::RUNNABLE, 3, 10, 0),
        event(0, Kind::State, 0, 3, 11, 0),
        // It ran until now; db's vCPU takes its place inside a critical section.
        event(20, Kind::Switch, flag::RUNNABLE | flag::CS_KNOWN | flag::CS, 3, 10, 20),
        event(30, Kind::Switch, 0, 3, 20, 31),
        event(35, Kind::Switch, 0, 3, 31, 10),
        // It polls for 5 ms, then sleeps, then is woken while stress runs.
        event(45, Kind::Switch, 0, 3, 10, 30),
        event(60, Kind::Wakeup, flag::OTHER_KNOWN, 3, 10, 30),
        event(62, Kind::Switch, 0, 3, 30, 10),
        Event { arg: 22 * MS, ..event(62, Kind::Halt, flag::WAITED, 3, 10, 0) },
        // It spins and gives way.
        event(70, Kind::Spin, 0, 3, 10, 0),
        Event { ns: 1070 * MS + MS / 2, ..event(0, Kind::Spin, 0, 3, 10, 0) },
        Event { arg: 1, ..event(80, Kind::Yield, 0, 3, 10, 11) },
        event(80, Kind::Switch, flag::RUNNABLE | flag::GAVE_WAY, 3, 10, 40),
        event(90, Kind::Migrate, flag::OTHER_KNOWN, 2, 10, 0),
        event(95, Kind::Switch, 0, 2, 0, 10),
    ];
    let names = names.map(|(tid, (tgid, name))| (tid, (tgid, name.to_owned()))).into_iter().collect();
    Recording { host, vms: vec![web, db], names, events, damaged: 0, missing: 0 }
}

#[test]
fn every_nanosecond_is_accounted_for_once() {
    let analysis = Analysis::of(&recording());
    let vcpu = &analysis.vms[0].vcpus[0];
    let ms = |state| vcpu.times.of(state) / MS;
    assert_eq!(ms(State::Running), 20 + 5 + 8 + 9 + 5);
    assert_eq!(ms(State::Polling), 5, "the halt began 22 ms before its end, 5 ms before the sleep");
    assert_eq!(ms(State::Holder), 15);
    assert_eq!(ms(State::Halted), 15);
    assert_eq!(ms(State::Ready), 2);
    assert_eq!(vcpu.times.of(State::Sibling), 15 * MS + MS / 2);
    assert_eq!(vcpu.times.total(), 100 * MS);
    assert!(vcpu.segments.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].state != pair[1].state));
    let idle = &analysis.vms[0].vcpus[1];
    assert_eq!(idle.times.of(State::Halted), 100 * MS, "it did nothing all the time");
}

#[test]
fn culprits_are_those_who_ran_on_the_pcpu_that_it_waited_for() {
    let analysis = Analysis::of(&recording());
    let vcpu = &analysis.vms[0].vcpus[0];
    let found: Vec<(&str, u64, u64)> =
        vcpu.culprits.iter().map(|c| (c.who.name.as_str(), c.ns / MS, c.holder_ns / MS)).collect();
    assert_eq!(found, [("db vCPU 0", 10, 10), ("stress (30)", 7, 5)], "threads of a process are one");
    assert_eq!((vcpu.preemptions, vcpu.preemptions_cs, vcpu.gave_way, vcpu.migrations), (1, 1, 1, 1));
    assert_eq!(vcpu.yields[0].to.name, "web vCPU 1");
    let last = vcpu.waits.last().unwrap();
    assert_eq!((last.reason, last.pcpu, last.ran[0].0.name.as_str()), (Reason::GaveWay, 2, "VMM of web"));
    assert_eq!(analysis.longest_waits[0].ns, 15 * MS);
    assert_eq!(analysis.longest_waits.len(), 2, "giving way is no wait that others caused");
}

#[test]
fn missing_events_give_times_that_are_not_known() {
    let mut recording = recording();
    // Its wake-up is lost: nobody knows how long it waited.
    recording.events.retain(|event| event.kind != Kind::Wakeup);
    let analysis = Analysis::of(&recording);
    assert_eq!(analysis.vms[0].vcpus[0].times.of(State::Unknown), 17 * MS);
    assert_eq!(analysis.vms[0].vcpus[0].times.total(), 100 * MS);
}

#[test]
fn a_process_whose_leader_was_not_met_is_one_all_the_same() {
    let mut recording = recording();
    recording.names.insert(30, (29, "first".into()));
    recording.names.insert(31, (29, "second".into()));
    let analysis = Analysis::of(&recording);
    let names: Vec<&str> = analysis.culprits.iter().map(|culprit| culprit.who.name.as_str()).collect();
    assert_eq!(names, ["db vCPU 0", "first (29)"]);
}

#[test]
fn a_vcpu_that_comes_late_has_no_time_before() {
    let mut recording = recording();
    recording.vms[0].vcpus.extend([(2, 12), (3, 13)]);
    recording.events.extend([
        event(40, Kind::State, flag::RUNNABLE, 3, 12, 0),
        event(40, Kind::State, 0, 3, 13, 0),
        event(50, Kind::Switch, 0, 1, 12, 0),
        // A state that its events already tell.
        event(60, Kind::State, 0, 3, 12, 0),
    ]);
    recording.events.sort_by_key(|event| event.ns);
    let states = [State::Unknown, State::Running, State::Halted];
    let analysis = Analysis::of(&recording);
    let ms = |vcpu: usize| states.map(|state| analysis.vms[0].vcpus[vcpu].times.of(state) / MS);
    assert_eq!(ms(2), [40, 10, 50]);
    assert_eq!(ms(3), [40, 0, 60]);
}

#[test]
fn a_quiet_recording_is_as_long_as_it_took() {
    let mut recording = recording();
    recording.host.ended_ns = recording.host.began_ns + 60_000 * MS;
    recording.events.truncate(2);
    let analysis = Analysis::of(&recording);
    assert_eq!(analysis.span_ns, 60_000 * MS);
    assert_eq!(analysis.vms[0].vcpus[1].times.of(State::Halted), 60_000 * MS);
    recording.events.clear();
    assert_eq!(Analysis::of(&recording).span_ns, 60_000 * MS);
}

#[test]
fn who_is_not_among_the_first_of_any_vcpu_can_be_the_first_of_all() {
    let mut recording = recording();
    recording.events.truncate(2);
    for (vcpu, tid) in [(0, 10), (1, 11)] {
        let cpu = vcpu as u16;
        recording.events.push(event(1, Kind::Switch, flag::RUNNABLE, cpu, tid, 100 * tid));
        // Twelve run for 2 ms each instead of this vCPU, and one a little less instead of both.
        let others = (1..12).map(|n| event(1 + 2 * n, Kind::Switch, 0, cpu, 100 * tid, 100 * tid + n as u32));
        recording.events.extend(others);
        recording.events.push(event(25, Kind::Switch, 0, cpu, 100 * tid, 99));
        recording.events.push(Event { ns: 1026 * MS + MS / 2, ..event(0, Kind::Switch, 0, cpu, 99, tid) });
    }
    recording.events.sort_by_key(|event| event.ns);
    let analysis = Analysis::of(&recording);
    let vm = &analysis.vms[0];
    let first = |culprits: &[Culprit]| (culprits[0].who.name.clone(), culprits[0].ns, culprits.len());
    assert_eq!(first(&vm.culprits), ("thread 99".into(), 3 * MS, CULPRITS));
    assert_eq!(vm.culprits, analysis.culprits);
    assert!(vm.vcpus.iter().all(|vcpu| vcpu.culprits.len() == CULPRITS && vcpu.culprits[0].ns == 2 * MS));
}

#[test]
fn what_came_before_the_begin_tells_the_state_and_counts_for_nothing() {
    let mut recording = recording();
    recording.host.began_ns = 1025 * MS;
    let analysis = Analysis::of(&recording);
    let vcpu = &analysis.vms[0].vcpus[0];
    assert_eq!(vcpu.times.of(State::Holder), 10 * MS, "it was preempted at 20 ms and came back at 35 ms");
    assert_eq!((vcpu.preemptions, vcpu.preemptions_cs, vcpu.gave_way, vcpu.wakeups), (0, 0, 1, 1));
    assert_eq!((vcpu.waits[0].start_ns, vcpu.waits[0].ns), (0, 10 * MS));
    assert!(vcpu.waits.iter().all(|wait| wait.ns > 0));
}

mod any {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_in_any_order_neither_panic_nor_lose_time(
            raw in proptest::collection::vec((0..120_u64, 1..8_u8, any::<u8>(), 0..3_u16, 8..13_u32, 8..13_u32, 0..40_u64), 0..60)
        ) {
            let mut recording = recording();
            recording.events = raw.into_iter().map(|(ms, kind, flags, cpu, tid, other, arg)| Event {
                arg: arg * MS, ..event(ms, Kind::new(kind).unwrap(), flags, cpu, tid, other)
            }).collect();
            recording.events.sort_by_key(|event| event.ns);
            let analysis = Analysis::of(&recording);
            for vcpu in &analysis.vms[0].vcpus {
                prop_assert_eq!(vcpu.times.total(), analysis.span_ns);
            }
        }
    }
}
