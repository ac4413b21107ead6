//! A window for <https://ui.perfetto.dev>: JSON of Chrome's trace events, which Perfetto reads as it is. A process for
//! each machine's CPUs, and one for its tasks with what they were at.

use serde_json::{Value, json};

use super::text::machine;
use super::{Record, Timeline, What};
use crate::world::{HOST, MachineId, World};

/// Microseconds, the format's unit.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// The processes' numbers: a machine's CPUs, its tasks.
fn pids(m: MachineId) -> (u32, u32) {
    (1 + u32::from(m.0) * 2, 2 + u32::from(m.0) * 2)
}

/// The whole file.
pub fn trace(world: &World, records: &[Record], timeline: &Timeline) -> Value {
    let mut events = Vec::new();
    for (m, of) in world.machines.iter().enumerate() {
        let id = MachineId(m as u16);
        let (cpus, tasks) = pids(id);
        let name = |pid, what: &str| {
            json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0,
                "args": {"name": format!("{}: {what}", machine(id))}})
        };
        events.extend([name(cpus, "CPUs"), name(tasks, "tasks")]);
        let thread = |pid, tid, name: String| json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}});
        events.extend((0..of.kernel.topo.cpus()).map(|cpu| thread(cpus, cpu, format!("CPU {cpu}"))));
        events.extend(of.kernel.tasks.iter().map(|task| thread(tasks, task.id.0, world.name(id, task.id))));
    }
    let slice = |pid, tid, name: &str, from: u64, until: u64, args: Value| json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(from), "dur": us(until - from), "args": args});
    for run in &timeline.runs {
        let (cpus, tasks) = pids(run.machine);
        let args = json!({"ahead_ms": run.clock.ahead as f64 / 1e6, "left_ms": run.clock.left as f64 / 1e6,
            "ahead_after_ms": run.end.map(|clock| clock.ahead as f64 / 1e6), "still_runnable": run.waits});
        events.push(slice(cpus, run.cpu, &world.name(run.machine, run.task), run.from, run.until, args));
        let on = format!("runs on CPU {}", run.cpu);
        events.push(slice(tasks, run.task.0, &on, run.from, run.until, json!({})));
    }
    for wait in &timeline.waits {
        let (_, tasks) = pids(wait.machine);
        let args = json!({"queue": wait.cpu});
        events.push(slice(tasks, wait.task.0, "waits", wait.from, wait.until, args));
    }
    // Asynchronous, since a spinner is taken off its CPU and put back meanwhile.
    for (id, spin) in timeline.spins.iter().enumerate() {
        let (_, pid) = pids(spin.machine);
        let event = |ph: &str, at: u64| {
            json!({"ph": ph, "cat": "spin", "id": id, "name": format!("spins for {:?}", spin.on), "pid": pid,
                "tid": spin.task.0, "ts": us(at)})
        };
        events.extend([event("b", spin.from), event("e", spin.until)]);
    }
    for record in records {
        let name = match record.what {
            What::Interrupt(irq) if record.machine != HOST => format!("{irq:?}"),
            What::Yields { to, .. } => format!("yield to {}", world.name(HOST, to)),
            What::Halts => "halts".to_owned(),
            _ => continue,
        };
        let (pid, _) = pids(record.machine);
        events.push(
            json!({"ph": "i", "s": "t", "name": name, "pid": pid, "tid": record.cpu, "ts": us(record.at), "args": {}}),
        );
    }
    json!({"displayTimeUnit": "ns", "traceEvents": events})
}
