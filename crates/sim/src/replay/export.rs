//! A simulated window as a recording of `entrain record`: `entrain report` reads it, and so does [`super::Replay`].

use std::collections::{BTreeMap, HashMap};

use entrain_record::event::{Event, Kind, flag};
use entrain_record::file::{Host, RecordedVm, Recording};

use crate::kernel::TaskId;
use crate::trace::{Record, What};
use crate::world::{HOST, World};

/// The clock of a recording is at 0 when it is not known: the simulated one begins later.
const BOOT: u64 = 1_000_000_000;

/// What the world has recorded (`World::record`, from `from` on, ns), as the host's recorder would have seen it.
pub fn recording(world: &World, from: u64) -> Recording {
    let kernel = &world.machines[0].kernel;
    let tid = |task: TaskId| kernel.task(task).pid as u32;
    let mut recording = Recording {
        host: Host {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: "simulated".to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            pcpus: kernel.topo.cpus(),
            began_ns: BOOT + from,
            ended_ns: BOOT + world.now,
            complete: true,
            ..Host::default()
        },
        ..Recording::default()
    };
    for (number, vm) in world.vms.iter().enumerate() {
        let vcpus: Vec<_> = (0..).zip(&vm.vcpus).map(|(id, vcpu)| (id, tid(vcpu.task))).collect();
        let pid = vm.vcpus.first().map_or(0, |vcpu| kernel.task(vcpu.task).tgid);
        recording.vms.push(RecordedVm { name: format!("guest {number}"), pid, chosen: true, vcpus, counter: None });
    }
    for task in &kernel.tasks {
        recording.names.insert(task.pid as u32, (task.tgid as u32, world.name(HOST, task.id)));
    }
    recording.events = events(world, world.records(), from, &tid);
    recording
}

fn events(world: &World, records: &[Record], from: u64, tid: &dyn Fn(TaskId) -> u32) -> Vec<Event> {
    let event = |at: u64, kind, flags, cpu: u32, tid: u32, other: u32, arg| Event {
        ns: BOOT + at,
        kind,
        flags,
        cpu: cpu as u16,
        tid,
        other,
        arg,
    };
    let mut events = Vec::new();
    // What each thread was at when the window began is told first: by what begins it, or else it slept.
    let runnable: HashMap<TaskId, ()> = records
        .iter()
        .filter(|record| record.machine == HOST)
        .take_while(|record| record.at == records[0].at)
        .filter_map(|record| match record.what {
            What::Switch { prev: None, next: Some((task, _)), .. } | What::Queued { task, by: None, .. } => {
                Some((task, ()))
            }
            _ => None,
        })
        .collect();
    for vcpu in world.vms.iter().flat_map(|vm| &vm.vcpus) {
        let flags = if runnable.contains_key(&vcpu.task) { flag::RUNNABLE } else { 0 };
        events.push(event(from, Kind::State, flags, 0, tid(vcpu.task), 0, 0));
    }
    let mut runs: BTreeMap<u32, TaskId> = BTreeMap::new();
    let mut halted: HashMap<TaskId, (u64, bool)> = HashMap::new();
    for Record { at, machine, cpu, what } in records.iter().copied() {
        let thread = || world.thread_of(machine, cpu);
        match what {
            What::Switch { prev, next, waits } if machine == HOST => {
                let (prev, next) = (prev.map(|(task, _)| task), next.map(|(task, _)| task));
                if let Some((_, slept)) = prev.filter(|_| !waits).and_then(|task| halted.get_mut(&task)) {
                    *slept = true;
                }
                let flags = if waits { flag::RUNNABLE } else { 0 };
                events.push(event(at, Kind::Switch, flags, cpu, prev.map_or(0, tid), next.map_or(0, tid), 0));
                match next {
                    Some(next) => runs.insert(cpu, next),
                    None => runs.remove(&cpu),
                };
            }
            What::Queued { task, .. } if machine == HOST => {
                let other = runs.get(&cpu).map_or(0, |task| tid(*task));
                events.push(event(at, Kind::Wakeup, flag::OTHER_KNOWN, cpu, tid(task), other, 0));
            }
            What::Halts if machine != HOST => {
                halted.insert(thread(), (at, false));
            }
            What::Enters if machine != HOST => {
                if let Some((since, slept)) = halted.remove(&thread()) {
                    let flags = if slept { flag::WAITED } else { 0 };
                    events.push(event(at, Kind::Halt, flags, 0, tid(thread()), 0, at - since));
                }
            }
            What::Yields { to, followed } if machine != HOST => {
                let honoured = u64::from(followed == Some(true));
                events.push(event(at, Kind::Spin, 0, 0, tid(thread()), 0, 0));
                events.push(event(at, Kind::Yield, 0, 0, tid(thread()), tid(to), honoured));
            }
            _ => {}
        }
    }
    events
}
