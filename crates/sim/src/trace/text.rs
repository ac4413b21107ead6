//! Records as lines of text.

use std::fmt::Write as _;

use super::{Record, What};
use crate::kernel::{Clock, TaskId};
use crate::world::{HOST, MachineId, World};

/// A machine's name.
pub fn machine(m: MachineId) -> String {
    if m == HOST { "host".to_owned() } else { format!("guest {}", m.0 - 1) }
}

/// Nanoseconds, in a unit that fits.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.2} ms", ns as f64 / 1e6),
    }
}

/// A clock: how far it is ahead of its queue, and what is left of the slice.
pub fn clock(clock: Clock) -> String {
    format!("{:+.3} ms, {:.3} left", clock.ahead as f64 / 1e6, clock.left as f64 / 1e6)
}

/// One line for each record that `wanted` lets through.
pub fn lines(world: &World, records: &[Record], wanted: impl Fn(&Record) -> bool) -> String {
    let mut text = String::new();
    for record in records.iter().filter(|record| wanted(record)) {
        let Record { at, machine: m, cpu, what } = *record;
        let _ = writeln!(text, "{:>15.9} {:<8} CPU {cpu:<3} {}", at as f64 / 1e9, machine(m), words(world, m, what));
    }
    text
}

fn words(world: &World, m: MachineId, what: What) -> String {
    let name = |task: TaskId| world.name(m, task);
    let one = |who: Option<(TaskId, Clock)>| match who {
        Some((task, its)) => format!("{} ({})", name(task), clock(its)),
        None => "idle".to_owned(),
    };
    match what {
        What::Switch { prev, next, waits } => {
            let still = if waits { ", which waits" } else { "" };
            format!("{}{still} → {}", one(prev), one(next))
        }
        What::Queued { task, clock: its, by } => {
            let by = by.map_or("an interrupt of an idle CPU".to_owned(), name);
            format!("{} queued ({}), woken by {by}", name(task), clock(its))
        }
        What::Due(task) => format!("timer of {} due", name(task)),
        What::Begins { task, late } => format!("{} begins, {} after its wake-up", name(task), duration(late)),
        What::Interrupt(irq) => format!("interrupt {irq:?}"),
        What::Pends(irq) => format!("interrupt {irq:?} pends"),
        What::Spins { task, on } => format!("{} spins for {on:?}", name(task)),
        What::SpinOver(task) => format!("{} need spin no more", name(task)),
        What::Takes { task, lock } => format!("{} takes lock {lock}", name(task)),
        What::Gives { lock } => format!("lock {lock} given back"),
        What::Enters => "enters".to_owned(),
        What::Leaves => "leaves".to_owned(),
        What::Halts => "halts".to_owned(),
        What::Yields { to, followed } => {
            let how = match followed {
                Some(true) => "followed",
                Some(false) => "not followed",
                None => "no point",
            };
            format!("trapped while it spins: yield to {}, {how}", world.name(HOST, to))
        }
    }
}
