//! The status out of BPF's tables and what the daemon knows.

use std::time::Duration;

use entrain_channel::word::Vcpu as State;
use entrain_system::{Root, monotonic_ns};

use crate::counters::Account;
use crate::fleet::Fleet;
use crate::interface;
use crate::mode::Figures;
use crate::status::{PcpuStatus, SCHEMA, Status, VcpuStatus, VmStatus, Work};

/// Figures as they are now; times in a state that still lasts are counted up to now.
pub(crate) fn take(fleet: &Fleet, mode: &str, uptime: Duration, work: Work, figures: Figures) -> Status {
    let now_ns = monotonic_ns();
    let pcpus = (0..fleet.programs.pcpus.entries()).map(|cpu| PcpuStatus {
        level: figures.levels.get(cpu).copied(),
        ..pcpu(cpu as u32, &fleet.programs.pcpus.get(cpu))
    });
    let vms = fleet.vms.values().map(|vm| VmStatus {
        identity: vm.identity.clone(),
        key: vm.key.clone(),
        pid: vm.found.tgid,
        channel: vm.channel,
        entitlement: vm.entitlement,
        class: vm.class.clone(),
        scans: vm.scan.passes,
        scanned_pages: vm.scan.pages,
        waited_for: Vec::new(),
        schedule: figures
            .schedule
            .map(|_| Account::sum(vm.vcpus.values().filter_map(|known| figures.accounts.get(&known.tid))).into()),
        vcpus: vm
            .vcpus
            .iter()
            .map(|(id, known)| {
                let entry = fleet.programs.vcpus.get(known.index as usize);
                VcpuStatus {
                    clamp: figures.clamps.get(&known.tid).copied(),
                    schedule: figures.accounts.get(&known.tid).map(|account| (*account).into()),
                    ..vcpu(*id, known.paired.is_some(), steal_ns(&fleet.root, known.tid), &entry, now_ns)
                }
            })
            .collect(),
    });
    Status {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: mode.to_owned(),
        fallback: figures.fallback,
        fallbacks: figures.fallbacks,
        metrics: None,
        unpaired: None,
        pid: std::process::id(),
        now_ns,
        uptime_ns: uptime.as_nanos() as u64,
        pcpus: pcpus.collect(),
        vms: vms.collect(),
        work: Work { dropped_events: fleet.programs.dropped_events(), ..work },
        schedule: figures.schedule,
        programs: fleet.programs.figures().into_iter().chain(figures.programs).collect(),
        bpf_stats: crate::program_info::counted(),
        waits: Vec::new(),
    }
}

fn pcpu(cpu: u32, entry: &interface::Pcpu) -> PcpuStatus {
    PcpuStatus {
        cpu,
        idle: entry.idle != 0,
        capacity: entry.capacity,
        perf: entry.perf,
        level: None,
        switches: entry.switches,
        idles: entry.idles,
        instants: entry.instants,
        wakeups: entry.wakeups,
        doorbells: entry.doorbells,
        levels_told: entry.levels,
        levels_late: entry.late,
    }
}

fn vcpu(id: u32, paired: bool, steal_ns: u64, entry: &interface::Vcpu, now_ns: u64) -> VcpuStatus {
    let state = State::from_raw(entry.state);
    let lasts = |which| if state == which { now_ns.saturating_sub(entry.since) } else { 0 };
    VcpuStatus {
        id,
        tid: entry.tid,
        state: state.name().to_owned(),
        since_ns: entry.since,
        pcpu: entry.pcpu,
        run_ns: entry.run_ns + lasts(State::Running),
        ready_ns: entry.ready_ns + lasts(State::Preempted),
        halted_ns: entry.halted_ns + lasts(State::Halted),
        steal_ns,
        switches: entry.switches,
        preemptions: entry.preemptions,
        samples: entry.samples,
        preemptions_cs: entry.preemptions_cs,
        preempt_count: entry.preempt_count,
        boosts: entry.boosts,
        instant: entry.instant != 0,
        paired,
        // The guest's words, as it wrote them: kept within what they can mean.
        util: entry.util.min(1024),
        clamp: None,
        runnable: entry.runnable.min(1 << 20),
        schedule: None,
    }
}

/// The thread's time waiting for a pCPU: the second number of its schedstat, which KVM hands to the guest as steal.
fn steal_ns(root: &Root, tid: i32) -> u64 {
    let text = root.text(format!("proc/{tid}/schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
