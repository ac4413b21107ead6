//! The table: on a live screen and as plain text.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Wrap};

use super::report::{Report, Row};

/// Columns before the cause.
const FIXED: usize = 44;
/// Lines of the pane that tells more about the chosen line.
const DETAILS: u16 = 6;

/// What the user has chosen to see.
#[derive(Debug, Default)]
pub(crate) struct View {
    chosen: usize,
    scroll: usize,
}

impl View {
    /// Acts on a key; true ends the program.
    pub(crate) fn key(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Down => self.chosen += 1,
            KeyCode::Up => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Home => self.chosen = 0,
            _ => {}
        }
        false
    }

    /// Draws the screen.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, report: &Report) {
        let [top, head, body, details, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(DETAILS),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let width = frame.area().width as usize;
        let room = body.height as usize;
        self.chosen = self.chosen.min(report.rows.len().saturating_sub(1));
        self.scroll = self.scroll.min(self.chosen).max((self.chosen + 1).saturating_sub(room));
        frame.render_widget(Paragraph::new(summary(report)), top);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(format!("{:<width$}", header())).style(reversed), head);
        let lines: Vec<Line<'_>> = report
            .rows
            .iter()
            .enumerate()
            .skip(self.scroll)
            .take(room)
            .map(|(at, row)| {
                let style = if at == self.chosen { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
                let mark = if at == self.chosen { '>' } else { ' ' };
                Line::styled(format!("{mark}{}", &line(row, width)[1..]), style)
            })
            .collect();
        if lines.is_empty() {
            frame.render_widget(Paragraph::new("Nothing has interrupted these CPUs yet."), body);
        } else {
            frame.render_widget(Paragraph::new(Text::from(lines)), body);
        }
        if let Some(row) = report.rows.get(self.chosen) {
            frame.render_widget(Paragraph::new(more(row).join("\n")).wrap(Wrap { trim: true }), details);
        }
        frame.render_widget(
            Paragraph::new("q quit  up/down choose a line: its stack and remedy stand below the table"),
            foot,
        );
    }
}

/// Lines of the plain table; the JSON has all.
const PLAIN: usize = 50;
/// Causes named with a remedy.
const NAMED: usize = 4;

/// The table and what to do.
pub(crate) fn plain(report: &Report) -> String {
    let mut text = format!("{}\n{}\n", summary(report), header());
    for row in report.rows.iter().take(PLAIN) {
        text.push_str(&line(row, 140));
        text.push('\n');
    }
    if report.rows.len() > PLAIN {
        text.push_str(&format!(" {} more that took less; --json has all\n", report.rows.len() - PLAIN));
    }
    let remedies = remedies(report);
    if !remedies.is_empty() {
        text.push_str(&format!("\nWhat helps, most time first:\n{}\n", remedies.join("\n")));
    }
    text
}

/// Each remedy once, with the causes that it is for.
fn remedies(report: &Report) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for row in &report.rows {
        let Some(remedy) = row.advice.remedy else { continue };
        let at = found.iter().position(|(text, _)| *text == remedy).unwrap_or_else(|| {
            found.push((remedy, Vec::new()));
            found.len() - 1
        });
        let cause = format!("{} {}", row.kind.word(), row.cause);
        if !found[at].1.contains(&cause) {
            found[at].1.push(cause);
        }
    }
    let told = found.iter().map(|(remedy, causes)| {
        let more = if causes.len() > NAMED { ", …" } else { "" };
        format!("  {}{more}:\n      {remedy}", causes[..causes.len().min(NAMED)].join(", "))
    });
    told.collect()
}

fn summary(report: &Report) -> String {
    let count: u64 = report.per_cpu.iter().map(|cpu| cpu.count).sum();
    let total: u64 = report.per_cpu.iter().map(|cpu| cpu.total_ns).sum();
    let lost =
        if report.lost_causes > 0 { format!(", {} not attributed (full)", report.lost_causes) } else { String::new() };
    let seconds = report.seconds.max(0.001);
    format!(
        "CPU {}: {count} interruptions in {:.1} s ({:.1}/s), {} taken{lost}",
        report.cpus,
        report.seconds,
        count as f64 / seconds,
        time(total),
    )
}

fn header() -> String {
    format!(" {:>3} {:<11} {:>7} {:>8} {:>8}  {}", "CPU", "KIND", "COUNT", "TIME", "MAX", "CAUSE <- SENDER (PID) IN")
}

/// One line of at most `width` characters.
fn line(row: &Row, width: usize) -> String {
    let numbers = format!(
        " {:>3} {:<11} {:>7} {:>8} {:>8}  ",
        row.cpu,
        row.kind.word(),
        if row.count == 0 { "-".to_owned() } else { row.count.to_string() },
        time(row.total_ns),
        if row.count == 0 { "-".to_owned() } else { time(row.max_ns) },
    );
    let cause = format!("{}{}", row.cause, sender(row));
    numbers + &cause.chars().take(width.saturating_sub(FIXED)).collect::<String>()
}

/// Who caused it, in words; empty when that is not known.
pub(crate) fn sender(row: &Row) -> String {
    match (row.via, &row.syscall) {
        (Some(via), _) => format!(" <- {via}"),
        (None, _) if row.sender.is_empty() => String::new(),
        (None, Some(call)) => format!(" <- {} ({}) {call}()", row.sender, row.pid),
        (None, None) => format!(" <- {} ({})", row.sender, row.pid),
    }
}

/// What else is known about a line.
pub(crate) fn more(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    if !row.sender.is_empty() {
        lines.push(format!("sender: {} ({}) {}", row.sender, row.pid, row.cgroup));
    }
    if !row.stack.is_empty() {
        lines.push(format!("stack: {}", row.stack.iter().take(8).cloned().collect::<Vec<_>>().join(" < ")));
    }
    lines.push(match row.advice.explanation {
        Some(text) => format!("explained: {text}"),
        None => format!("remedy: {}", row.advice.remedy.unwrap_or("none is known")),
    });
    lines
}

/// A time in at most 8 characters.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::model::tests::report;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn the_screen_shows_lines_and_tells_about_the_chosen_one() {
        let (_, report) = report();
        let mut view = View::default();
        for _ in 0..5 {
            assert!(!view.key(KeyCode::Down));
        }
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame, &report)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let screen: Vec<String> =
            (0..24).map(|y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>()).collect();
        assert!(screen[0].starts_with("CPU 1-2: 103 interruptions in 1.0 s"), "{}", screen[0]);
        assert!(
            screen[4].starts_with(">  1 work              3    40 us    20 us  lru_add_drain_per_cpu"),
            "{}",
            screen[4]
        );
        let all = screen.join("\n");
        assert!(all.contains("stack: queue_work_on < __x64_sys_mbind"), "{all}");
        assert!(all.contains("remedy: PREEMPT_RT"), "{all}");
        assert!(view.key(KeyCode::Char('q')));
    }

    #[test]
    fn plain_text_ends_with_what_helps() {
        let text = plain(&report().1);
        assert!(text.contains("lru_add_drain_per_cpu (mm_percpu_wq) <- migratepages (71) mbind()"), "{text}");
        assert!(text.contains("What helps"), "{text}");
    }
}
