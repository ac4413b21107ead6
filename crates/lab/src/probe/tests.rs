use super::*;
use entrain_workloads::probe::{CpuTimes, SCHEMA, SchedExt, Vcpu};
use proptest::prelude::*;

fn counters(list: &[(&str, u64)]) -> Counters {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn vm(id: &str, exits: u64, ran: u64, waited: u64) -> Vm {
    Vm {
        id: id.into(),
        name: "vm".into(),
        counters: counters(&[("exits", exits), ("halt_exits", exits / 10)]),
        vcpus: vec![Vcpu { tid: 7, run_ns: ran, wait_ns: waited, runs: ran / 1000 }],
    }
}

fn snapshot(at_s: u64, switches: u64, vms: Vec<Vm>) -> Snapshot {
    Snapshot {
        schema: SCHEMA,
        at_ns: at_s * 1_000_000_000,
        context_switches: switches,
        interrupts: counters(&[("reschedule", switches / 2)]),
        vms,
        ..Snapshot::default()
    }
}

fn value(readings: &[Reading], name: &str) -> Option<f64> {
    readings.iter().find(|reading| reading.metric == name).map(|reading| reading.value)
}

#[test]
fn counters_become_rates() {
    let before = snapshot(10, 1000, vec![vm("1-2", 100, 1_000_000, 0)]);
    let after = snapshot(12, 5000, vec![vm("1-2", 700, 4_000_000, 1_000_000)]);
    let readings = host(&before, &after).unwrap();
    assert_eq!(value(&readings, "context_switches"), Some(2000.0));
    assert_eq!(value(&readings, "ipi_reschedule"), Some(1000.0));
    assert_eq!(value(&readings, "exits"), Some(300.0));
    assert_eq!(value(&readings, "exits_halt"), Some(30.0));
    assert_eq!(value(&readings, "vcpu_wait"), Some(0.25));
    assert_eq!(value(&readings, "vcpu_runs"), Some(1500.0));
    assert_eq!(value(&readings, "exits_wfe"), None, "a counter that is not there is not zero");
    assert_eq!(value(&readings, "scx_enabled"), None);
}

#[test]
fn a_vm_that_came_or_went_meanwhile_is_left_out() {
    let before = snapshot(10, 0, vec![vm("1-2", 100, 10, 0), vm("9-9", 5, 10, 0)]);
    let after = snapshot(11, 0, vec![vm("1-2", 150, 20, 0), vm("3-4", 1_000_000, 10, 0)]);
    assert_eq!(value(&host(&before, &after).unwrap(), "exits"), Some(50.0));
}

#[test]
fn the_schedulers_state_is_told() {
    let before = snapshot(1, 0, Vec::new());
    let scx = SchedExt { state: "enabled".into(), ..SchedExt::default() };
    let after = Snapshot { sched_ext: Some(scx), ..snapshot(2, 0, Vec::new()) };
    assert_eq!(value(&host(&before, &after).unwrap(), "scx_enabled"), Some(1.0));
}

#[test]
fn steal_is_a_share_of_the_time_that_was_wanted() {
    let before = snapshot(1, 0, Vec::new());
    let cpu = CpuTimes { user_ns: 30, system_ns: 30, idle_ns: 1000, steal_ns: 40, guest_ns: 0 };
    let after = Snapshot { cpu, ..snapshot(2, 0, Vec::new()) };
    assert_eq!(value(&guest(&before, &after).unwrap(), "guest_steal"), Some(0.4));
    assert_eq!(value(&guest(&before, &after).unwrap(), "guest_system"), Some(0.5));
}

#[test]
fn a_hosts_own_time_is_told_apart_from_its_guests() {
    let cpu = CpuTimes { user_ns: 700, system_ns: 100, idle_ns: 200, steal_ns: 0, guest_ns: 600 };
    let after = Snapshot { cpu, ..snapshot(2, 0, Vec::new()) };
    assert_eq!(value(&host(&snapshot(1, 0, Vec::new()), &after).unwrap(), "host_system"), Some(0.1));
}

#[test]
fn a_reboot_in_between_is_an_error() {
    assert!(matches!(host(&snapshot(10, 1000, vec![]), &snapshot(2, 5, vec![])), Err(ProbeError::Restarted)));
    assert!(matches!(guest(&snapshot(10, 1000, vec![]), &snapshot(12, 5, vec![])), Err(ProbeError::Restarted)));
}

#[test]
fn another_version_is_refused() {
    let json = serde_json::to_string(&Snapshot { schema: 99, ..snapshot(1, 1, vec![]) }).unwrap();
    assert!(parse(&json).unwrap_err().to_string().contains("form 99"));
    assert!(parse("command not found").is_err());
}

proptest! {
    #[test]
    fn every_reading_is_finite_and_not_negative(
        then in (1u64..1000, 0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 50, 0u64..1 << 50),
        grow in (1u64..1000, 0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 50, 0u64..1 << 50),
    ) {
        let before = snapshot(then.0, then.1, vec![vm("1-2", then.2, then.3, then.4)]);
        let after = snapshot(
            then.0 + grow.0,
            then.1 + grow.1,
            vec![vm("1-2", then.2 + grow.2, then.3 + grow.3, then.4 + grow.4)],
        );
        for reading in host(&before, &after).unwrap().into_iter().chain(guest(&before, &after).unwrap()) {
            prop_assert!(reading.value.is_finite() && reading.value >= 0.0, "{:?}", reading);
            prop_assert!(reading.unit != "ratio" || reading.value <= 1.0, "{:?}", reading);
        }
    }
}
