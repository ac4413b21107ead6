//! The screen.

use std::fmt::Write;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Clear, Paragraph};

use super::detail;
use super::history::History;
use super::rows::{Order, Row, rows, select};
use crate::status::Status;

/// Width of the table; what is left over goes to the VM's name.
const WIDTH: usize = 79;
const NAME: usize = 12;

const HELP: &str = "\
VM      what the VMM was told to call it, or the VMM's program
vCPU    KVM's number of the vCPU
STATE   running: on a pCPU; halted: waits for an interrupt or its VMM;
        preempted: runnable, waits for a pCPU
PCPU    the pCPU that it is on or was on last
%RUN    share of the interval on a pCPU
%RDY    share of the interval runnable but not running
%STL    steal: the same as the guest sees it, from the kernel's accounting
PRE/s   times a second it was switched out while runnable
CS/s    of those, inside a critical section of the guest's kernel
        (-: unknown, no agent in the guest)
INST    instant: would run at once if it were kicked now
LINK    paired; silent: no agent found; read-only: RAM not shared;
        unsupported by this kernel; partial, migrating, refused: see the log

s  sort by the next column      r  reverse the order
/  filter (Enter ends it)       v  VMs or vCPUs
arrows  choose a line           Enter  VM -> vCPUs -> why it waits
Esc  back                       ?  this help         q  quit";

/// What the user has chosen to see.
#[derive(Debug)]
pub(super) struct View {
    order: Order,
    reverse: bool,
    filter: String,
    typing: bool,
    vms: bool,
    help: bool,
    scroll: usize,
    /// Line of the table that is chosen.
    cursor: usize,
    /// Only this VM's vCPUs (its VMM's process).
    vm: Option<i32>,
    /// Only this vCPU (its thread).
    vcpu: Option<i32>,
    /// The lines as last drawn, to know what is chosen.
    shown: Vec<(i32, Option<i32>)>,
    history: History,
}

impl View {
    pub(super) fn new(order: Order, filter: String, vms: bool) -> Self {
        Self {
            order,
            reverse: false,
            filter,
            typing: false,
            vms,
            help: false,
            scroll: 0,
            cursor: 0,
            vm: None,
            vcpu: None,
            shown: Vec::new(),
            history: History::default(),
        }
    }

    /// Whether the screen shows who runs while a vCPU waits.
    pub(super) fn wants_waits(&self) -> bool {
        self.vcpu.is_some()
    }

    /// Keeps an interval for the last minute.
    pub(super) fn learn(&mut self, before: &Status, now: &Status) {
        self.history.add(now.now_ns, &rows(before, now, false));
    }

    /// Acts on a key; true ends the program.
    pub(super) fn key(&mut self, key: KeyCode) -> bool {
        if self.typing {
            match key {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.len() < 40 => self.filter.push(c),
                _ => {}
            }
            return false;
        }
        match key {
            KeyCode::Char('q') => return !std::mem::take(&mut self.help),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.back(),
            KeyCode::Enter | KeyCode::Right => self.enter(),
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('v') => (self.vms, self.vm, self.vcpu) = (!self.vms, None, None),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Down => self.cursor += 1,
            KeyCode::Up => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::PageDown => self.cursor += 10,
            KeyCode::PageUp => self.cursor = self.cursor.saturating_sub(10),
            KeyCode::Home => self.cursor = 0,
            _ => {}
        }
        false
    }

    /// Into the chosen line: from a VM to its vCPUs, from a vCPU to why it waits.
    fn enter(&mut self) {
        match self.shown.get(self.cursor) {
            _ if self.vcpu.is_some() || self.help => {}
            Some((_, Some(tid))) => self.vcpu = Some(*tid),
            Some((pid, None)) => (self.vm, self.cursor) = (Some(*pid), 0),
            None => {}
        }
    }

    fn back(&mut self) {
        if self.help {
            self.help = false;
        } else if self.vcpu.take().is_none() {
            self.vm = None;
        }
    }

    /// The lines that the user wants, in his order.
    pub(super) fn select(&self, mut rows: Vec<Row>) -> Vec<Row> {
        rows.retain(|row| self.vm.is_none_or(|pid| row.pid == pid));
        select(rows, self.order, self.reverse, &self.filter)
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, before: &Status, now: &Status) {
        let area = frame.area();
        let told = summary(now);
        let layout = Layout::vertical([
            Constraint::Length(told.lines().count() as u16),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ]);
        let [top, head, body, foot] = layout.areas(area);
        // Where no guest can be paired, each line says so, and takes two columns more for it.
        let said = if now.unpaired.is_some() { "unsupported".len() - "read-only".len() } else { 0 };
        let name = NAME + (area.width as usize).saturating_sub(WIDTH + 1) - said;
        frame.render_widget(Paragraph::new(told), top);
        if let (Some(tid), false) = (self.vcpu, self.help) {
            let rest = Rect { height: area.height.saturating_sub(top.height + 1), y: area.y + top.height, ..area };
            self.draw_vcpu(frame, rest, tid, before, now);
            frame.render_widget(Paragraph::new("Esc back  ? help  q quit"), foot);
            return;
        }
        let all = self.select(rows(before, now, self.vms && self.vm.is_none()));
        self.shown = all.iter().map(|row| (row.pid, row.tid)).collect();
        let room = body.height as usize;
        self.cursor = self.cursor.min(all.len().saturating_sub(1));
        self.scroll = self.scroll.min(self.cursor).max((self.cursor + 1).saturating_sub(room));
        let bold = Style::new().add_modifier(Modifier::REVERSED);
        let header = format!("{:<width$}", header(name), width = area.width as usize);
        frame.render_widget(Paragraph::new(header).style(bold), head);
        let lines: Vec<Line<'_>> = all
            .iter()
            .enumerate()
            .skip(self.scroll)
            .take(room)
            .map(|(at, row)| {
                let chosen = if at == self.cursor { Modifier::UNDERLINED } else { Modifier::empty() };
                let text = format!("{:<width$}", line(row, name), width = area.width as usize);
                Line::styled(text, style(row).add_modifier(chosen))
            })
            .collect();
        if lines.is_empty() {
            let why = if now.vms.is_empty() { "No VM runs on this host." } else { "No line matches the filter." };
            frame.render_widget(Paragraph::new(why), body);
        }
        frame.render_widget(Paragraph::new(Text::from(lines)), body);
        frame.render_widget(Paragraph::new(self.footer(all.len(), room)), foot);
        if self.help {
            frame.render_widget(Clear, body);
            frame.render_widget(Paragraph::new(HELP), body);
        }
    }

    fn draw_vcpu(&mut self, frame: &mut Frame<'_>, area: Rect, tid: i32, before: &Status, now: &Status) {
        let found = now.vms.iter().find_map(|vm| Some((vm, vm.vcpus.iter().find(|vcpu| vcpu.tid == tid)?)));
        let row = rows(before, now, false).into_iter().find(|row| row.tid == Some(tid));
        match (found, row) {
            (Some((vm, vcpu)), Some(row)) => {
                detail::draw(frame, area, (vm, vcpu, &row), (before, now), &self.history);
            }
            _ => frame.render_widget(Paragraph::new("This vCPU is gone. Esc goes back."), area),
        }
    }

    /// Who ran while each vCPU waited, as text.
    pub(super) fn why(&self, before: &Status, now: &Status) -> String {
        let mut text = String::new();
        for row in self.select(rows(before, now, false)) {
            let (Some(tid), Some(vcpu)) = (row.tid, row.vcpu) else { continue };
            let all = detail::instead(before, now, tid);
            if !all.is_empty() {
                text.push_str(&format!("\n{} vCPU {vcpu}: ready {:.1} %\n{}\n", row.vm, row.ready, detail::heading()));
                all.iter().for_each(|one| text.push_str(&format!("{}\n", detail::line(one))));
            }
        }
        text
    }

    fn footer(&self, lines: usize, room: usize) -> String {
        if self.typing {
            return format!("filter: {}_", self.filter);
        }
        let order = clap::ValueEnum::to_possible_value(&self.order).map_or(String::new(), |v| v.get_name().to_owned());
        let reverse = if self.reverse { ", reversed" } else { "" };
        let filter = if self.filter.is_empty() { String::new() } else { format!("  filter: {}", self.filter) };
        let more = if lines > room { format!("  {} of {lines} lines", room.min(lines)) } else { String::new() };
        let back = if self.vm.is_some() { "  Esc back" } else { "" };
        format!("? help  q quit  Enter why{back}  s sort ({order}{reverse})  / filter  v VMs{filter}{more}")
    }

    /// The table as text.
    pub(super) fn plain(&self, before: &Status, now: &Status) -> String {
        let mut text = format!("{}\n{}\n", summary(now), header(NAME));
        for row in self.select(rows(before, now, self.vms)) {
            text.push_str(&line(&row, NAME));
            text.push('\n');
        }
        text
    }
}

/// A line, and others where the mode cannot do what it was started for, and where no guest can be paired.
fn summary(now: &Status) -> String {
    let idle = now.pcpus.iter().filter(|cpu| cpu.idle).count();
    let vcpus: usize = now.vms.iter().map(|vm| vm.vcpus.len()).sum();
    let paired = now.vms.iter().flat_map(|vm| &vm.vcpus).filter(|vcpu| vcpu.paired).count();
    let mut text = format!(
        "entrain {}: {} pCPUs ({idle} idle), {} VMs, {vcpus} vCPUs ({paired} paired), up {} s",
        now.mode,
        now.pcpus.len(),
        now.vms.len(),
        now.uptime_ns / 1_000_000_000,
    );
    if let Some(fallback) = &now.fallback {
        let _ = write!(text, "\nonly observing: {}", fallback.why);
    }
    if let Some(why) = &now.unpaired {
        let _ = write!(text, "\npairing unsupported by this kernel: {why}");
    }
    text
}

fn header(name: usize) -> String {
    format!(
        "{:<name$} {:>4} {:<9} {:>4} {:>5} {:>5} {:>5} {:>6} {:>6} {:<4} {:<9}",
        "VM", "vCPU", "STATE", "PCPU", "%RUN", "%RDY", "%STL", "PRE/s", "CS/s", "INST", "LINK"
    )
}

fn line(row: &Row, name: usize) -> String {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let vm: String = row.vm.chars().take(name).collect();
    let instant = match row.instant {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    format!(
        "{vm:<name$} {:>4} {:<9} {:>4} {:>5.1} {:>5.1} {:>5.1} {:>6} {:>6} {instant:<4} {:<9}",
        number(row.vcpu),
        row.state,
        number(row.pcpu),
        row.run,
        row.ready,
        row.steal,
        per_second(row.preemptions),
        row.critical.map_or("-".to_owned(), per_second),
        row.link,
    )
}

/// At most 6 characters.
fn per_second(value: f64) -> String {
    if value < 99_999.5 { format!("{value:.0}") } else { format!("{:.0}k", value / 1000.0) }
}

fn style(row: &Row) -> Style {
    match row.state.as_str() {
        "preempted" => Style::new().fg(Color::Yellow),
        "halted" => Style::new().add_modifier(Modifier::DIM),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rows::tests::status;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: &mut View, width: u16) -> Vec<String> {
        let before = status(0, &[("web", &[(0, 0, 0), (0, 0, 0)])]);
        let now = status(1_000_000_000, &[("web", &[(900_000_000, 100_000_000, 250_000), (5, 0, 0)])]);
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame, &before, &now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        (0..24).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>()).collect()
    }

    #[test]
    fn eighty_columns_hold_every_column() {
        let screen = screen(&mut View::new(Order::Vm, String::new(), false), 80);
        assert!(screen[1].contains("INST LINK"), "{}", screen[1]);
        assert!(
            screen[2].starts_with("web             0 running      1  90.0  10.0  10.0   250k   125k yes  paired"),
            "{}",
            screen[2]
        );
        assert!(screen[23].contains("q quit"));
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut view = View::new(Order::Vm, String::new(), false);
        view.key(KeyCode::Char('?'));
        assert!(screen(&mut view, 80)[2].contains("what the VMM was told"));
        assert!(!view.key(KeyCode::Char('q')), "closes the help");
        for key in "/nothing".chars() {
            view.key(KeyCode::Char(key));
        }
        assert!(screen(&mut view, 80)[23].contains("filter: nothing_"));
        view.key(KeyCode::Enter);
        assert!(screen(&mut view, 80)[2].contains("No line matches"));
        assert!(view.key(KeyCode::Char('q')));
    }

    #[test]
    fn enter_goes_from_vm_to_vcpu_to_why_it_waits_and_esc_back() {
        let mut view = View::new(Order::Vm, String::new(), true);
        assert!(screen(&mut view, 80)[2].contains("2/2 run"));
        view.key(KeyCode::Enter);
        screen(&mut view, 80);
        view.key(KeyCode::Down);
        assert!(!view.wants_waits());
        view.key(KeyCode::Enter);
        assert!(view.wants_waits());
        let detail = screen(&mut view, 80);
        assert!(detail[1].starts_with("web vCPU 1"), "{detail:?}");
        let whose = "UUID a1b2c3d4-0000-4000-8000-0123456789ab, proxmox 4711, pid 100";
        assert!(detail[2].starts_with(whose), "{detail:?}");
        assert!(detail.iter().any(|line| line.contains("has not waited")), "{detail:?}");
        view.key(KeyCode::Esc);
        assert!(screen(&mut view, 80)[3].contains("web"));
        view.key(KeyCode::Esc);
        assert!(screen(&mut view, 80)[2].contains("2/2 run"));
    }

    #[test]
    fn a_mode_that_only_observes_says_why() {
        let fallback = Some(crate::figures::FallbackStatus { why: "a limit".into(), retry_in_ns: None });
        let now = Status { mode: "schedule".into(), fallback, ..status(1, &[("web", &[(0, 0, 0)])]) };
        let text = View::new(Order::Vm, String::new(), false).plain(&now, &now);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("entrain schedule:") && lines[1] == "only observing: a limit", "{text}");
        assert!(lines[2].starts_with("VM "), "{text}");
    }

    #[test]
    fn a_kernel_that_cannot_pair_says_why() {
        let why = Some("it lacks something".to_owned());
        let mut now = Status { unpaired: why, ..status(1, &[("web", &[(0, 0, 0)])]) };
        now.vms[0].channel = crate::Channel::Unsupported;
        now.vms[0].vcpus[0].paired = false;
        let text = View::new(Order::Vm, String::new(), false).plain(&now, &now);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "pairing unsupported by this kernel: it lacks something");
        assert!(lines[3].trim_end().ends_with(" unsupported"), "{text}");
    }

    #[test]
    fn the_help_fits_on_a_small_terminal() {
        assert!(HELP.lines().count() <= 21);
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
    }
}
