//! The report as one HTML page.

use std::collections::HashMap;
use std::fmt::Write as _;

use entrain_html::{Page, escape};

use super::interface::{Event, Kind};
use super::model::Model;
use super::report::Report;
use super::view::{sender, time};

const STYLE: &str = include_str!("page.css");
/// Interruptions drawn at most, and in each lane; the longest ones are.
const DRAWN: usize = 8000;
const IN_LANE: usize = 600;
/// Width of the timeline in its own units, and height of a lane.
const WIDTH: f64 = 1000.0;
const LANE: f64 = 18.0;

/// Lanes of a CPU, top down.
const LANES: [Kind; 11] = [
    Kind::Task,
    Kind::Kthread,
    Kind::Work,
    Kind::Softirq,
    Kind::Call,
    Kind::Resched,
    Kind::IrqWork,
    Kind::Timer,
    Kind::Irq,
    Kind::Vector,
    Kind::Nmi,
];

/// The whole page. `events` are the timeline's, `began_ns` its begin (CLOCK_MONOTONIC).
pub(crate) fn render(report: &Report, model: &Model, events: &[Event], began_ns: u64) -> String {
    Page::new(&format!("Interruptions of CPU {}", report.cpus), STYLE)
        .section(&head(report))
        .section(&timeline(report, model, events, began_ns))
        .section(&table(report))
        .finish()
}

fn head(report: &Report) -> String {
    let count: u64 = report.per_cpu.iter().map(|cpu| cpu.count).sum();
    let mut html = format!(
        "<header><h1>Interruptions of CPU {}</h1><p><b>{count}</b> in {:.1} s on Linux {}</p><dl>",
        report.cpus,
        report.seconds,
        escape(&report.kernel)
    );
    for cpu in &report.per_cpu {
        let _ = write!(
            html,
            "<dt>CPU {}</dt><dd>{} interruptions, {} taken, {:.3} % of the time</dd>",
            cpu.cpu,
            cpu.count,
            time(cpu.total_ns),
            cpu.share
        );
    }
    if !report.skipped.is_empty() {
        let _ = write!(html, "<dt>not seen</dt><dd>this kernel lacks: {}</dd>", escape(&report.skipped.join(", ")));
    }
    if report.lost_causes > 0 {
        let _ = write!(html, "<dt>not attributed</dt><dd>{} interruptions: too many causes</dd>", report.lost_causes);
    }
    html + "</dl></header>"
}

fn timeline(report: &Report, model: &Model, events: &[Event], began_ns: u64) -> String {
    let mut html = "<section><h2>Timeline</h2>".to_owned();
    let mut drawn: Vec<&Event> = events.iter().collect();
    drawn.sort_by_key(|event| std::cmp::Reverse(event.ns));
    // Lanes of short interruptions would stay empty if the longest of all were taken.
    let mut in_lane: HashMap<_, usize> = HashMap::new();
    drawn.retain(|event| {
        let count = in_lane.entry((event.key.cpu, event.key.kind)).or_default();
        *count += 1;
        *count <= IN_LANE
    });
    drawn.truncate(DRAWN);
    let missing = (events.len() - drawn.len()) as u64 + report.lost_events;
    let _ = write!(
        html,
        "<p>Each bar is one interruption, at least a pixel wide; hold the pointer over it for its cause.{}</p>",
        if missing > 0 {
            format!(" The {} longest of each kind are drawn, {missing} shorter or later ones are not.", drawn.len())
        } else {
            String::new()
        }
    );
    let span = report.seconds.max(1e-9) * 1e9;
    for cpu in report.cpus.iter() {
        let mine: Vec<&&Event> = drawn.iter().filter(|event| event.key.cpu == cpu).collect();
        let lanes: Vec<Kind> =
            LANES.into_iter().filter(|kind| mine.iter().any(|event| event.key.kind == kind.number())).collect();
        let _ = write!(html, "<h3>CPU {cpu}</h3>");
        if lanes.is_empty() {
            html.push_str("<p>Nothing.</p>");
            continue;
        }
        let height = lanes.len() as f64 * LANE;
        html.push_str("<div class=\"lanes\"><div class=\"names\">");
        for kind in &lanes {
            let _ = write!(html, "<span>{}</span>", kind.word());
        }
        let _ = write!(
            html,
            "</div><svg viewBox=\"0 0 {WIDTH} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"Interruptions of CPU {cpu} over time\" style=\"height:{height}px\">"
        );
        for event in mine {
            let Some(row) = model.event_row(event) else { continue };
            let Some(lane) = lanes.iter().position(|kind| *kind == row.kind) else { continue };
            let at = event.start.saturating_sub(began_ns) as f64;
            let _ = write!(
                html,
                "<rect class=\"k{}\" x=\"{:.2}\" y=\"{:.0}\" width=\"{:.2}\" height=\"{:.0}\"><title>{:.6} s, {}: {}{}</title></rect>",
                event.key.kind.0,
                at / span * WIDTH,
                lane as f64 * LANE + 2.0,
                (event.ns as f64 / span * WIDTH).max(1.0),
                LANE - 4.0,
                at / 1e9,
                time(event.ns),
                escape(&row.cause),
                escape(&sender(&row))
            );
        }
        let _ =
            write!(html, "</svg></div><div class=\"scale\"><span>0 s</span><span>{:.1} s</span></div>", report.seconds);
    }
    html + "</section>"
}

fn table(report: &Report) -> String {
    let mut html = "<section><h2>Causes, most time first</h2><div class=\"scroll\"><table><thead><tr><th>CPU<th>kind\
                    <th class=\"n\">count<th class=\"n\">time<th class=\"n\">longest<th>cause, sender, what helps</tr></thead><tbody>"
        .to_owned();
    for row in &report.rows {
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td><b>{}</b>{}",
            row.cpu,
            row.kind.word(),
            row.count,
            time(row.total_ns),
            time(row.max_ns),
            escape(&row.cause),
            escape(&sender(row))
        );
        if !row.cgroup.is_empty() {
            let _ = write!(html, "<div class=\"dim\">cgroup {}</div>", escape(&row.cgroup));
        }
        if !row.stack.is_empty() {
            let _ = write!(html, "<div class=\"dim\">{}</div>", escape(&row.stack.join(" < ")));
        }
        let class = if row.advice.remedy.is_some() { "good" } else { "dim" };
        if let Some(text) = row.advice.text() {
            let _ = write!(html, "<div class=\"{class}\">{}</div>", escape(text));
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table></div></section>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::model::tests::{report, totals};

    #[test]
    fn the_page_holds_timeline_and_causes_and_no_markup_from_names() {
        let (model, mut report) = report();
        report.rows[2].sender = "<b>\"&".into();
        let events: Vec<Event> = totals()
            .into_iter()
            .map(|(key, total)| Event { start: 1_500_000_000, ns: total.ns, key, pid: total.pid, pad: 0 })
            .collect();
        let page = render(&report, &model, &events, 1_000_000_000);
        assert_eq!(page.matches("<rect").count(), 3);
        assert!(page.contains("x=\"500.00\""), "half of the second");
        assert!(page.contains("&lt;b&gt;&quot;&amp;") && !page.contains("<b>\""));
        assert!(page.contains("lru_add_drain_per_cpu") && page.contains("qpw"));
    }
}
