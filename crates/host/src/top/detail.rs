//! One vCPU: what it did during the last minute, and why it waits.

use std::collections::HashMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Sparkline};

use super::history::History;
use super::rows::{Row, managed};
use crate::counters::ScheduleStatus;
use crate::status::{Status, VcpuStatus, VmStatus, WaitCause};

/// Who had the pCPU that the vCPU waited for, over one interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Instead {
    pub(super) name: String,
    pub(super) cause: WaitCause,
    /// Share of the interval, %.
    pub(super) share: f64,
    /// A second.
    pub(super) waits: f64,
    /// Average length of a wait, ms.
    pub(super) mean_ms: f64,
}

/// Of one vCPU, most time first.
pub(super) fn instead(before: &Status, now: &Status, tid: i32) -> Vec<Instead> {
    let seconds = now.now_ns.saturating_sub(before.now_ns) as f64 / 1e9;
    let of = |status: &Status| -> HashMap<(i32, WaitCause), (u64, u64)> {
        let mine = status.waits.iter().filter(|wait| wait.tid == tid);
        mine.map(|wait| ((wait.who, wait.cause), (wait.ns, wait.waits))).collect()
    };
    let old = of(before);
    let mut all: Vec<Instead> = now
        .waits
        .iter()
        .filter(|wait| wait.tid == tid && seconds > 0.0)
        .filter_map(|wait| {
            let was = old.get(&(wait.who, wait.cause)).copied().unwrap_or_default();
            let (ns, waits) = (wait.ns.saturating_sub(was.0) as f64, wait.waits.saturating_sub(was.1) as f64);
            (waits > 0.0).then(|| Instead {
                name: wait.name.clone(),
                cause: wait.cause,
                share: ns / seconds / 1e7,
                waits: waits / seconds,
                mean_ms: ns / waits / 1e6,
            })
        })
        .collect();
    all.sort_by(|a, b| b.share.total_cmp(&a.share));
    all
}

fn why(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::Woken => "after its wake-up",
        WaitCause::Preempted => "preempted",
        WaitCause::Critical => "in a critical section",
        WaitCause::GaveWay => "it spun and gave way",
    }
}

/// The line of one culprit, and its heading; at most 79 characters.
pub(super) fn line(one: &Instead) -> String {
    let name: String = one.name.chars().take(30).collect();
    format!("{name:<30} {:>6.1} {:>8.0} {:>8.2}  {:<21}", one.share, one.waits, one.mean_ms, why(one.cause))
}

pub(super) fn heading() -> String {
    format!("{:<30} {:>6} {:>8} {:>8}  {:<21}", "WHO HAD ITS PCPU", "%TIME", "WAITS/s", "MEAN ms", "WHY IT WAITED")
}

/// Draws the vCPU; `row` are its rates.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    (vm, vcpu, row): (&VmStatus, &VcpuStatus, &Row),
    (before, now): (&Status, &Status),
    history: &History,
) {
    let about = about(vm, vcpu, row, before, now);
    let layout = Layout::vertical([
        Constraint::Length(about.len() as u16),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
    ]);
    let [facts, run, ready, scale, head, body] = layout.areas(area);
    frame.render_widget(Paragraph::new(Text::from(about)), facts);
    let label = 12;
    let width = usize::from(area.width.saturating_sub(label));
    let halves = [Constraint::Length(label), Constraint::Min(0)];
    for (place, name, value, colour, of) in [
        (run, "%RUN", row.run, Color::Green, (|sample| sample.run) as fn(&super::history::Sample) -> f64),
        (ready, "%RDY", row.ready, Color::Yellow, |sample| sample.ready),
    ] {
        let [left, right] = Layout::horizontal(halves).areas(place);
        frame.render_widget(Paragraph::new(format!("{name} {value:>5.1}")), left);
        let data = history.columns(vcpu.tid, width, of);
        frame.render_widget(Sparkline::default().data(&data).max(1000).style(Style::new().fg(colour)), right);
    }
    let [_, right] = Layout::horizontal(halves).areas(scale);
    let ends = format!("{:<width$}", "60 s ago", width = width.saturating_sub(3)) + "now";
    frame.render_widget(Paragraph::new(ends).style(Style::new().add_modifier(Modifier::DIM)), right);
    let bar = format!("{:<width$}", heading(), width = usize::from(area.width));
    frame.render_widget(Paragraph::new(bar).style(Style::new().add_modifier(Modifier::REVERSED)), head);
    let all = instead(before, now, vcpu.tid);
    let lines: Vec<Line<'_>> =
        all.iter().take(usize::from(body.height)).map(|one| Line::styled(line(one), style(one))).collect();
    if lines.is_empty() {
        frame.render_widget(Paragraph::new("It has not waited for a pCPU during this interval."), body);
    }
    frame.render_widget(Paragraph::new(Text::from(lines)), body);
}

fn about(vm: &VmStatus, vcpu: &VcpuStatus, row: &Row, before: &Status, now: &Status) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let for_ms = now.now_ns.saturating_sub(vcpu.since_ns) as f64 / 1e6;
    let critical = row.critical.map_or("unknown (no agent)".to_owned(), |rate| format!("{rate:.0}/s"));
    let spun: String = if vcpu.preempt_count > 0 && vcpu.state == "preempted" && vcpu.samples > 0 {
        format!(", inside a critical section (preempt count {})", vcpu.preempt_count)
    } else {
        String::new()
    };
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("{} vCPU {}", vm.name(), vcpu.id), bold),
            Span::raw(format!("  thread {}, {}", vcpu.tid, row.link)),
        ]),
        Line::from(whose(vm)),
        Line::from(format!("{} for {for_ms:.1} ms, pCPU {}{spun}", vcpu.state, vcpu.pcpu)),
        Line::from(format!("switched out while runnable {:.0}/s, in critical sections {critical}", row.preemptions)),
    ];
    let seconds = now.now_ns.saturating_sub(before.now_ns) as f64 / 1e9;
    let old = before.vms.iter().find(|one| one.pid == vm.pid);
    let old_vcpu = old.and_then(|old| old.vcpus.iter().find(|one| one.tid == vcpu.tid));
    for (of, vcpus, was, is) in [
        ("this vCPU", 1, old_vcpu.and_then(|old| old.schedule), vcpu.schedule),
        ("whole VM", vm.vcpus.len(), old.and_then(|old| old.schedule), vm.schedule),
    ] {
        if let (Some(was), Some(is)) = (was, is) {
            lines.extend(account(of, vcpus, &was, &is, seconds).map(Line::from));
        }
    }
    lines
}

/// UUID, manager and process of the VM.
fn whose(vm: &VmStatus) -> String {
    let uuid = vm.identity.uuid.as_deref().map_or("no UUID".to_owned(), |uuid| format!("UUID {uuid}"));
    let managed = managed(vm);
    let separator = if managed.is_empty() { "" } else { ", " };
    format!("{uuid}{separator}{managed}, pid {}", vm.pid)
}

/// What the host's scheduler has done for so many vCPUs in `seconds`, in lines of at most 79 characters.
fn account(of: &str, vcpus: usize, was: &ScheduleStatus, is: &ScheduleStatus, seconds: f64) -> [String; 3] {
    let rate = |value: fn(&ScheduleStatus) -> u64| {
        if seconds > 0.0 { value(is).saturating_sub(value(was)) as f64 / seconds } else { 0.0 }
    };
    let ms = |value: fn(&ScheduleStatus) -> u64| rate(value) / 1e6;
    let refused = rate(|s| s.refused_not_critical + s.refused_event_spent + s.refused_budget_spent);
    [
        format!(
            "{of:<9} slices extended {:.0}/s ({:.1} ms/s, {:.1} repaid), refused {refused:.0}/s",
            rate(|s| s.extensions),
            ms(|s| s.extended_ns),
            ms(|s| s.repaid_ns),
        ),
        format!(
            "{:<9} yields {:.0}/s, not: asleep {:.0}, free {:.0}, again {:.0}, ahead {:.0}",
            "",
            rate(|s| s.yields_honoured),
            rate(|s| s.yields_not_waiting),
            rate(|s| s.yields_holds_nothing),
            rate(|s| s.yields_just_boosted),
            rate(|s| s.yields_unfair),
        ),
        format!(
            "{:<9} beside a sibling {:.0} % of the time, lag {:+.1} ms",
            "",
            rate(|s| s.corun_ns) / 1e7 / vcpus.max(1) as f64,
            is.lag_ns as f64 / 1e6,
        ),
    ]
}

fn style(one: &Instead) -> Style {
    match one.cause {
        WaitCause::Critical => Style::new().fg(Color::Red),
        WaitCause::GaveWay => Style::new().fg(Color::Magenta),
        WaitCause::Woken | WaitCause::Preempted => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::WaitStatus;
    use crate::top::rows::tests::status;

    #[test]
    fn an_account_is_of_the_interval_and_fits() {
        let most = 9_999_999;
        let was = ScheduleStatus { extensions: 10, corun_ns: 0, ..Default::default() };
        let is = ScheduleStatus {
            extensions: 30,
            extended_ns: 2_000_000,
            corun_ns: 1_000_000_000,
            lag_ns: -1_500_000,
            ..Default::default()
        };
        let [first, _, last] = account("this vCPU", 1, &was, &is, 2.0);
        assert_eq!(first, "this vCPU slices extended 10/s (1.0 ms/s, 0.0 repaid), refused 0/s");
        assert_eq!(last.trim(), "beside a sibling 50 % of the time, lag -1.5 ms");
        let [_, _, last] = account("whole VM", 2, &was, &is, 2.0);
        assert_eq!(last.trim(), "beside a sibling 25 % of the time, lag -1.5 ms");
        let busy = ScheduleStatus {
            yields_honoured: most / 100,
            yields_not_waiting: most / 1000,
            yields_holds_nothing: most / 1000,
            yields_just_boosted: most / 1000,
            yields_unfair: most / 1000,
            ..is
        };
        assert!(account("whole VM", 4, &was, &busy, 1.0).iter().all(|line| line.chars().count() <= 79));
    }

    #[test]
    fn culprits_are_those_of_the_interval() {
        let wait = |ns, waits, cause| WaitStatus { tid: 0, who: 7, name: "stress (7)".into(), cause, ns, waits };
        let mut before = status(0, &[("a", &[(0, 0, 0)])]);
        before.waits = vec![wait(1_000_000_000, 100, WaitCause::Preempted), wait(5, 5, WaitCause::Woken)];
        let mut now = status(2_000_000_000, &[("a", &[(0, 0, 0)])]);
        now.waits = vec![
            wait(1_400_000_000, 120, WaitCause::Preempted),
            wait(5, 5, WaitCause::Woken),
            wait(800_000_000, 4, WaitCause::Critical),
        ];
        let all = instead(&before, &now, 0);
        assert_eq!(all.len(), 2, "what did not happen now is not shown");
        assert_eq!((all[0].cause, all[0].share, all[0].waits, all[0].mean_ms), (WaitCause::Critical, 40.0, 2.0, 200.0));
        assert_eq!((all[1].share, all[1].waits, all[1].mean_ms), (20.0, 10.0, 20.0));
        assert!(instead(&before, &now, 1).is_empty());
        assert!(line(&all[0]).chars().count() <= 79 && heading().chars().count() <= 79);
    }
}
