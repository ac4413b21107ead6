//! The tries: each runs the product as its user would, and looks at what comes out.

use std::time::{Duration, Instant};

use entrain_lab_machine::cancel;
use entrain_lab_machine::machine::{Command, Machine, Outcome, Running, Target};
use serde_json::Value;
use signal_hook::consts::{SIGKILL, SIGTERM};

use super::table::{Cell, Column};

/// An emulated host takes so long to load programs, to find its VMs and to pair: a scheduler has taken 84 s.
const PATIENCE: Duration = Duration::from_secs(180);
/// A scheduler that stays for so long is taken.
const STAYS: Duration = Duration::from_secs(3);
/// What runs beside the tries ends with the machine at the latest.
const LIFE: Duration = Duration::from_secs(3600);
/// Letters of a reason that are kept.
const REASON: usize = 300;

const GUEST: Target = Target::Guest(0);
/// Keeps both vCPUs of a guest busy, in turns with sleeping, so that they run, halt and are woken.
const WORK: &str = "for n in 1 2; do (while :; do timeout 0.3 yes >/dev/null; sleep 0.1; done) & done; wait";
/// A look at the daemon over one interval.
const TOP: &str = "entrain top --once --json --interval 1";

type Cells = Vec<(Column, Cell)>;
/// What was seen, or why it was not.
type Seen<T> = Result<T, String>;

/// What a kernel does as a host.
pub(super) fn as_host(machine: &Machine, step: &dyn Fn(&str)) -> anyhow::Result<Cells> {
    let work = machine.start(GUEST, Command::shell(WORK).within(LIFE))?;
    step("record");
    let mut cells = vec![(Column::Record, record(machine)?)];
    step("isolate watch");
    cells.push((Column::Isolate, isolate(machine)?));
    step("entrain host, observing");
    cells.extend(observe(machine)?);
    step("entrain host, scheduling");
    cells.push((Column::ScheduleHost, schedule_host(machine)?));
    work.kill(SIGKILL)?;
    Ok(cells)
}

/// QPW on a kernel with PREEMPT_RT for which its module was built: as a livepatch, or at once where there is none.
pub(super) fn qpw(machine: &Machine) -> anyhow::Result<Cell> {
    let line = "entrain isolate qpw load || entrain isolate qpw load --hot";
    let out = shell(machine, Target::Host, line)?;
    Ok(cell(if out.ok() { Ok(()) } else { Err(last_line(&out.stderr)) }))
}

/// What it does as the guest of a host that can pair.
pub(super) fn as_guest(machine: &Machine, step: &dyn Fn(&str)) -> anyhow::Result<Cells> {
    let host = Daemon::start(machine, Target::Host, "exec entrain host")?;
    step("entrain guest, registered");
    let registered = pairs(machine)?;
    step("entrain guest, scheduling");
    let mut agent = Daemon::start(machine, GUEST, "exec entrain guest --mode schedule --always")?;
    let schedules = agent.until(|| {
        let out = shell(machine, GUEST, "entrain guest --status --json")?;
        Ok((json(&out)["schedules"] == Value::Bool(true)).then_some(()))
    })?;
    agent.end()?;
    host.end()?;
    Ok(vec![(Column::PairGuest, cell(registered)), (Column::ScheduleGuest, cell(schedules))])
}

fn record(machine: &Machine) -> anyhow::Result<Cell> {
    let line = "entrain record --seconds 3 -o /tmp/kernels.rec >/dev/null && entrain report /tmp/kernels.rec --json";
    let out = shell(machine, Target::Host, line)?;
    if !out.ok() {
        return Ok(Cell::no(last_line(&out.stderr)));
    }
    let report = json(&out);
    let vcpus = report["vms"][0]["vcpus"].as_array().map_or(&[][..], Vec::as_slice);
    let ran = vcpus.iter().filter(|vcpu| vcpu["times"]["running_ns"].as_u64() > Some(0)).count();
    let woken: u64 = vcpus.iter().filter_map(|vcpu| vcpu["wakeups"].as_u64()).sum();
    let told = format!("{ran} of 2 vCPUs ran, {woken} wake-ups were seen");
    Ok(cell(if ran == 2 && woken > 0 { Ok(()) } else { Err(told) }))
}

/// QEMU's threads come to any CPU.
fn isolate(machine: &Machine) -> anyhow::Result<Cell> {
    let out = shell(machine, Target::Host, "entrain isolate watch --cpus 1 --json --seconds 2")?;
    if !out.ok() {
        return Ok(Cell::no(last_line(&out.stderr)));
    }
    let seen = json(&out)["rows"].as_array().is_some_and(|rows| !rows.is_empty());
    Ok(cell(if seen { Ok(()) } else { Err("no interruption was seen".to_owned()) }))
}

/// The daemon that observes, `entrain top`, and a pairing.
fn observe(machine: &Machine) -> anyhow::Result<Cells> {
    let mut host = Daemon::start(machine, Target::Host, "exec entrain host")?;
    let mut unpaired = None;
    let watches = host.until(|| {
        let top = json(&shell(machine, Target::Host, TOP)?);
        unpaired = top["status"]["unpaired"].as_str().map(str::to_owned);
        let rows = top["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let run: f64 = rows.iter().filter_map(|row| row["run"].as_f64()).sum();
        // Both vCPUs, and what they do is counted.
        Ok((rows.len() == 2 && run > 1.0).then_some(()))
    })?;
    let paired = match (unpaired, &watches) {
        (Some(why), _) => Err(why),
        (None, Err(why)) => Err(why.clone()),
        (None, Ok(())) => pairs(machine)?,
    };
    host.end()?;
    Ok(vec![(Column::Watch, cell(watches)), (Column::PairHost, cell(paired))])
}

fn schedule_host(machine: &Machine) -> anyhow::Result<Cell> {
    let mut host = Daemon::start(machine, Target::Host, "exec entrain host --mode schedule")?;
    let look = || -> anyhow::Result<Option<Seen<()>>> {
        let status = &json(&shell(machine, Target::Host, TOP)?)["status"];
        let why = status["fallback"]["why"].as_str().map(|why| Err(why.to_owned()));
        Ok(why.or_else(|| status["schedule"].is_object().then_some(Ok(()))))
    };
    let mut seen = host.until(look)?.and_then(|seen| seen);
    if seen.is_ok() {
        cancel::sleep(STAYS)?;
        seen = host.until(look)?.and_then(|seen| seen);
    }
    host.end()?;
    Ok(cell(seen))
}

/// An agent that registers, until a host publishes to all vCPUs of the guest.
fn pairs(machine: &Machine) -> anyhow::Result<Seen<()>> {
    let mut agent = Daemon::start(machine, GUEST, "exec entrain guest")?;
    let paired = agent.until(|| Ok(shell(machine, GUEST, "entrain guest --status --paired")?.ok().then_some(())))?;
    agent.end()?;
    Ok(paired)
}

/// A daemon or an agent that runs in a machine.
struct Daemon {
    running: Running,
    said: Vec<u8>,
    ended: bool,
}

impl Daemon {
    fn start(machine: &Machine, target: Target, line: &str) -> anyhow::Result<Self> {
        let running = machine.start(target, Command::shell(line).within(LIFE))?;
        Ok(Self { running, said: Vec::new(), ended: false })
    }

    /// Whether it runs; keeps what it says.
    fn runs(&mut self) -> anyhow::Result<bool> {
        while !self.ended {
            match self.running.piece(Duration::from_millis(10))? {
                None => self.ended = true,
                Some((_, bytes)) if bytes.is_empty() => return Ok(true),
                Some((_, bytes)) => self.said.extend(bytes),
            }
        }
        Ok(false)
    }

    /// Asks until there is an answer; none comes where it has ended, or after [`PATIENCE`].
    fn until<T>(&mut self, mut ask: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<Seen<T>> {
        let limit = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = ask()? {
                return Ok(Ok(answer));
            }
            if !self.runs()? {
                return Ok(Err(last_line(&self.said)));
            }
            if Instant::now() > limit {
                let last = last_line(&self.said);
                return Ok(Err(format!("nothing came of it within {} s; it said last: {last}", PATIENCE.as_secs())));
            }
            cancel::sleep(Duration::from_secs(1))?;
        }
    }

    /// Ends it as a service manager does, and waits for it.
    fn end(mut self) -> anyhow::Result<()> {
        if self.runs()? {
            self.running.kill(SIGTERM)?;
        }
        let limit = Instant::now() + PATIENCE;
        while self.runs()? {
            anyhow::ensure!(Instant::now() < limit, "it does not end: {}", last_line(&self.said));
            cancel::check()?;
        }
        Ok(())
    }
}

fn shell(machine: &Machine, target: Target, line: &str) -> anyhow::Result<Outcome> {
    Ok(machine.run(target, Command::shell(line).within(PATIENCE))?)
}

/// What it printed; nothing where that is no JSON.
fn json(out: &Outcome) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_default()
}

fn cell(seen: Seen<()>) -> Cell {
    seen.map_or_else(Cell::no, |()| Cell::yes())
}

/// The last line that says something, without colours.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    let mut plain = String::new();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            // A colour ends with the letter m.
            letters.by_ref().find(|letter| *letter == 'm');
        } else {
            plain.push(letter);
        }
    }
    plain.chars().take(REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_reason() {
        assert_eq!(last_line(b"one\n\x1b[31mError:\x1b[0m two\n\n"), "Error: two");
        assert_eq!(last_line(b""), "it said nothing");
    }
}
