//! An analysis as text, as a page, as a trace.

mod html;
mod perfetto;
mod pftrace;
mod proto;
mod strip;
mod text;

pub(crate) use html::render as html;
pub(crate) use perfetto::{write as perfetto, write_to as perfetto_text};
pub(crate) use pftrace::write as pftrace;
pub(crate) use text::render as text;

use crate::analysis::Analysis;

/// A duration for people: `850 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// What the reader must know about this recording's limits.
fn limits(analysis: &Analysis) -> Vec<String> {
    let mut all = Vec::new();
    let mut say = |when: bool, text: String| {
        if when {
            all.push(text);
        }
    };
    say(!analysis.complete, "It was not ended in good order: the recorder was killed, or its disk was full.".into());
    say(analysis.dropped > 0, format!("{} events were lost: the recorder could not follow.", analysis.dropped));
    say(
        analysis.overwritten > 0,
        format!("{} older events were overwritten: it begins where the file's size allowed.", analysis.overwritten),
    );
    say(analysis.damaged > 0, format!("{} blocks of the file are damaged or missing.", analysis.damaged));
    say(analysis.unnamed > 0, format!("{} names of threads found no room in the file.", analysis.unnamed));
    say(analysis.events == 0, "It holds no events.".into());
    say(!analysis.unseen.is_empty(), format!("This kernel does not tell: {}.", analysis.unseen.join(", ")));
    let known: u64 = analysis.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.preemptions_known).sum();
    say(
        known == 0,
        "Critical sections are not known: that needs `entrain host` on the host and `entrain guest` in the guest."
            .into(),
    );
    all
}
