//! What the scenarios of isolated CPUs share: the task that holds such a CPU, real-time tasks that nothing throttles, and
//! what `entrain isolate watch` saw.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;
use signal_hook::consts::SIGTERM;

use super::product::{SETTLE, Service, shell, unmet, wait_for};
use crate::load::Printed;
use crate::rig::Rig;

/// What a task that holds a CPU reports of its pages.
pub(super) const REPORT: &str = "/run/entrain-hold.json";

/// CPUs in a load's `params`: an array of numbers.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cpus(pub(super) Vec<u32>);

/// Those that the experiments isolate.
impl Default for Cpus {
    fn default() -> Self {
        Self(vec![2, 3])
    }
}

/// As the kernel and `--cpus` take them.
impl Display for Cpus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// `params` of the loads that ask for nothing else.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OnCpus {
    pub(super) cpus: Cpus,
}

/// A task that holds a CPU; ends when it is stopped, or by itself.
pub(super) struct Hold {
    service: Service,
    /// Where its process number is kept.
    pid: String,
}

impl Hold {
    /// Starts one that lives for `seconds`; `options` are those of `entrain-load isolated hold`.
    pub(super) fn start(rig: &dyn Rig, cpu: u32, seconds: f64, options: &[&str]) -> Result<Self> {
        let pid = format!("/run/entrain-hold.{cpu}");
        let line = format!(
            "echo $$ >{pid}; exec entrain-load isolated hold --cpu {cpu} --seconds {} {}",
            seconds.ceil(),
            options.join(" ")
        );
        Ok(Self { service: Service::start(rig, Target::Host, ["sh", "-c", &line])?, pid })
    }

    /// Starts a real-time task, and waits until it has filled the caches of its CPU.
    pub(super) fn fifo(rig: &dyn Rig, cpu: u32, seconds: f64) -> Result<Self> {
        shell(rig, Target::Host, &format!("rm -f {REPORT}"))?;
        let this = Self::start(rig, cpu, seconds, &["--fifo", "50", "--report", REPORT])?;
        let there = format!("test -s {REPORT}");
        wait_for(rig, "a task holds the CPU", SETTLE, || Ok(rig.run(Target::Host, Command::shell(&there))?.ok()))?;
        Ok(this)
    }

    /// Whether it lives.
    pub(super) fn lives(&self, rig: &dyn Rig) -> Result<bool> {
        Ok(rig.run(Target::Host, Command::shell(&format!("kill -0 $(cat {}) 2>/dev/null", self.pid)))?.ok())
    }

    /// Ends it, if it still lives.
    pub(super) fn stop(self) -> Result<()> {
        self.service.stop()
    }
}

/// Real-time tasks may take all of their CPU, for as long as this lives. Else the kernel gives ordinary tasks a share of it
/// (the fair server, 50 ms in a second; before Linux 6.12 RT throttling), and whoever waits for them waits half a second.
pub(super) struct Unthrottled<'a> {
    rig: &'a dyn Rig,
    /// Files and their old values.
    old: Vec<(String, String)>,
}

impl<'a> Unthrottled<'a> {
    pub(super) fn begin(rig: &'a dyn Rig) -> Result<Self> {
        const LIST: &str = "for f in /proc/sys/kernel/sched_rt_runtime_us /sys/kernel/debug/sched/fair_server/cpu*/runtime; do \
                            [ -e $f ] && echo $f $(cat $f); done; true";
        let text = shell(rig, Target::Host, LIST)?;
        let pair = |line: &str| line.split_once(' ').map(|(file, value)| (file.to_owned(), value.to_owned()));
        let this = Self { rig, old: text.lines().filter_map(pair).collect() };
        for (file, _) in &this.old {
            let none = if file.ends_with("_us") { "-1" } else { "0" };
            shell(rig, Target::Host, &format!("echo {none} > {file}"))?;
        }
        Ok(this)
    }

    pub(super) fn end(self) -> Result<()> {
        for (file, value) in self.old.iter().rev() {
            shell(self.rig, Target::Host, &format!("echo {value} > {file}"))?;
        }
        Ok(())
    }
}

/// Runs one of `entrain-load isolated`'s tools that print figures.
pub(super) fn tool(rig: &dyn Rig, arguments: &[&str], limit: Duration) -> Result<Printed> {
    let argv = ["entrain-load", "isolated"].into_iter().chain(arguments.iter().copied()).chain(["--json"]);
    let outcome = rig.run(Target::Host, Command::new(argv).within(limit))?;
    if !outcome.ok() {
        let said = String::from_utf8_lossy(&outcome.stderr).trim().to_owned();
        return Err(unmet(format!("'{}' ended with {}: {said}", arguments.join(" "), outcome.status)));
    }
    Printed::parse(&outcome.text()).map_err(|error| unmet(error.to_string()))
}

/// One line of `entrain isolate watch --json`, as far as it is needed here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Row {
    /// `work`, `call`, `resched`, `kthread`, `task`, …
    pub(super) kind: String,
    pub(super) cause: String,
    pub(super) sender: String,
    /// What would help.
    pub(super) remedy: Option<String>,
    pub(super) count: u64,
    /// The sender's, innermost function first.
    pub(super) stack: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Seen {
    lost_causes: u64,
    rows: Vec<Row>,
}

/// `entrain isolate watch`, running.
pub(super) struct Watch {
    service: Service,
}

/// Its programs are many, and their verification takes an emulated CPU long.
const UP: Duration = Duration::from_secs(120);
const SEEN: &str = "/run/entrain-watch.json";
const SAID: &str = "/run/entrain-watch.txt";

impl Watch {
    /// Watches these CPUs from now on.
    pub(super) fn start(rig: &dyn Rig, cpus: &str) -> Result<Self> {
        Self::with(rig, &format!("--cpus {cpus}"))
    }

    /// Watches the CPU of a pinned thread, for which all other tasks are interruptions.
    pub(super) fn of_thread(rig: &dyn Rig, thread: u32) -> Result<Self> {
        Self::with(rig, &format!("--pid {thread}"))
    }

    fn with(rig: &dyn Rig, whom: &str) -> Result<Self> {
        let line = format!("exec entrain isolate watch {whom} --seconds 3600 --json >{SEEN} 2>{SAID}");
        shell(rig, Target::Host, &format!("rm -f {SEEN} {SAID}"))?;
        let service = Service::start(rig, Target::Host, ["sh", "-c", &line])?;
        let ready = format!("grep -q '^watching' {SAID}");
        let up = wait_for(rig, "'entrain isolate watch' watches", UP, || {
            Ok(rig.run(Target::Host, Command::shell(&ready))?.ok())
        });
        match up {
            Ok(_) => Ok(Self { service }),
            Err(late) => {
                let said = shell(rig, Target::Host, &format!("cat {SAID}")).unwrap_or_default();
                Err(if said.is_empty() { late } else { unmet(said) })
            }
        }
    }

    /// Ends it; what it saw.
    pub(super) fn end(self, rig: &dyn Rig) -> Result<Vec<Row>> {
        self.service.end(SIGTERM)?;
        let text = rig.get(Target::Host, SEEN)?;
        let seen: Seen = serde_json::from_slice(&text)
            .map_err(|error| LabError::Invalid(format!("'entrain isolate watch' printed no report ({error})")))?;
        if seen.lost_causes > 0 {
            return Err(unmet(format!("'entrain isolate watch' lost {} causes", seen.lost_causes)));
        }
        for row in &seen.rows {
            tracing::debug!("{row:?}");
        }
        Ok(seen.rows)
    }
}

/// How often the rows that fit interrupted, together.
pub(super) fn count(rows: &[Row], fits: impl Fn(&Row) -> bool) -> f64 {
    rows.iter().filter(|row| fits(row)).map(|row| row.count).sum::<u64>() as f64
}
