//! `spinning`: the share of a machine's CPU time in which its kernel spins for a lock while a command runs.
//!
//! The kernel's own histograms of trace events add the times up: from `lock:contention_begin` to `lock:contention_end`
//! of the same task, where the waiting is a spinning one. A vCPU that the host has preempted meanwhile is still waiting:
//! that time is in it, too. The events cost time themselves, at each contended lock, so figures of a command under this
//! are not to be compared with those without.

use crate::clock::now_ns;
use crate::output::Output;
use anyhow::{Context, Result, bail};
use entrain_system::Root;
use entrain_workloads::catalog;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The share of the CPUs' time in which the kernel spins for locks while a command runs; the command's output follows
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON lines
    #[arg(long)]
    json: bool,
    /// The command, after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The event that each wait becomes.
const EVENT: &str = "entrain_spun";
/// `LCB_F_SPIN` of include/trace/events/lock.h is the lowest bit.
const BEGIN: &str = "hist:keys=common_pid:at=common_timestamp if flags & 1";
const END: &str = "hist:keys=common_pid:ns=common_timestamp-$at:onmatch(lock.contention_begin).trace(entrain_spun,$ns)";
const SUM: &str = "hist:keys=common_cpu:vals=ns";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Some((program, rest)) = args.command.split_first() else { bail!("no command is given") };
    let root = Root::live();
    let cpus = root.online_cpus()?.iter().count();
    let counted = Counted::begin(&root.path("sys/kernel/tracing"))?;
    let begun = now_ns();
    let output = Command::new(program).args(rest).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let passed = now_ns() - begun;
    let spun = counted.end()?;
    let output = output.with_context(|| format!("cannot start {program}"))?;
    // The command's last line says that nothing follows.
    Output::new(args.json).metric(&catalog::SPIN_SHARE, spun as f64 / (passed as f64 * cpus as f64))?;
    std::io::stdout().write_all(&output.stdout)?;
    Ok(ExitCode::from(output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)))
}

/// The kernel's sum, which lasts until it is dropped.
struct Counted {
    tracing: PathBuf,
}

impl Counted {
    fn begin(tracing: &Path) -> Result<Self> {
        if !tracing.join("events").exists() {
            mount(tracing)?;
        }
        // What one that was killed left behind would be in the sum.
        let counted = Self { tracing: tracing.to_owned() };
        counted.remove();
        counted.write("dynamic_events", &format!("s:{EVENT} u64 ns"))?;
        counted.write("events/lock/contention_begin/trigger", BEGIN)?;
        counted.write("events/lock/contention_end/trigger", END)?;
        counted.write(&format!("events/synthetic/{EVENT}/trigger"), SUM)?;
        Ok(counted)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.tracing.join(file);
        let written =
            std::fs::OpenOptions::new().append(true).open(&path).and_then(|mut f| f.write_all(text.as_bytes()));
        written.with_context(|| {
            format!("{} does not take '{text}': this needs root and a kernel with CONFIG_HIST_TRIGGERS", path.display())
        })
    }

    /// The sum in ns.
    fn end(self) -> Result<u64> {
        let path = self.tracing.join(format!("events/synthetic/{EVENT}/hist"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        sum(&text).with_context(|| format!("{} holds no sums", path.display()))
    }

    fn remove(&self) {
        // In the opposite order: an event that a trigger uses stays. What is not there need not go.
        let _ = self.write(&format!("events/synthetic/{EVENT}/trigger"), &format!("!{SUM}"));
        let _ = self.write("events/lock/contention_end/trigger", &format!("!{END}"));
        let _ = self.write("events/lock/contention_begin/trigger", &format!("!{BEGIN}"));
        let _ = self.write("dynamic_events", &format!("-:{EVENT}"));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.remove();
    }
}

fn mount(tracing: &Path) -> Result<()> {
    let status = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(tracing).status();
    match status.context("cannot start mount")? {
        status if status.success() => Ok(()),
        _ => bail!("cannot mount tracefs at {}: this needs root", tracing.display()),
    }
}

/// The sum of all rows of a histogram: `{ common_cpu:  3 } hitcount:  6776  ns: 1096862528`. `None` where it ends before
/// its totals: an empty histogram has them, too.
fn sum(text: &str) -> Option<u64> {
    text.contains("Totals:").then_some(())?;
    let rows = text.lines().filter(|line| line.starts_with('{'));
    rows.map(|row| row.rsplit_once("ns:")?.1.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cpus_are_added() {
        let text = "# event histogram\n#\n# trigger info: hist:keys=common_cpu:vals=hitcount,ns:sort=hitcount [active]\n#\n\n\
                    { common_cpu:          3 } hitcount:       6776  ns: 1096862528\n\
                    { common_cpu:          0 } hitcount:          2  ns:          4\n\nTotals:\n    Hits: 6778\n";
        assert_eq!(sum(text), Some(1_096_862_532));
        assert_eq!(sum("# event histogram\n\nTotals:\n    Hits: 0\n"), Some(0));
        assert_eq!(sum("{ common_cpu: 3 } hitcount: 6776  ns: what\nTotals:\n"), None);
        assert_eq!(sum(""), None);
    }
}
