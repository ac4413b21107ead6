//! `--over TIME`: the first stretch of interruptions that takes longer ends the watch, and what led to it is kept.
//!
//! What counts is the time that a CPU was away from its work in one go: an interrupt, the softirq that it raises and the
//! thread that this wakes are three interruptions, each perhaps short, and one stretch. BPF tells of each when it ends,
//! with its own time, what nested inside left out; so interruptions of a CPU that overlap or meet are one stretch.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::interface::{Event, Kind};
use super::model::Model;
use super::view;

/// How often the ring buffer is emptied: so soon the watch ends.
pub(super) const DRAIN: Duration = Duration::from_millis(20);

/// Interruptions of one CPU without a pause between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    cpu: u32,
    start: u64,
    end: u64,
}

/// The last interruptions, and whether a stretch was too long.
pub(super) struct Over {
    limit_ns: u64,
    keep: usize,
    last: VecDeque<Event>,
    found: Option<Stretch>,
}

/// For JSON: the stretch, and the last interruptions before and in it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    limit_ns: u64,
    cpu: u32,
    ns: u64,
    timeline: Vec<Entry>,
}

/// One interruption of the timeline.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    /// From the begin of the stretch on, ns; what came before has less than 0.
    at_ns: i64,
    cpu: u32,
    ns: u64,
    kind: Kind,
    cause: String,
    sender: String,
    stack: Vec<String>,
}

impl Over {
    pub(super) fn new(limit: Duration, keep: usize) -> Self {
        Self { limit_ns: limit.as_nanos() as u64, keep, last: VecDeque::new(), found: None }
    }

    /// Learns of more interruptions, until a stretch was too long.
    pub(super) fn learn(&mut self, new: &[Event]) {
        if self.found() {
            return;
        }
        self.last.extend(new);
        self.last.make_contiguous().sort_by_key(|event| event.start);
        let found = longest(self.last.iter());
        self.found = found.filter(|stretch| stretch.end - stretch.start > self.limit_ns);
        // What came after it does not explain it.
        if let Some(stretch) = self.found {
            self.last.retain(|event| event.start < stretch.end);
        }
        let excess = self.last.len().saturating_sub(self.keep);
        self.last.drain(..excess);
    }

    /// Whether one was.
    pub(super) fn found(&self) -> bool {
        self.found.is_some()
    }

    /// The interruptions that are kept, oldest first.
    pub(super) fn events(&self) -> Vec<Event> {
        self.last.iter().copied().collect()
    }

    /// What was found.
    pub(super) fn report(&self, model: &Model) -> Option<Found> {
        let stretch = self.found?;
        let entry = |event: &Event| {
            let row = model.event_row(event)?;
            Some(Entry {
                at_ns: event.start.cast_signed().wrapping_sub(stretch.start.cast_signed()),
                cpu: row.cpu,
                ns: event.ns,
                kind: row.kind,
                sender: view::sender(&row).trim_start_matches(" <- ").to_owned(),
                cause: row.cause,
                stack: row.stack,
            })
        };
        let timeline = self.last.iter().filter_map(entry).collect();
        Some(Found { limit_ns: self.limit_ns, cpu: stretch.cpu, ns: stretch.end - stretch.start, timeline })
    }
}

/// The longest stretch of these, which are in the order of their begins.
fn longest<'a>(events: impl Iterator<Item = &'a Event>) -> Option<Stretch> {
    let mut open: BTreeMap<u32, Stretch> = BTreeMap::new();
    let mut longest: Option<Stretch> = None;
    for event in events {
        let cpu = event.key.cpu;
        let fresh = Stretch { cpu, start: event.start, end: event.start + event.ns };
        let stretch = open.entry(cpu).or_insert(fresh);
        if event.start > stretch.end {
            *stretch = fresh;
        } else if *stretch != fresh {
            // What nests has its own time taken out of what it interrupts: their sum is how long both took.
            stretch.end += event.ns;
        }
        if longest.is_none_or(|known| stretch.end - stretch.start > known.end - known.start) {
            longest = Some(*stretch);
        }
    }
    longest
}

impl Found {
    /// The timeline for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "CPU {} was interrupted for {} in one go (limit {}); the last interruptions, from its begin on:\n{:>12} {:>4} {:>9} {:<11} CAUSE\n",
            self.cpu,
            view::time(self.ns),
            view::time(self.limit_ns),
            "AT us",
            "CPU",
            "TOOK",
            "KIND"
        );
        for entry in &self.timeline {
            let from = if entry.sender.is_empty() { String::new() } else { format!(" <- {}", entry.sender) };
            text.push_str(&format!(
                "{:>12.1} {:>4} {:>9} {:<11} {}{from}\n",
                entry.at_ns as f64 / 1e3,
                entry.cpu,
                view::time(entry.ns),
                entry.kind.word(),
                entry.cause
            ));
        }
        text
    }
}

/// `50us`, `1ms`, `2s`, or ns without a unit.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "ns" | "" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("'{unit}' is no unit: ns, us, ms and s are")),
    };
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is no time: give one like 50us"))?;
    let ns = number * scale;
    if (1.0..=1e12).contains(&ns) {
        Ok(Duration::from_nanos(ns as u64))
    } else {
        Err(format!("'{text}' is out of range: 1ns to 1000s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::model::tests::{field, model};

    fn event(cpu: u32, start: u64, ns: u64) -> Event {
        let mut event = Event { start, ns, ..Event::default() };
        event.key.cpu = cpu;
        event.key.kind = Kind::Kthread.number();
        event.key.what = field("rcuc/1");
        event.key.stack = -1;
        event
    }

    #[test]
    fn interruptions_that_meet_are_one_stretch() {
        let of = |events: &[Event]| longest(events.iter()).map(|one| (one.cpu, one.end - one.start));
        // A thread of 30 us own time with an interrupt of 10 us inside: 40 us.
        assert_eq!(of(&[event(1, 100, 30), event(1, 110, 10)]), Some((1, 40)));
        // One right after the other.
        assert_eq!(of(&[event(1, 100, 30), event(1, 130, 30)]), Some((1, 60)));
        assert_eq!(of(&[event(1, 100, 30), event(1, 131, 20)]), Some((1, 30)), "with a pause between them");
        assert_eq!(of(&[event(1, 100, 30), event(2, 110, 31)]), Some((2, 31)), "on another CPU");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_first_that_is_too_long_ends_the_watch_and_keeps_what_led_to_it() {
        let mut over = Over::new(Duration::from_micros(50), 3);
        let short: Vec<Event> = (0..10).map(|n| event(1, n * 100_000, 20_000)).collect();
        over.learn(&short);
        assert!(!over.found());
        assert_eq!(over.events().len(), 3);
        assert!(over.report(&model()).is_none());
        // Nested ones are told first; the second half comes with the next look.
        over.learn(&[event(1, 1_010_000, 5_000)]);
        assert!(!over.found());
        over.learn(&[event(1, 1_000_000, 50_000), event(1, 2_000_000, 1_000)]);
        assert!(over.found());
        let found = over.report(&model()).expect("found");
        assert_eq!((found.cpu, found.ns), (1, 55_000));
        let at: Vec<i64> = found.timeline.iter().map(|entry| entry.at_ns).collect();
        assert_eq!(at, [-100_000, 0, 10_000], "and nothing that came after");
        let text = found.text();
        assert!(text.contains("rcuc/1") && text.contains("limit 50"), "{text}");
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(parse_time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_time("700"), Ok(Duration::from_nanos(700)));
        for wrong in ["", "us", "50 parsec", "0us", "1e9s", "-1us"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
