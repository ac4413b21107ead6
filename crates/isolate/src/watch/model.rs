//! From what BPF gathered to lines that name cause, sender and remedy.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};

use entrain_system::CpuSet;
use entrain_system::kallsyms::Functions;

use super::cgroups::Cgroups;
use super::interface::{Event, Key, Kind, Lost, Total, text};
use super::remedy::{Facts, advice, softirq, tick_reason};
use super::report::{Cpu, Report, Row};
use crate::stack::Stack;

/// What never changes while watching.
pub(crate) struct Context {
    pub(crate) cpus: CpuSet,
    pub(crate) nohz_full: CpuSet,
    pub(crate) kernel: String,
    pub(crate) skipped: Vec<String>,
    pub(crate) symbols: Functions,
}

/// Turns causes into lines; remembers stacks and cgroups, since both can vanish.
pub(crate) struct Model {
    pub(crate) context: Context,
    cgroups: Cgroups,
    stacks: HashMap<i32, Stack>,
}

impl Model {
    pub(crate) fn new(context: Context, cgroups: Cgroups) -> Self {
        Self { context, cgroups, stacks: HashMap::new() }
    }

    /// Learns what stands behind the numbers of these causes; `stack` reads a stack's addresses.
    pub(crate) fn learn<'a>(&mut self, keys: impl Iterator<Item = &'a Key> + Clone, stack: impl Fn(i32) -> Vec<u64>) {
        self.cgroups.learn(keys.clone().map(|key| key.cgroup));
        for key in keys.filter(|key| key.stack >= 0) {
            self.stacks.entry(key.stack).or_insert_with(|| Stack::of(&stack(key.stack), &self.context.symbols));
        }
    }

    /// The line of one cause.
    pub(crate) fn row(&self, key: &Key, total: &Total) -> Option<Row> {
        let kind = Kind::of(key.kind)?;
        let what = text(&key.what);
        let named =
            matches!(kind, Kind::Work | Kind::Call | Kind::Timer | Kind::Softirq | Kind::Nmi) && key.subject != 0;
        let function = if named { self.function(key.subject) } else { String::new() };
        let stack = self.stacks.get(&key.stack).cloned().unwrap_or_default();
        let facts = Facts {
            kind,
            function: &function,
            what: &what,
            detail: key.detail,
            frames: &stack.frames,
            nohz_full: self.context.nohz_full.contains(key.cpu),
        };
        let by_task = stack.interrupt.is_none();
        Some(Row {
            cpu: key.cpu,
            kind,
            cause: cause(&facts, key.subject),
            sender: if by_task { text(&key.sender) } else { String::new() },
            pid: if by_task { total.pid } else { 0 },
            cgroup: if by_task { self.cgroups.path(key.cgroup) } else { String::new() },
            advice: advice(&facts),
            syscall: stack.syscall,
            via: stack.interrupt,
            stack: stack.frames,
            count: total.count,
            total_ns: total.ns,
            max_ns: total.max_ns,
        })
    }

    /// The report. `steal_ns` is what the hypervisor took, by CPU.
    pub(crate) fn report(
        &self,
        totals: &HashMap<Key, Total>,
        steal_ns: &BTreeMap<u32, u64>,
        lost: Lost,
        seconds: f64,
    ) -> Report {
        // One line for all stacks of a sender in one system call: of those, the one that took most is told.
        let mut merged: BTreeMap<_, (Row, u64)> = BTreeMap::new();
        for row in totals.iter().filter_map(|(key, total)| self.row(key, total)).filter(|row| row.count > 0) {
            let sender = (row.sender.clone(), row.cgroup.clone(), row.syscall.clone(), row.via);
            match merged.entry((row.cpu, row.kind, row.cause.clone(), sender)) {
                Entry::Vacant(place) => {
                    let ns = row.total_ns;
                    place.insert((row, ns));
                }
                Entry::Occupied(mut place) => add(place.get_mut(), row),
            }
        }
        let mut rows: Vec<Row> = merged.into_values().map(|(row, _)| row).collect();
        rows.extend(steal_ns.iter().filter(|(_, ns)| **ns > 0).map(|(cpu, ns)| steal(*cpu, *ns)));
        rows.sort_by_key(|row| std::cmp::Reverse((row.total_ns, row.count)));
        let per_cpu = self.context.cpus.iter().map(|cpu| {
            let mine = || rows.iter().filter(|row| row.cpu == cpu);
            let total_ns = mine().map(|row| row.total_ns).sum();
            let share = if seconds > 0.0 { total_ns as f64 / seconds / 1e7 } else { 0.0 };
            Cpu { cpu, count: mine().map(|row| row.count).sum(), total_ns, share }
        });
        Report {
            schema: 1,
            cpus: self.context.cpus.clone(),
            seconds,
            kernel: self.context.kernel.clone(),
            skipped: self.context.skipped.clone(),
            lost_causes: lost.totals,
            lost_events: lost.events,
            per_cpu: per_cpu.collect(),
            rows,
            over: None,
        }
    }

    /// The line of one event of the timeline.
    pub(crate) fn event_row(&self, event: &Event) -> Option<Row> {
        let total = Total { count: 1, ns: event.ns, max_ns: event.ns, pid: event.pid, ..Total::default() };
        self.row(&event.key, &total)
    }

    fn function(&self, address: u64) -> String {
        self.context.symbols.name(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
    }
}

/// Adds a line to another one; `most` is the time of the one whose stack is told.
fn add((one, most): &mut (Row, u64), other: Row) {
    one.count += other.count;
    one.total_ns += other.total_ns;
    one.max_ns = one.max_ns.max(other.max_ns);
    one.pid = one.pid.max(other.pid);
    if other.total_ns > *most {
        *most = other.total_ns;
        one.stack = other.stack;
        if other.advice.text().is_some() {
            one.advice = other.advice;
        }
    }
}

fn cause(facts: &Facts<'_>, subject: u64) -> String {
    let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    match facts.kind {
        Kind::Work if facts.what.is_empty() => facts.function.to_owned(),
        Kind::Work => format!("{} ({})", facts.function, facts.what),
        Kind::Call => or(facts.function, "function call"),
        Kind::Resched => "reschedule".to_owned(),
        Kind::IrqWork => "irq_work".to_owned(),
        Kind::Timer if facts.function.starts_with("tick_") => match tick_reason(facts.detail) {
            why if why.is_empty() => "tick".to_owned(),
            why => format!("tick ({why})"),
        },
        Kind::Timer => or(facts.function, "local timer"),
        Kind::Irq => format!("{} ({subject})", facts.what),
        Kind::Vector => format!("vector {}", facts.detail),
        Kind::Softirq if facts.function.is_empty() => softirq(facts.detail).to_owned(),
        Kind::Softirq => format!("{} ({})", softirq(facts.detail), facts.function),
        Kind::Kthread | Kind::Task => facts.what.to_owned(),
        Kind::Nmi => or(facts.function, "NMI"),
        Kind::Steal => "hypervisor".to_owned(),
    }
}

/// The kernel counts steal in ticks and does not say how often.
fn steal(cpu: u32, ns: u64) -> Row {
    let facts = Facts { kind: Kind::Steal, function: "", what: "", detail: 0, frames: &[], nohz_full: false };
    Row {
        cpu,
        kind: Kind::Steal,
        cause: cause(&facts, 0),
        sender: String::new(),
        pid: 0,
        cgroup: String::new(),
        syscall: None,
        via: None,
        stack: Vec::new(),
        count: 0,
        total_ns: ns,
        max_ns: 0,
        advice: advice(&facts),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn field(text: &str) -> [u8; 16] {
        let mut field = [0; 16];
        field[..text.len()].copy_from_slice(text.as_bytes());
        field
    }

    pub(crate) fn model() -> Model {
        let symbols = Functions::parse(
            "ffffffff81000000 t lru_add_drain_per_cpu\nffffffff81000100 t tick_nohz_handler\n\
             ffffffff81000200 T queue_work_on\nffffffff81000300 T __x64_sys_mbind\n",
        );
        let context = Context {
            cpus: "1-2".parse().unwrap(),
            nohz_full: CpuSet::default(),
            kernel: "6.18".into(),
            skipped: vec!["ipi_entry".into()],
            symbols,
        };
        Model::new(context, Cgroups::new(""))
    }

    pub(crate) fn totals() -> HashMap<Key, Total> {
        let work = Key {
            cpu: 1,
            kind: Kind::Work.number(),
            subject: 0xffff_ffff_8100_0000,
            what: field("mm_percpu_wq"),
            sender: field("migratepages"),
            stack: 7,
            ..Key::default()
        };
        let other = Key { stack: 8, ..work };
        let tick = Key { cpu: 2, kind: Kind::Timer.number(), subject: 0xffff_ffff_8100_0100, detail: 4, ..work };
        let tick = Key { what: [0; 16], sender: [0; 16], stack: -1, ..tick };
        HashMap::from([
            (work, Total { count: 2, ns: 30_000, max_ns: 20_000, last: 0, pid: 70, pad: 0 }),
            (other, Total { count: 1, ns: 10_000, max_ns: 10_000, last: 0, pid: 71, pad: 0 }),
            (tick, Total { count: 100, ns: 200_000, max_ns: 4_000, last: 0, pid: 0, pad: 0 }),
        ])
    }

    pub(crate) fn report() -> (Model, Report) {
        let mut model = model();
        let totals = totals();
        model.learn(totals.keys(), |_| vec![0xffff_ffff_8100_0210, 0xffff_ffff_8100_0310]);
        let report = model.report(&totals, &BTreeMap::from([(1, 0), (2, 10_000_000)]), Lost::default(), 1.0);
        (model, report)
    }

    #[test]
    fn lines_name_cause_and_sender_and_are_ranked_by_time() {
        let (_, report) = report();
        let shown: Vec<_> = report.rows.iter().map(|row| (row.cpu, row.kind, row.cause.as_str(), row.count)).collect();
        assert_eq!(
            shown,
            [
                (2, Kind::Steal, "hypervisor", 0),
                (2, Kind::Timer, "tick (more than one runnable task)", 100),
                (1, Kind::Work, "lru_add_drain_per_cpu (mm_percpu_wq)", 3),
            ],
            "two stacks with the same words are one line"
        );
        let work = &report.rows[2];
        assert_eq!((work.sender.as_str(), work.syscall.as_deref()), ("migratepages", Some("mbind")));
        assert!(work.advice.remedy.unwrap().contains("qpw"));
        assert_eq!(report.per_cpu[1].count, 100);
        assert!((report.per_cpu[1].share - 1.02).abs() < 0.001);
    }

    #[test]
    fn the_json_has_a_schema() {
        let json = serde_json::to_value(report().1).unwrap();
        assert_eq!((json["schema"].as_u64(), json["cpus"].as_str()), (Some(1), Some("1-2")));
        assert_eq!(json["rows"][2]["kind"], "work");
    }
}
