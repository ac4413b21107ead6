//! `entrain isolate check`: the set-up of isolated and real-time CPUs against what is known to matter.

mod boot;
mod change;
mod emit;
mod finding;
mod interrupts;
mod memory;
mod power;
mod record;
mod scheduler;
mod system;
mod threads;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use entrain_system::{CpuSet, Root};
use rustix::termios;

use change::Change;
use emit::Form;
use finding::{Finding, State};
use system::System;

/// Columns where stdout is no terminal.
const WIDTH: u16 = 110;

/// Compares the set-up of this host or guest with what is known to matter. Exit status: 0 all well, 1 something to do,
/// 2 error.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The CPUs that are to be quiet [default: those of isolcpus= and nohz_full=, else of rcu_nocbs=]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuSet>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Apply what can be applied at run time; the old values are recorded
    #[arg(long)]
    pub fix: bool,
    /// Take back what --fix has changed since the boot
    #[arg(long, conflicts_with = "fix")]
    pub undo: bool,
    /// Print all that is wanted as a profile of a tool that applies it at each boot
    #[arg(long, value_enum, conflicts_with_all = ["json", "fix", "undo"])]
    pub emit: Option<Form>,
    /// Folder that holds proc, sys and run
    #[arg(long, hide = true, default_value = "/")]
    pub root: PathBuf,
}

/// One change that was tried.
#[derive(Debug, serde::Serialize)]
struct Applied {
    command: String,
    undo: String,
    /// What the kernel said to it; `None`: done.
    error: Option<String>,
}

/// Runs the check.
pub fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    // 1 is taken: it means that there is something to do.
    Ok(checked(&args).unwrap_or_else(|error| {
        eprintln!("Error: {error:#}");
        ExitCode::from(2)
    }))
}

fn checked(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let root = Root::at(&args.root);
    if args.undo {
        return undo(&root, args.json);
    }
    let system = System::read(root.clone(), args.cpus.as_ref());
    if system.online.is_empty() {
        bail!("no CPUs found: is sysfs mounted on /sys?");
    }
    let absent = args.cpus.as_ref().map(|cpus| cpus.without(&system.online)).unwrap_or_default();
    if !absent.is_empty() {
        bail!("CPU {absent} is not online; online are {}", system.online);
    }
    let mut findings = all(&system);
    if let Some(form) = args.emit {
        if system.quiet.is_empty() || system.housekeeping.is_empty() {
            bail!("a profile is for some CPUs, but not for all: name those that are to be quiet with --cpus");
        }
        print!("{}", form.text(&system, &findings));
        return Ok(ExitCode::SUCCESS);
    }
    let mut applied = Vec::new();
    if args.fix {
        if system.quiet.is_empty() || system.housekeeping.is_empty() {
            bail!(
                "nothing was changed: {} (name the CPUs that are to be quiet with --cpus)",
                if system.quiet.is_empty() { "no CPU is isolated" } else { "no CPU would be left for the rest" }
            );
        }
        applied = fix(&root, &findings)?;
        findings = all(&System::read(root, args.cpus.as_ref()));
    }
    let todo = findings.iter().any(|finding| finding.state == State::Todo);
    if args.json {
        let kernel = system.root.trimmed("proc/sys/kernel/osrelease").unwrap_or_default();
        let json = serde_json::json!({
            "schema": 1, "kernel": kernel, "rt": system.rt, "guest": system.guest, "cpus": system.quiet,
            "housekeeping": system.housekeeping, "ok": !todo, "checks": findings, "applied": applied,
        });
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        print!("{}", text(&system, &findings, &applied));
    }
    Ok(ExitCode::from(u8::from(todo)))
}

fn all(system: &System) -> Vec<Finding> {
    [boot::check, interrupts::check, scheduler::check, power::check, memory::check, threads::check]
        .iter()
        .flat_map(|check| check(system))
        .collect()
}

/// Applies all fixes. The record is written first: a crash in between must not lose an old value.
fn fix(root: &Root, findings: &[Finding]) -> anyhow::Result<Vec<Applied>> {
    let before = record::load(root)?;
    let changes: Vec<Change> = findings.iter().flat_map(|finding| finding.fix.clone()).collect();
    record::add(root, &changes)?;
    let mut applied = Vec::new();
    let mut refused = Vec::new();
    for change in changes {
        let error = change.apply(root).err().map(|error| error.to_string());
        applied.push(Applied { command: change.command(), undo: change.reverse().command(), error });
        if applied.last().is_some_and(|last| last.error.is_some()) {
            refused.push(change);
        }
    }
    // What was refused has not changed, unless an earlier run had changed it.
    let keep = |change: &Change| {
        before.iter().any(|known| known.same_thing(change)) || !refused.iter().any(|no| no.same_thing(change))
    };
    let kept: Vec<Change> = record::load(root)?.into_iter().filter(keep).collect();
    record::store(root, &kept)?;
    Ok(applied)
}

fn undo(root: &Root, json: bool) -> anyhow::Result<ExitCode> {
    let changes = record::load(root)?;
    let mut failed = Vec::new();
    let mut applied = Vec::new();
    for change in changes.iter().rev() {
        let back = change.reverse();
        // What has gone since (a device was unplugged) needs no undoing.
        let error = back.apply(root).err().filter(|error| error.kind() != io::ErrorKind::NotFound);
        let error = error.map(|error| error.to_string());
        if error.is_some() {
            failed.insert(0, change.clone());
        }
        applied.push(Applied { command: back.command(), undo: change.command(), error });
    }
    record::store(root, &failed)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "schema": 1, "applied": applied }))?);
    } else if applied.is_empty() {
        println!("Nothing to undo: --fix has changed nothing since the boot.");
    } else {
        print!("{}", changes_text("Undone", &applied, false));
    }
    Ok(ExitCode::from(if failed.is_empty() { 0 } else { 2 }))
}

fn text(system: &System, findings: &[Finding], applied: &[Applied]) -> String {
    let kind = if system.rt { ", PREEMPT_RT" } else { "" };
    let side = if system.guest { "guest" } else { "host" };
    let mut text = format!(
        "CPU {} to be quiet, {} for the rest; {side}, Linux {}.{}{kind}\n",
        system::shown(&system.quiet),
        system::shown(&system.housekeeping),
        system.release.0,
        system.release.1,
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(termios::tcgetwinsize(io::stdout()).map_or(WIDTH, |size| size.ws_col.max(60)));
    table.set_header(["", "CHECK", "FOUND", "WANTED"]);
    for finding in findings {
        table.add_row([finding.state.word(), finding.check, &finding.found, &finding.wanted]);
    }
    text.push_str(&format!("{table}\n"));
    for finding in findings.iter().filter(|finding| finding.state != State::Ok) {
        text.push_str(&format!("\n{}: {}.\n", finding.check, finding.why));
        if !finding.source.is_empty() {
            text.push_str(&format!("  see {}\n", finding.source));
        }
        if !finding.command.is_empty() {
            text.push_str(&format!("  do  {}\n", finding.command));
        }
    }
    if !applied.is_empty() {
        text.push('\n');
        text.push_str(&changes_text("Applied", applied, true));
    }
    let fixable = findings.iter().filter(|finding| !finding.fix.is_empty()).count();
    let todo = findings.iter().filter(|finding| finding.state == State::Todo).count();
    text.push_str(&match (todo, fixable) {
        (0, _) => "\nNothing to do.\n".to_owned(),
        (_, 0) => format!("\n{todo} to do; none of them can be done at run time.\n"),
        _ => format!("\n{todo} to do; --fix does {fixable} of them at run time, --undo takes that back.\n"),
    });
    text
}

/// The changes, each with the command that takes it back if `undo` says so.
fn changes_text(title: &str, applied: &[Applied], undo: bool) -> String {
    let mut text = format!("{title}:\n");
    for one in applied {
        match &one.error {
            None if undo => text.push_str(&format!("  {}\n      undo: {}\n", one.command, one.undo)),
            None => text.push_str(&format!("  {}\n", one.command)),
            Some(error) => text.push_str(&format!("  {}\n      refused: {error}\n", one.command)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn fix_and_undo_leave_everything_as_it_was() {
        let files = [
            ("sys/devices/system/cpu/online", "0-3"),
            ("proc/sys/kernel/numa_balancing", "1"),
            ("proc/sys/kernel/timer_migration", "0"),
            ("sys/kernel/mm/ksm/run", "1"),
            ("proc/irq/default_smp_affinity", "f"),
        ];
        let (_dir, root) = tree(&files);
        let quiet: CpuSet = "2-3".parse().unwrap();
        let look = || all(&System::read(root.clone(), Some(&quiet)));
        let applied = fix(&root, &look()).unwrap();
        assert_eq!(applied.len(), 4, "{applied:?}");
        assert!(applied.iter().all(|one| one.error.is_none()));
        assert_eq!(root.trimmed("proc/irq/default_smp_affinity").unwrap(), "3");
        // A second run finds nothing; somebody's change in between does not become the original value.
        assert!(fix(&root, &look()).unwrap().is_empty());
        root.write("sys/kernel/mm/ksm/run", "1").unwrap();
        assert_eq!(fix(&root, &look()).unwrap().len(), 1);
        assert_eq!(undo(&root, false).unwrap(), ExitCode::SUCCESS);
        for (path, text) in files {
            assert_eq!(root.trimmed(path).unwrap(), text, "{path}");
        }
        assert!(record::load(&root).unwrap().is_empty());
    }

    #[test]
    fn what_has_gone_needs_no_undoing() {
        let (dir, root) = tree(&[("sys/devices/system/cpu/online", "0-3"), ("sys/kernel/mm/ksm/run", "1")]);
        let findings = all(&System::read(root.clone(), Some(&"2-3".parse().unwrap())));
        assert_eq!(fix(&root, &findings).unwrap().len(), 1);
        std::fs::remove_dir_all(dir.path().join("sys/kernel/mm")).unwrap();
        assert_eq!(undo(&root, false).unwrap(), ExitCode::SUCCESS);
        assert!(record::load(&root).unwrap().is_empty());
    }

    #[test]
    fn every_finding_to_do_says_why_and_what() {
        let (_dir, root) = tree(&[("sys/devices/system/cpu/online", "0-3"), ("proc/sys/kernel/osrelease", "6.1.0")]);
        let system = System::read(root, Some(&"2-3".parse().unwrap()));
        let findings = all(&system);
        for finding in findings.iter().filter(|finding| finding.state == State::Todo) {
            assert!(
                !finding.why.is_empty() && !finding.source.is_empty() && !finding.command.is_empty(),
                "{finding:?}"
            );
        }
        let text = text(&system, &findings, &[]);
        assert!(text.contains("nohz_full") && text.contains("none of them can be done at run time"), "{text}");
    }
}
