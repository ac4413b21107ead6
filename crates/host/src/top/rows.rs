//! The lines of the table: what happened between two looks at the counters.

use std::collections::HashMap;

use clap::ValueEnum;
use serde::Serialize;

use crate::status::{Status, VcpuStatus, VmStatus};

/// The column that lines are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Name of the VM, then number of the vCPU
    Vm,
    /// Busiest first
    Run,
    /// Longest waiting first
    Ready,
    /// Most often preempted first
    Preempt,
    /// Most often preempted inside critical sections first
    Critical,
}

impl Order {
    /// The next one, in a circle.
    pub(super) fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|one| *one == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }
}

/// One line: a vCPU, or a VM (`vcpu` is `None`, figures are sums).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) vm: String,
    /// As metrics call the VM.
    pub(super) key: String,
    /// Of the VM, if it has one.
    pub(super) uuid: Option<String>,
    /// What the VM's manager calls it, after the manager's own name; empty without one.
    pub(super) managed: String,
    pub(super) pid: i32,
    pub(super) vcpu: Option<u32>,
    /// Thread of the vCPU.
    pub(super) tid: Option<i32>,
    /// State of the vCPU; of a VM how many of its vCPUs run.
    pub(super) state: String,
    pub(super) pcpu: Option<u32>,
    /// Share of the interval on a pCPU, in %; a VM's can exceed 100.
    pub(super) run: f64,
    /// Share of the interval runnable but not running, in %.
    pub(super) ready: f64,
    /// Steal as the guest sees it, in % of the interval.
    pub(super) steal: f64,
    /// Involuntary switch-outs per second.
    pub(super) preemptions: f64,
    /// Of those, inside critical sections of the guest; `None` when that is not known.
    pub(super) critical: Option<f64>,
    pub(super) instant: Option<bool>,
    pub(super) link: String,
}

/// Lines of all vCPUs, or of all VMs.
pub(super) fn rows(before: &Status, now: &Status, vms: bool) -> Vec<Row> {
    let seconds = now.now_ns.saturating_sub(before.now_ns) as f64 / 1e9;
    let old: HashMap<i32, &VcpuStatus> =
        before.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| (vcpu.tid, vcpu)).collect();
    let mut all = Vec::new();
    for vm in &now.vms {
        let of_vm: Vec<Row> = vm.vcpus.iter().map(|vcpu| row(vm, vcpu, old.get(&vcpu.tid).copied(), seconds)).collect();
        if vms { all.push(sum(vm, &of_vm)) } else { all.extend(of_vm) }
    }
    all
}

fn row(vm: &VmStatus, now: &VcpuStatus, before: Option<&VcpuStatus>, seconds: f64) -> Row {
    // A vCPU that was not there a moment ago has no rate yet.
    let rate = |of: fn(&VcpuStatus) -> u64| match before {
        Some(before) if seconds > 0.0 => of(now).saturating_sub(of(before)) as f64 / seconds,
        _ => 0.0,
    };
    Row {
        vm: vm.name().to_owned(),
        key: vm.key.clone(),
        uuid: vm.identity.uuid.clone(),
        managed: managed(vm),
        pid: vm.pid,
        vcpu: Some(now.id),
        tid: Some(now.tid),
        state: now.state.clone(),
        pcpu: Some(now.pcpu),
        run: rate(|v| v.run_ns) / 1e7,
        ready: rate(|v| v.ready_ns) / 1e7,
        steal: rate(|v| v.steal_ns) / 1e7,
        preemptions: rate(|v| v.preemptions),
        critical: (now.samples > 0).then(|| rate(|v| v.preemptions_cs)),
        instant: Some(now.instant),
        link: if now.paired { "paired".to_owned() } else { vm.channel.word().to_owned() },
    }
}

/// `proxmox 100`; empty without a manager.
pub(super) fn managed(vm: &VmStatus) -> String {
    vm.identity.manager.map(|manager| format!("{} {}", manager.word(), vm.identity.managed_as)).unwrap_or_default()
}

fn sum(vm: &VmStatus, rows: &[Row]) -> Row {
    let total = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>();
    let running = rows.iter().filter(|row| row.state == "running").count();
    let known: Vec<f64> = rows.iter().filter_map(|row| row.critical).collect();
    Row {
        vm: vm.name().to_owned(),
        key: vm.key.clone(),
        uuid: vm.identity.uuid.clone(),
        managed: managed(vm),
        pid: vm.pid,
        vcpu: None,
        tid: None,
        state: format!("{running}/{} run", rows.len()),
        pcpu: None,
        run: total(|row| row.run),
        ready: total(|row| row.ready),
        steal: total(|row| row.steal),
        preemptions: total(|row| row.preemptions),
        critical: (!known.is_empty()).then(|| known.iter().sum()),
        instant: None,
        link: vm.channel.word().to_owned(),
    }
}

/// Keeps the lines that contain `filter` in any column and sorts them.
pub(super) fn select(mut rows: Vec<Row>, order: Order, reverse: bool, filter: &str) -> Vec<Row> {
    let wanted = filter.to_lowercase();
    rows.retain(|row| {
        let text =
            format!("{} {} {} {} {} {}", row.vm, row.key, row.managed, row.pid, row.state, row.link).to_lowercase();
        text.contains(&wanted)
    });
    rows.sort_by(|a, b| match order {
        Order::Vm => (&a.vm, a.pid, a.vcpu).cmp(&(&b.vm, b.pid, b.vcpu)),
        Order::Run => b.run.total_cmp(&a.run),
        Order::Ready => b.ready.total_cmp(&a.ready),
        Order::Preempt => b.preemptions.total_cmp(&a.preemptions),
        Order::Critical => b.critical.unwrap_or(-1.0).total_cmp(&a.critical.unwrap_or(-1.0)),
    });
    if reverse {
        rows.reverse();
    }
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{Channel, Identity, Manager};

    /// A VM's name, and of each of its vCPUs the time run, the time ready and the preemptions.
    type Figures<'a> = (&'a str, &'a [(u64, u64, u64)]);

    fn identity(name: &str) -> Identity {
        let uuid = Some("a1b2c3d4-0000-4000-8000-0123456789ab".into());
        let (manager, managed_as) = (Some(Manager::Proxmox), "4711".into());
        Identity { name: name.to_owned(), uuid, manager, managed_as }
    }

    pub(in crate::top) fn status(now_ns: u64, figures: &[Figures<'_>]) -> Status {
        let vcpu = |id: usize, tid: usize, &(run_ns, ready_ns, preemptions): &(u64, u64, u64)| VcpuStatus {
            id: id as u32,
            tid: tid as i32,
            state: "running".into(),
            since_ns: 0,
            pcpu: 1,
            run_ns,
            ready_ns,
            halted_ns: 0,
            steal_ns: ready_ns,
            switches: 1,
            preemptions,
            samples: preemptions,
            preemptions_cs: preemptions / 2,
            preempt_count: 0,
            boosts: 0,
            instant: true,
            paired: true,
            util: 0,
            clamp: None,
            runnable: 0,
            schedule: None,
        };
        let vms = figures.iter().enumerate().map(|(n, (name, vcpus))| VmStatus {
            identity: identity(name),
            key: format!("{name}@{}", 100 + n),
            pid: 100 + n as i32,
            channel: Channel::Paired,
            entitlement: 1024,
            class: None,
            scans: 0,
            scanned_pages: 0,
            waited_for: vec![],
            schedule: None,
            vcpus: vcpus.iter().enumerate().map(|(id, f)| vcpu(id, 1000 * n + id, f)).collect(),
        });
        Status { now_ns, uptime_ns: now_ns, vms: vms.collect(), ..crate::status::tests::empty() }
    }

    #[test]
    fn rates_are_over_the_interval() {
        let before = status(1_000_000_000, &[("a", &[(100_000_000, 0, 10)])]);
        let now = status(3_000_000_000, &[("a", &[(1_100_000_000, 500_000_000, 30)]), ("b", &[(77, 0, 4)])]);
        let rows = rows(&before, &now, false);
        assert_eq!((rows[0].run, rows[0].ready, rows[0].preemptions), (50.0, 25.0, 10.0));
        assert_eq!(rows[0].critical, Some(5.0));
        assert_eq!(rows[1].run, 0.0, "it was not there before");
    }

    #[test]
    fn vms_sum_their_vcpus_and_filters_look_at_all_columns() {
        let before = status(0, &[("a", &[(0, 0, 0), (0, 0, 0)]), ("b", &[(0, 0, 0)])]);
        let now = status(1_000_000_000, &[("a", &[(1_000_000_000, 0, 0), (500_000_000, 0, 0)]), ("b", &[(9, 0, 8)])]);
        let vms = rows(&before, &now, true);
        assert_eq!((vms[0].run, vms[0].state.as_str()), (150.0, "2/2 run"));
        assert_eq!(select(vms.clone(), Order::Preempt, false, "")[0].vm, "b");
        assert_eq!(select(vms.clone(), Order::Preempt, true, "")[0].vm, "a");
        assert_eq!(select(vms.clone(), Order::Vm, false, "101").len(), 1);
        assert_eq!(select(vms.clone(), Order::Vm, false, "proxmox 4711").len(), 2);
        assert_eq!(select(vms, Order::Vm, false, "b@101").len(), 1);
    }

    #[test]
    fn every_order_is_reached() {
        let mut order = Order::Vm;
        for _ in Order::value_variants() {
            order = order.next();
        }
        assert_eq!(order, Order::Vm);
    }
}
