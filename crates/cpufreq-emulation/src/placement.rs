//! Placement of heavy threads on big CPUs, from a record of switches.
//!
//! A heavy stretch is the time from a thread's wake-up until it next sleeps, if it is long: roles of light and heavy
//! threads are told from what they do, without any clock of the guest. A stretch begins when the thread that was light
//! until then first has unbroken work.

/// What happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was put on the CPU.
    Runs,
    /// It was taken off the CPU, and still wants it.
    Preempted,
    /// It left the CPU by itself.
    Sleeps,
    /// It was woken.
    Wakes,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Monotonic clock, ns.
    pub at_ns: u64,
    /// Which thread.
    pub slot: u32,
    /// Where it happened.
    pub cpu: u32,
    /// What.
    pub kind: Kind,
}

/// One heavy stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which thread.
    pub slot: u32,
    /// How long it lasted, ns.
    pub length_ns: u64,
    /// From its begin until the thread first ran on a big CPU, ns; the whole length if it never did.
    pub until_big_ns: u64,
    /// Of the time after `grace`: that it ran on a big CPU, ns.
    pub on_big_ns: u64,
}

/// The heavy stretches of a record that is in order of time: those longer than `least_ns`. `grace_ns` is taken from their
/// begin before `on_big_ns` counts.
pub fn stretches(records: &[Record], big: &[u32], least_ns: u64, grace_ns: u64) -> Vec<Stretch> {
    let threads = records.iter().map(|record| record.slot + 1).max().unwrap_or(0);
    (0..threads).flat_map(|slot| of_thread(records, slot, big, least_ns, grace_ns)).collect()
}

fn of_thread(records: &[Record], slot: u32, big: &[u32], least_ns: u64, grace_ns: u64) -> Vec<Stretch> {
    let mut found = Vec::new();
    // Begin of the stretch, and the spans in it that the thread ran.
    let mut begin = None;
    let mut spans: Vec<(u64, u64, u32)> = Vec::new();
    let mut running: Option<(u64, u32)> = None;
    for record in records.iter().filter(|record| record.slot == slot) {
        match record.kind {
            Kind::Wakes => drop(begin.get_or_insert(record.at_ns)),
            Kind::Runs => {
                // Where the record begins in the midst of a stretch, its begin is unknown: it is left out.
                running = Some((record.at_ns, record.cpu));
            }
            Kind::Preempted | Kind::Sleeps => {
                if let Some((since, cpu)) = running.take() {
                    spans.push((since, record.at_ns, cpu));
                }
                if record.kind == Kind::Sleeps {
                    found.extend(begin.take().and_then(|from| {
                        let length = record.at_ns - from;
                        (length >= least_ns).then(|| stretch(slot, from, length, &spans, big, grace_ns))
                    }));
                    spans.clear();
                }
            }
        }
    }
    found
}

fn stretch(slot: u32, from: u64, length: u64, spans: &[(u64, u64, u32)], big: &[u32], grace_ns: u64) -> Stretch {
    let on_big = || spans.iter().filter(|(_, _, cpu)| big.contains(cpu));
    let until = on_big().next().map_or(length, |(since, _, _)| since.saturating_sub(from));
    let counted = from + grace_ns;
    let time = on_big().map(|(since, to, _)| to.saturating_sub((*since).max(counted))).sum();
    Stretch { slot, length_ns: length, until_big_ns: until, on_big_ns: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ms: u64, slot: u32, cpu: u32, kind: Kind) -> Record {
        Record { at_ns: ms * 1_000_000, slot, cpu, kind }
    }

    #[test]
    fn a_heavy_stretch_is_followed_to_the_big_cpu() {
        use Kind::{Preempted, Runs, Sleeps, Wakes};
        let records = [
            // Light: 1 ms.
            record(0, 1, 1, Wakes),
            record(0, 1, 1, Runs),
            record(1, 1, 1, Sleeps),
            // Heavy: 10 ms on the small CPU 1, then on the big CPU 0.
            record(100, 1, 1, Wakes),
            record(101, 1, 1, Runs),
            record(110, 1, 1, Preempted),
            record(111, 1, 0, Runs),
            record(600, 1, 0, Sleeps),
        ];
        let found = stretches(&records, &[0], 200_000_000, 20_000_000);
        let wanted = Stretch { slot: 1, length_ns: 500_000_000, until_big_ns: 11_000_000, on_big_ns: 480_000_000 };
        assert_eq!(found, [wanted]);
    }

    #[test]
    fn one_that_stays_on_the_small_cpu_never_gets_there() {
        let records = [record(0, 0, 1, Kind::Wakes), record(0, 0, 1, Kind::Runs), record(300, 0, 1, Kind::Sleeps)];
        let found = stretches(&records, &[0], 200_000_000, 20_000_000);
        assert_eq!((found[0].until_big_ns, found[0].on_big_ns), (300_000_000, 0));
    }
}
