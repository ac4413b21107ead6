//! A window as a picture: CPUs of the host and of the guests as rows, time to the right; who ran, waited and spun.
//!
//! On the host a row shows who has the CPU, each guest in a colour of its own; below it a stripe, where who has it spins
//! inside. In a guest a row shows what became of the vCPU (in its guest, spinning there, waiting for a pCPU, halted), and
//! below it a stripe where a task of the guest waits for that vCPU.

use std::fmt::Write as _;

use entrain_html::escape;

use super::Timeline;
use super::timeline::{Run, Spinning, Wait};
use crate::kernel::TaskId;
use crate::world::{HOST, MachineId, World};

/// Width of the picture and of the names at its left, in its own units.
const WIDTH: f64 = 1200.0;
const NAMES: f64 = 84.0;
/// Room at the right for half of the last mark's label.
const EDGE: f64 = 24.0;
/// Height of a row, of its stripe, and what lies between two rows.
const ROW: f64 = 13.0;
const STRIPE: f64 = 3.0;
const GAP: f64 = 4.0;
const HEAD: f64 = 20.0;
/// Rows that are drawn of the host, and guests.
const PCPUS: u32 = 32;
const GUESTS: usize = 8;
/// What is narrower is not seen.
const THIN: f64 = 0.02;

/// Style of the picture beside [`entrain_html::STATES`] and the series' colours of [`entrain_html::plot::STYLE`].
pub const STYLE: &str = include_str!("picture.css");

/// What the colours mean, as a list for a page.
pub fn legend() -> String {
    let states = [
        ("running", "in its guest (on the host: who has the CPU, by guest)"),
        ("polling", "on a pCPU, outside its guest: on the way, or polling"),
        ("sibling", "spinning inside"),
        ("ready", "waiting for a CPU"),
        ("halted", "halted, or the pCPU idle"),
    ];
    let items: Vec<_> = states.iter().map(|(key, words)| format!("<li><i class=\"{key}\"></i>{words}")).collect();
    format!("<ul class=\"legend\">{}</ul>", items.join(""))
}

/// The whole picture as a file of its own.
pub fn file(world: &World, timeline: &Timeline, from: u64, until: u64) -> String {
    let colours = format!("{}{}", entrain_html::STATES, entrain_html::plot::STYLE);
    let page = "svg { --text: #1b1f24; --dim: #5d6670; --line: #dfe3e8; --page: #fff; background: var(--page); }\
                @media (prefers-color-scheme: dark) { svg { --text: #e4e7ea; --dim: #9aa4ae; --line: #30363d; \
                --page: #14171a; } }";
    let drawing = draw(world, timeline, from, until);
    drawing
        .replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"system-ui, sans-serif\" ", 1)
        .replacen('>', &format!("><style>{colours}{page}{STYLE}</style>"), 1)
}

/// The picture, for a page that has the styles.
pub fn draw(world: &World, timeline: &Timeline, from: u64, until: u64) -> String {
    let mut picture = Picture { world, timeline, from, until, y: HEAD, body: String::new() };
    picture.host();
    for guest in 1..world.machines.len().min(GUESTS + 1) {
        picture.guest(MachineId(guest as u16));
    }
    picture.left_out();
    let height = picture.y;
    picture.axis(height);
    format!(
        "<svg class=\"picture\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"who ran, waited and spun\">\
         {}</svg>",
        picture.body
    )
}

struct Picture<'a> {
    world: &'a World,
    timeline: &'a Timeline,
    from: u64,
    until: u64,
    y: f64,
    body: String,
}

/// Times of one kind in a row, ns.
type Spans = Vec<(u64, u64)>;

/// The parts of `a` that lie in one of `b`. Both are in order and apart.
fn common(a: &[(u64, u64)], b: &[(u64, u64)]) -> Spans {
    let mut both = Vec::new();
    let mut at = 0;
    for (from, until) in a {
        while at < b.len() && b[at].1 <= *from {
            at += 1;
        }
        let within = b[at..].iter().take_while(|(start, _)| start < until);
        both.extend(within.map(|(start, end)| ((*start).max(*from), (*end).min(*until))));
    }
    both
}

/// In order, and those that touch or lie over one another as one.
fn joined(mut spans: Spans) -> Spans {
    spans.sort_unstable();
    let mut out: Spans = Vec::new();
    for (from, until) in spans {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => out.push((from, until)),
        }
    }
    out
}

impl Picture<'_> {
    fn x(&self, at: u64) -> f64 {
        let at = at.clamp(self.from, self.until) - self.from;
        NAMES + at as f64 / (self.until - self.from).max(1) as f64 * (WIDTH - NAMES - EDGE)
    }

    /// Boxes of one class in the row at `y`.
    fn boxes(&mut self, class: &str, spans: &[(u64, u64)], y: f64, height: f64) {
        let mut path = String::new();
        for (from, until) in spans {
            let (left, right) = (self.x(*from), self.x(*until));
            if right - left >= THIN {
                let _ = write!(path, "M{left:.2} {y:.1}H{right:.2}v{height}H{left:.2}z");
            }
        }
        if !path.is_empty() {
            let _ = write!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    fn text(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = write!(
            self.body,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn title(&mut self, text: &str) {
        self.y += 6.0;
        self.text("title", 0.0, self.y + 10.0, "start", text);
        self.y += 16.0;
    }

    /// Begins a row with its name and an empty ground.
    fn row(&mut self, name: &str, ground: &str) -> f64 {
        let y = self.y;
        self.text("name", NAMES - 6.0, y + ROW - 2.5, "end", name);
        self.boxes(ground, &[(self.from, self.until)], y, ROW);
        self.y += ROW + STRIPE + GAP;
        y
    }

    fn runs(&self, which: impl Fn(&Run) -> bool) -> Vec<Run> {
        let mut runs: Vec<_> = self.timeline.runs.iter().filter(|run| which(run)).copied().collect();
        runs.sort_by_key(|run| run.from);
        runs
    }

    /// When a guest's CPU spun while its thread had a pCPU.
    fn spun(&self, m: MachineId, cpu: u32, on: &[(u64, u64)]) -> Spans {
        let mut all = Spans::new();
        let mine = |task: TaskId| move |spin: &&Spinning| spin.machine == m && spin.task == task;
        let runs = self.runs(|run| run.machine == m && run.cpu == cpu);
        let mut tasks: Vec<_> = runs.iter().map(|run| run.task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            let ran: Spans = runs.iter().filter(|run| run.task == task).map(|run| (run.from, run.until)).collect();
            let spins = self.timeline.spins.iter().filter(mine(task)).map(|spin| (spin.from, spin.until)).collect();
            all.extend(common(&ran, &joined(spins)));
        }
        common(&joined(all), on)
    }

    /// When a thread of the host had a CPU: all, and of that inside the guest.
    fn on(&self, thread: TaskId) -> Spans {
        joined(
            self.runs(|run| run.machine == HOST && run.task == thread)
                .iter()
                .map(|run| (run.from, run.until))
                .collect(),
        )
    }

    fn waits(&self, which: impl Fn(&&Wait) -> bool) -> Spans {
        joined(self.timeline.waits.iter().filter(which).map(|wait| (wait.from, wait.until)).collect())
    }

    fn host(&mut self) {
        self.title("host");
        let cpus = self.world.machines[0].kernel.topo.cpus().min(PCPUS);
        for cpu in 0..cpus {
            let y = self.row(&format!("pCPU {cpu}"), "halted");
            let runs = self.runs(|run| run.machine == HOST && run.cpu == cpu);
            let mut spun = Spans::new();
            for guest in 0..self.world.vms.len() {
                let of = |run: &&Run| self.world.vcpu_of(run.task).is_some_and(|(m, _)| usize::from(m.0) == guest + 1);
                let mine: Vec<_> = runs.iter().filter(of).copied().collect();
                for run in &mine {
                    let (m, vcpu) = self.world.vcpu_of(run.task).expect("it is a vCPU's");
                    spun.extend(self.spun(m, vcpu, &[(run.from, run.until)]));
                }
                let spans: Spans = mine.iter().map(|run| (run.from, run.until)).collect();
                self.boxes(&format!("g{}", guest % 7 + 1), &spans, y, ROW);
                self.names(&mine, y, |world, task| {
                    world.vcpu_of(task).map_or(String::new(), |(m, vcpu)| format!("{}.{vcpu}", m.0 - 1))
                });
            }
            let others: Vec<_> = runs.iter().filter(|run| self.world.vcpu_of(run.task).is_none()).copied().collect();
            let spans: Spans = others.iter().map(|run| (run.from, run.until)).collect();
            self.boxes("g0", &spans, y, ROW);
            self.names(&others, y, |world, task| world.name(HOST, task));
            self.boxes("sibling", &joined(spun), y + ROW, STRIPE);
        }
    }

    /// Who it is, where the box has room for it.
    fn names(&mut self, runs: &[Run], y: f64, name: impl Fn(&World, TaskId) -> String) {
        for run in runs {
            let (left, right) = (self.x(run.from), self.x(run.until));
            let name = name(self.world, run.task);
            if right - left > 6.0 * name.chars().count() as f64 + 4.0 {
                self.text("who", (left + right) / 2.0, y + ROW - 3.0, "middle", &name);
            }
        }
    }

    fn guest(&mut self, m: MachineId) {
        self.title(&format!("guest {}", m.0 - 1));
        for cpu in 0..self.world.machines[m.0 as usize].kernel.topo.cpus() {
            let y = self.row(&format!("vCPU {cpu}"), "halted");
            let thread = self.world.thread_of(m, cpu);
            let on = self.on(thread);
            self.boxes("ready", &self.waits(|wait| wait.machine == HOST && wait.task == thread), y, ROW);
            self.boxes("polling", &on, y, ROW);
            let inside = self.runs(|run| run.machine == m && run.cpu == cpu);
            let inside: Spans = joined(inside.iter().map(|run| (run.from, run.until)).collect());
            self.boxes("running", &common(&inside, &on), y, ROW);
            self.boxes("sibling", &self.spun(m, cpu, &on), y, ROW);
            let waits = self.waits(|wait| wait.machine == m && wait.cpu == cpu);
            self.boxes("ready", &waits, y + ROW, STRIPE);
        }
    }

    fn left_out(&mut self) {
        let pcpus = self.world.machines[0].kernel.topo.cpus().saturating_sub(PCPUS);
        let guests = self.world.vms.len().saturating_sub(GUESTS);
        if pcpus + guests as u32 > 0 {
            self.y += 14.0;
            self.text(
                "name",
                0.0,
                self.y - 2.0,
                "start",
                &format!("{pcpus} pCPUs and {guests} guests more are not drawn"),
            );
        }
    }

    /// Marks of time, over all rows.
    fn axis(&mut self, height: f64) {
        let length = (self.until - self.from).max(1);
        let rough = length as f64 / 8.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let step = step.max(1.0) as u64;
        let mut at = self.from.next_multiple_of(step);
        while at <= self.until {
            let x = self.x(at);
            let _ = write!(self.body, "<path class=\"mark\" d=\"M{x:.1} {:.0}V{height:.0}\"/>", HEAD - 4.0);
            self.text("name", x, HEAD - 8.0, "middle", &format!("{} ms", at as f64 / 1e6));
            at += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_parts_are_those_of_both() {
        assert_eq!(
            common(&[(0, 10), (20, 30)], &[(5, 22), (25, 26), (29, 40)]),
            [(5, 10), (20, 22), (25, 26), (29, 30)]
        );
        assert_eq!(joined(vec![(5, 6), (0, 2), (2, 4)]), [(0, 4), (5, 6)]);
    }
}
