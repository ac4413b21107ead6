//! The status as metrics. Names and units follow Prometheus' conventions: base units, `_total` for what only grows.
//!
//! Cardinality: a VM has 11 series, each of its vCPUs 10, in mode `schedule` 27 and 15; and for whom it waited at most 44
//! (`crate::culprits`). The label `vm` is the VM's key (its UUID, if it has one of its own): two VMs never share it. What
//! else is known of a VM stands once, in `vm_info`; its texts are the VMM's choice and bounded (`crate::identity`). vCPUs
//! beyond [`VCPUS`] are counted, not listed.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::scheduler;
use crate::channel::Channel;
use crate::counters::Of;
use crate::identity::{Identity, Manager};
use crate::status::{Status, VcpuStatus};

/// vCPUs that are listed: 20,000 to 30,000 series are what Prometheus takes from one target without remark.
pub(super) const VCPUS: usize = 2000;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vm {
    vm: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VmInfo {
    vm: String,
    name: String,
    uuid: String,
    manager: &'static str,
    managed_as: String,
    class: String,
    pid: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Pairing {
    vm: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vcpu {
    vm: String,
    vcpu: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Waited {
    vm: String,
    culprit: String,
    culprit_vm: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Task {
    task: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Program {
    program: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: String,
    mode: String,
}

/// A figure of something: its name, what it means, where it stands.
type Figure<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Times of a vCPU, in ns here and seconds there.
const VCPU_TIMES: [Figure<VcpuStatus>; 4] = [
    ("vcpu_run", "Time that the vCPU was on a pCPU", |vcpu| vcpu.run_ns),
    ("vcpu_ready", "Time that the vCPU was runnable but not on a pCPU", |vcpu| vcpu.ready_ns),
    ("vcpu_halted", "Time that the vCPU was halted", |vcpu| vcpu.halted_ns),
    ("vcpu_steal", "Steal as KVM tells it to the guest, since the vCPU was made", |vcpu| vcpu.steal_ns),
];

const VCPU_COUNTS: [Figure<VcpuStatus>; 5] = [
    ("vcpu_switches", "Times that the vCPU was put on a pCPU", |vcpu| vcpu.switches),
    ("vcpu_preemptions", "Times that the vCPU was switched out while runnable", |vcpu| vcpu.preemptions),
    ("vcpu_preemptions_sampled", "Of those, times that the guest's preempt count could be read", |vcpu| vcpu.samples),
    (
        "vcpu_holder_preemptions",
        "Of those, times that the vCPU was inside a critical section of the guest's kernel",
        |vcpu| vcpu.preemptions_cs,
    ),
    ("vcpu_boosts", "Times that the host's scheduler put the vCPU in front", |vcpu| vcpu.boosts),
];

/// A status in OpenMetrics' text format. `counted`: the kernel counts the run time of BPF programs.
pub(super) fn openmetrics(status: &Status, counted: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("entrain");
    host(&mut registry, status);
    vms(&mut registry, status);
    vcpus(&mut registry, status);
    if let Some(figures) = &status.schedule {
        scheduler::host(&mut registry, figures);
    }
    if counted {
        programs(&mut registry, status);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn host(registry: &mut Registry, status: &Status) {
    let build = Build { version: status.version.clone(), mode: status.mode.clone() };
    gauges(registry, "build_info", "The daemon; always 1", None, [(build, 1.0)]);
    let fallback = "1 while mode schedule only observes, under the kernel's own scheduler";
    gauge(registry, "fallback", fallback, None, f64::from(u8::from(status.fallback.is_some())));
    counter(registry, "fallbacks", "Times that the host's scheduler ended by itself", None, status.fallbacks as f64);
    let vcpus: usize = status.vms.iter().map(|vm| vm.vcpus.len()).sum();
    gauge(registry, "vms", "VMs that are known", None, status.vms.len() as f64);
    gauge(registry, "vcpus", "vCPUs that are known", None, vcpus as f64);
    let omitted = vcpus.saturating_sub(VCPUS) as f64;
    gauge(registry, "vcpus_omitted", "vCPUs without series of their own, for there being too many", None, omitted);
    gauge(registry, "pcpus", "pCPUs of this host", None, status.pcpus.len() as f64);
    let uptime = seconds(status.uptime_ns);
    gauge(registry, "uptime", "Time that the daemon has run", Some(Unit::Seconds), uptime);
    let work = &status.work;
    let tasks = [("tick", work.tick_ns), ("discovery", work.discovery_ns), ("pairing", work.pairing_ns)];
    let tasks = tasks.map(|(task, ns)| (Task { task }, seconds(ns)));
    counters(registry, "work", "Time that the daemon spent", Some(Unit::Seconds), tasks);
    let dropped =
        "Events of BPF that found no room: a VM's end or a guest's doorbell, noticed within a second all the same";
    counter(registry, "events_dropped", dropped, None, work.dropped_events as f64);
}

fn vms(registry: &mut Registry, status: &Status) {
    let each = |value: fn(&crate::status::VmStatus) -> f64| {
        status.vms.iter().map(move |vm| (Vm { vm: vm.key.clone() }, value(vm)))
    };
    let info = status.vms.iter().map(|vm| {
        let class = vm.class.clone().unwrap_or_default();
        let Identity { name, uuid, manager, managed_as } = vm.identity.clone();
        let (uuid, manager) = (uuid.unwrap_or_default(), manager.map_or("", Manager::word));
        (VmInfo { vm: vm.key.clone(), name, uuid, manager, managed_as, class, pid: vm.pid }, 1.0)
    });
    gauges(registry, "vm_info", "Who the VM is, and its class; always 1", None, info);
    let states = status.vms.iter().flat_map(|vm| {
        Channel::ALL.map(|state| {
            (Pairing { vm: vm.key.clone(), state: state.word() }, f64::from(u8::from(state == vm.channel)))
        })
    });
    gauges(registry, "vm_pairing", "1 for how the VM's guest and the host are connected, else 0", None, states);
    gauges(registry, "vm_vcpus", "vCPUs of the VM", None, each(|vm| vm.vcpus.len() as f64));
    let paired = each(|vm| vm.vcpus.iter().filter(|vcpu| vcpu.paired).count() as f64);
    gauges(registry, "vm_paired_vcpus", "vCPUs of the VM that are paired", None, paired);
    let entitled = each(|vm| f64::from(vm.entitlement) / 1024.0);
    gauges(registry, "vm_entitlement_pcpus", "CPU time that the VM can have now", None, entitled);
    let waited = status.vms.iter().flat_map(|vm| {
        vm.waited_for.iter().map(|one| {
            let (culprit, culprit_vm) = (one.culprit.name.clone(), one.culprit.vm.clone());
            (Waited { vm: vm.key.clone(), culprit, culprit_vm, reason: one.cause.word() }, seconds(one.ns))
        })
    });
    let help = "Time that the VM's vCPUs waited while the culprit had the pCPU that they got";
    counters(registry, "vm_waited_for", help, Some(Unit::Seconds), waited);
    if status.schedule.is_some() {
        vm_accounts(registry, status);
    }
}

fn vm_accounts(registry: &mut Registry, status: &Status) {
    let all = || status.vms.iter().filter_map(|vm| Some((Vm { vm: vm.key.clone() }, vm.schedule.as_ref()?)));
    scheduler::each(registry, Of::Vm, all);
    let lag = "The error of fairness: CPU time at weight 100 that the VM's runnable vCPUs are owed (negative: owe)";
    let behind = all().map(|(labels, figures)| (labels, figures.lag_ns as f64 / 1e9));
    gauges(registry, "vm_sched_lag", lag, Some(Unit::Seconds), behind);
}

fn vcpus(registry: &mut Registry, status: &Status) {
    let all = || {
        let vms = status.vms.iter();
        let all = vms.flat_map(|vm| vm.vcpus.iter().map(|vcpu| (Vcpu { vm: vm.key.clone(), vcpu: vcpu.id }, vcpu)));
        all.take(VCPUS)
    };
    for (name, help, value) in VCPU_TIMES {
        let values = all().map(|(labels, vcpu)| (labels, seconds(value(vcpu))));
        counters(registry, name, help, Some(Unit::Seconds), values);
    }
    for (name, help, value) in VCPU_COUNTS {
        counters(registry, name, help, None, all().map(|(labels, vcpu)| (labels, value(vcpu) as f64)));
    }
    if status.schedule.is_some() {
        let scheduled = || all().filter_map(|(labels, vcpu)| Some((labels, vcpu.schedule.as_ref()?)));
        scheduler::each(registry, Of::Vcpu, scheduled);
    }
    let help = "Utilisation that the guest's kernel has for the vCPU, of paired vCPUs";
    let paired = all().filter(|(_, vcpu)| vcpu.paired);
    gauges(
        registry,
        "vcpu_guest_utilization",
        help,
        Some(Unit::Other("ratio".into())),
        paired.map(|(labels, vcpu)| (labels, vcpu.util as f64 / 1024.0)),
    );
}

fn programs(registry: &mut Registry, status: &Status) {
    let each = |value: fn(&crate::figures::ProgramStatus) -> f64| {
        status.programs.iter().map(move |one| (Program { program: one.name.clone() }, value(one)))
    };
    let unit = Some(Unit::Seconds);
    counters(registry, "bpf_program_run", "Time that the BPF program ran", unit, each(|one| seconds(one.run_ns)));
    counters(registry, "bpf_program_runs", "Times that the BPF program ran", None, each(|one| one.runs as f64));
    let missed = "Times that the kernel did not let the BPF program run, since it was running already";
    counters(registry, "bpf_program_missed", missed, None, each(|one| one.missed as f64));
}

/// ns to s.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn register(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, metric: impl Metric) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}

/// Of the whole host.
pub(super) fn counter(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, value: f64) {
    let metric = Counter::<f64, AtomicU64>::default();
    metric.inc_by(value);
    register(registry, name, help, unit, metric);
}

/// Of the whole host.
fn gauge(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, value: f64) {
    let metric = Gauge::<f64, AtomicU64>::default();
    metric.set(value);
    register(registry, name, help, unit, metric);
}

pub(super) trait Labels:
    EncodeLabelSet + Clone + fmt::Debug + std::hash::Hash + Eq + Send + Sync + 'static
{
}
impl<T: EncodeLabelSet + Clone + fmt::Debug + std::hash::Hash + Eq + Send + Sync + 'static> Labels for T {}

pub(super) fn counters<L: Labels>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl IntoIterator<Item = (L, f64)>,
) {
    let family = Family::<L, Counter<f64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    register(registry, name, help, unit, family);
}

fn gauges<L: Labels>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl IntoIterator<Item = (L, f64)>,
) {
    let family = Family::<L, Gauge<f64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    register(registry, name, help, unit, family);
}

/// The same in Prometheus' older text format, which names a counter's family with its `_total` and knows neither units
/// nor an end.
pub(super) fn classic(openmetrics: &str) -> String {
    let comment = |line: &str, kind: &str| line.strip_prefix(kind).map(str::to_owned);
    let counters: std::collections::HashSet<String> = openmetrics
        .lines()
        .filter_map(|line| comment(line, "# TYPE ")?.strip_suffix(" counter").map(str::to_owned))
        .collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                text.extend(["# ", kind, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{COUNTERS, ScheduleStatus};
    use crate::culprits::{Culprit, WaitedFor};
    use crate::figures::ProgramStatus;
    use crate::status::{VmStatus, WaitCause, tests::empty};

    fn vcpu(id: u32) -> VcpuStatus {
        VcpuStatus {
            id,
            tid: 1000 + id as i32,
            state: "running".into(),
            since_ns: 0,
            pcpu: 0,
            run_ns: 2_500_000_000,
            ready_ns: 1_500_000_000,
            halted_ns: 0,
            steal_ns: 1_000_000_000,
            switches: 9,
            preemptions: 8,
            samples: 7,
            preemptions_cs: 6,
            preempt_count: 0,
            boosts: 5,
            instant: true,
            paired: true,
            util: 512,
            clamp: None,
            runnable: 1,
            schedule: None,
        }
    }

    fn vm(name: &str, pid: i32, vcpus: u32) -> VmStatus {
        VmStatus {
            identity: Identity {
                name: name.into(),
                uuid: None,
                manager: Some(Manager::Kubevirt),
                managed_as: "shop/db".into(),
            },
            key: format!("{name}@{pid}"),
            pid,
            channel: Channel::Paired,
            entitlement: 1536,
            class: Some("critical".into()),
            scans: 0,
            scanned_pages: 0,
            waited_for: vec![],
            schedule: None,
            vcpus: (0..vcpus).map(vcpu).collect(),
        }
    }

    #[test]
    fn names_units_and_values() {
        let programs = vec![ProgramStatus { name: "tick".into(), runs: 4, run_ns: 2_000_000, missed: 0 }];
        let schedule = Some(ScheduleStatus { extensions: 3, yields_foreign: 2, ..Default::default() });
        let mut one = vm("we\"b\n", 7, 1);
        let culprit = Culprit { name: "stress".into(), vm: String::new() };
        one.waited_for = vec![WaitedFor { culprit, cause: WaitCause::GaveWay, ns: 1_250_000_000 }];
        one.schedule = Some(ScheduleStatus { yields_unfair: 4, lag_ns: -500_000_000, ..Default::default() });
        one.vcpus[0].schedule = Some(ScheduleStatus { corun_ns: 250_000_000, ..Default::default() });
        let status = Status { vms: vec![one], programs, schedule, ..empty() };
        let text = openmetrics(&status, true).expect("encodes");
        for line in [
            r#"entrain_vcpu_ready_seconds_total{vm="we\"b\n@7",vcpu="0"} 1.5"#,
            r#"entrain_vcpu_holder_preemptions_total{vm="we\"b\n@7",vcpu="0"} 6.0"#,
            r#"entrain_vcpu_guest_utilization_ratio{vm="we\"b\n@7",vcpu="0"} 0.5"#,
            r#"entrain_vm_entitlement_pcpus{vm="we\"b\n@7"} 1.5"#,
            r#"entrain_vm_info{vm="we\"b\n@7",name="we\"b\n",uuid="",manager="kubevirt",managed_as="shop/db",class="critical",pid="7"} 1.0"#,
            r#"entrain_vm_pairing{vm="we\"b\n@7",state="paired"} 1.0"#,
            r#"entrain_vm_waited_for_seconds_total{vm="we\"b\n@7",culprit="stress",culprit_vm="",reason="gave-way"} 1.25"#,
            r#"entrain_vm_pairing{vm="we\"b\n@7",state="silent"} 0.0"#,
            r#"entrain_bpf_program_run_seconds_total{program="tick"} 0.002"#,
            r#"entrain_sched_yields_refused_total{reason="foreign"} 2.0"#,
            r#"entrain_vm_sched_lag_seconds{vm="we\"b\n@7"} -0.5"#,
            r#"entrain_vm_sched_yields_refused_total{vm="we\"b\n@7",reason="unfair"} 4.0"#,
            r#"entrain_vcpu_sched_corun_seconds_total{vm="we\"b\n@7",vcpu="0"} 0.25"#,
            "entrain_sched_extensions_total 3.0",
            "entrain_vms 1.0",
            "# UNIT entrain_vcpu_ready_seconds seconds",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert!(text.contains("entrain_fallback 0.0\n"), "{text}");
        let observing = openmetrics(&Status { schedule: None, ..status }, false).expect("encodes");
        assert!(!observing.contains("sched_") && !observing.contains("entrain_bpf"));
    }

    #[test]
    fn every_counter_of_the_scheduler_has_a_metric() {
        let mut one = vm("a", 7, 1);
        one.schedule = Some(ScheduleStatus::default());
        one.vcpus[0].schedule = Some(ScheduleStatus::default());
        let status = Status { vms: vec![one], schedule: Some(ScheduleStatus::default()), ..empty() };
        let text = openmetrics(&status, false).expect("encodes");
        for counter in COUNTERS {
            for of in counter.of {
                let (prefix, labels) = match of {
                    Of::Host => ("", vec![]),
                    Of::Vm => ("vm_", vec![r#"vm="a@7""#]),
                    Of::Vcpu => ("vcpu_", vec![r#"vm="a@7""#, r#"vcpu="0""#]),
                };
                let reason = counter.reason.map(|reason| format!("reason=\"{reason}\""));
                let labels: Vec<&str> = labels.into_iter().chain(reason.as_deref()).collect();
                let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                let unit = if counter.unit == crate::counters::Unit::Ns { "_seconds" } else { "" };
                let line = format!("entrain_{prefix}{}{unit}_total{labels} 0.0", counter.metric);
                assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
            }
        }
    }

    #[test]
    fn the_older_format_names_counters_in_full() {
        let text = classic(&openmetrics(&Status { vms: vec![vm("a", 7, 1)], ..empty() }, false).expect("encodes"));
        assert!(text.contains("# TYPE entrain_vcpu_ready_seconds_total counter\n"), "{text}");
        assert!(text.contains("# HELP entrain_vcpu_ready_seconds_total Time"), "{text}");
        assert!(text.contains("# TYPE entrain_vms gauge\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let status = Status { vms: (0..1024).map(|pid| vm("same name", pid, 4)).collect(), ..empty() };
        let text = openmetrics(&status, false).expect("encodes");
        let of = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(of("entrain_vcpu_ready_seconds_total"), VCPUS);
        assert_eq!(of("entrain_vm_info"), 1024, "two VMs of one name are two");
        assert!(text.contains(&format!("entrain_vcpus_omitted {}.0", 4096 - VCPUS)), "{text}");
    }
}
