//! `entrain lab selftest`: does the lab end well when what it stands on breaks?
//!
//! Each trial breaks one thing on purpose while the lab works, and demands three things: the lab ends in time, its
//! message says what happened and what to do, and nothing stays behind (see [`trial`]).

mod trial;

use std::{
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use entrain_lab_machine::{
    Cache, FaultClass, LabError, cancel,
    machine::{Command, Machine, Target},
    progress::Quiet,
};

use self::trial::{Ended, Trial};
use crate::cli::machine_args::MachineArgs;

/// Options of `entrain lab selftest`.
#[derive(Debug, clap::Args)]
pub struct SelftestArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Only the trials whose name holds this; may be repeated
    #[arg(long = "only", value_name = "NAME")]
    only: Vec<String>,
    /// How often the lab is interrupted, at moments chosen by chance
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    interrupts: u32,
    /// Seed of the chosen moments; by default another one each time
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// The lab must come to its end within this time of what broke it. Its own deadline for a silent machine is 30 s.
const END: Duration = Duration::from_secs(60);
/// A machine with its guests must be up within this time, also on a busy computer.
const UP: Duration = Duration::from_secs(420);
/// What the machine's command prints when all is up.
const UP_LINE: &str = "selftest: all is up";

type Case = (&'static str, &'static str, fn(&SelftestArgs) -> Result<String>);

const CASES: &[Case] = &[
    ("no-network", "an empty cache and no network", no_network),
    ("disk-full", "a cache on a disk of 24 MiB", disk_full),
    ("guest-never-boots", "a guest whose init never starts the agent", guest_never_boots),
    ("guest-panics", "a guest without an init", guest_panics),
    ("qemu-killed", "the host machine's QEMU killed under a running command", qemu_killed),
    ("guest-killed", "a guest's QEMU killed inside the host machine", guest_killed),
    ("port-cut", "the port to the agents cut under a running command", port_cut),
    ("interrupts", "SIGINT at moments chosen by chance", interrupts),
];

/// Runs the trials; status 1 if one failed.
pub fn run(args: &SelftestArgs) -> Result<ExitCode> {
    let chosen: Vec<&Case> = CASES
        .iter()
        .filter(|case| args.only.is_empty() || args.only.iter().any(|only| case.0.contains(only)))
        .collect();
    let names: Vec<&str> = CASES.iter().map(|case| case.0).collect();
    ensure!(!chosen.is_empty(), "no trial has such a name; there are: {}", names.join(", "));
    let mut failed = 0;
    for (name, what, case) in &chosen {
        cancel::check()?;
        eprintln!("     {name}: {what}");
        let start = Instant::now();
        let (word, told) = match case(args) {
            Ok(told) => ("ok  ", told),
            Err(error) if cancel::cancelled() => return Err(error),
            Err(error) => {
                failed += 1;
                ("FAIL", format!("{error:#}"))
            }
        };
        println!("{word} {name} ({:.0} s): {told}", start.elapsed().as_secs_f32());
    }
    println!("{} passed, {failed} failed", chosen.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Arguments of `entrain lab shell` for a machine of the asked-for kind that says when it is up, and then waits.
fn shell(args: &SelftestArgs, guests: u32) -> Vec<String> {
    let mut argv = machine(args, guests);
    let line = format!("echo {UP_LINE}; sleep 600");
    argv.extend(["--", "sh", "-c", &line].map(str::to_owned));
    argv
}

fn machine(args: &SelftestArgs, guests: u32) -> Vec<String> {
    let spec = &args.machine;
    let mut argv: Vec<String> = vec!["shell".to_owned()];
    argv.extend([format!("--arch={}", spec.arch), format!("--guests={guests}"), format!("--vcpus={}", spec.vcpus)]);
    argv
}

/// The lab failed, its message holds all the words, and nothing was left.
fn expect(ended: &Ended, words: &[&str]) -> Result<String> {
    ensure!(ended.status != Some(0), "the lab took it for success; it said: {}", ended.stderr.trim());
    for word in words {
        ensure!(ended.stderr.contains(word), "the message does not say '{word}': {}", ended.stderr.trim());
    }
    ensure!(ended.left.is_empty(), "left behind: {}", ended.left.join("; "));
    let message = ended.stderr.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    Ok(message.chars().take(160).collect())
}

fn no_network(args: &SelftestArgs) -> Result<String> {
    let mut argv = vec!["images".into()];
    argv.push(format!("--arch={}", args.machine.arch));
    let trial = Trial::start(&argv, trial::World::WithoutNetwork)?;
    expect(&trial.end(Duration::from_secs(180))?, &["does not answer", "network", "try again"])
}

fn disk_full(args: &SelftestArgs) -> Result<String> {
    let mut argv = vec!["images".into()];
    argv.push(format!("--arch={}", args.machine.arch));
    let trial = Trial::start(&argv, trial::World::SmallCache { mib: 24 })?;
    expect(&trial.end(Duration::from_secs(300))?, &["no space left", "XDG_CACHE_HOME", "entrain lab clean"])
}

fn guest_never_boots(args: &SelftestArgs) -> Result<String> {
    let mut argv = machine(args, 1);
    // A program that waits for input that never comes stands for an init that hangs.
    argv.extend(["--guest-append=rdinit=/bin/cat", "--boot-limit=60", "--", "true"].map(str::to_owned));
    let trial = Trial::start(&argv, trial::World::Users)?;
    expect(&trial.end(UP)?, &["guest 0: boot-deadline", "never came up", "console"])
}

fn guest_panics(args: &SelftestArgs) -> Result<String> {
    let mut argv = machine(args, 1);
    argv.extend(
        ["--guest-append=rdinit=/nowhere", "--guest-append=root=/dev/nothing", "--", "true"].map(str::to_owned),
    );
    let trial = Trial::start(&argv, trial::World::Users)?;
    expect(&trial.end(UP)?, &["guest 0: panic", "console"])
}

fn qemu_killed(args: &SelftestArgs) -> Result<String> {
    let trial = Trial::start(&shell(args, 1), trial::World::Users)?;
    trial.wait_for(UP_LINE, UP)?;
    let qemu = trial.process("qemu-system-").context("no QEMU runs, though the machine is up")?;
    trial::kill(qemu, rustix::process::Signal::KILL);
    expect(&trial.end(END)?, &["host machine: qemu-died", "somebody killed it"])
}

fn guest_killed(args: &SelftestArgs) -> Result<String> {
    let mut argv = machine(args, 1);
    // Inside the host machine busybox is all there is to find the process with.
    let line = format!("echo {UP_LINE}; kill -9 $(pidof qemu-system-{}); sleep 600", args.machine.arch);
    argv.extend(["--", "sh", "-c", &line].map(str::to_owned));
    let trial = Trial::start(&argv, trial::World::Users)?;
    trial.wait_for(UP_LINE, UP)?;
    expect(&trial.end(END)?, &["guest 0: guest-gone", "start the machine again"])
}

/// Inside this process: the port is a socket pair that nobody else can reach.
fn port_cut(args: &SelftestArgs) -> Result<String> {
    let spec = MachineArgs { guests: 1, ..args.machine.clone() }.spec();
    let machine = Machine::boot(&Cache::open()?, &spec, &Quiet)?;
    let qemu = machine.qemu_pid();
    let running = machine.start(Target::Host, Command::new(["sleep", "600"]))?;
    machine.cut_port();
    let start = Instant::now();
    let error = running.wait().err().context("the command went on without its port")?;
    ensure!(start.elapsed() < END, "it took {:.0} s to notice", start.elapsed().as_secs_f32());
    let LabError::Fault(fault) = &error else { anyhow::bail!("not recognised as a fault: {error}") };
    ensure!(fault.class == FaultClass::PortCut, "recognised as {}: {error}", fault.class);
    drop(machine);
    ensure!(!trial::alive(qemu), "QEMU (process {qemu}) was left behind");
    Ok(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// Most of the time the lab is booting; some of the interrupts come while it runs a command, or while it builds images.
fn interrupts(args: &SelftestArgs) -> Result<String> {
    let boot = Trial::start(&shell(args, 2), trial::World::Users)?;
    let up = boot.wait_for(UP_LINE, UP)?;
    boot.interrupt();
    expect(&boot.end(END)?, &["stopped at the user's request"]).context("SIGINT under a running command")?;
    let seed = args
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.subsec_nanos().into()));
    let mut chance = Chance(seed);
    let mut longest = Duration::ZERO;
    for number in 0..args.interrupts {
        cancel::check()?;
        let delay = up.mul_f64(1.2 * chance.next());
        // One in five into an empty cache: then it is apt that is interrupted.
        let world = if number % 5 == 4 { trial::World::EmptyCache } else { trial::World::Users };
        let delay = if world == trial::World::EmptyCache { delay.min(Duration::from_secs(10)) } else { delay };
        let trial = Trial::start(&shell(args, 2), world)?;
        cancel::sleep(delay)?;
        trial.interrupt();
        let at = || format!("SIGINT after {:.2} s (number {number}, seed {seed})", delay.as_secs_f64());
        let ended = trial.end(END).with_context(at)?;
        longest = longest.max(ended.took);
        // Before the handlers are there the signal simply ends the process, and there is nothing to say.
        if ended.status.is_some() {
            expect(&ended, &["stopped at the user's request"]).with_context(at)?;
        } else {
            ensure!(ended.left.is_empty(), "{}: left behind: {}", at(), ended.left.join("; "));
        }
    }
    let longest = longest.as_secs_f32();
    Ok(format!(
        "{} times, seed {seed}, over 0 to {:.0} s; the longest took {longest:.1} s",
        args.interrupts,
        up.as_secs_f32() * 1.2
    ))
}

/// SplitMix64: moments need no better chance.
struct Chance(u64);

impl Chance {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_lie_in_range_and_repeat_with_the_seed() {
        let take = |seed| -> Vec<f64> {
            let mut c = Chance(seed);
            (0..1000).map(|_| c.next()).collect()
        };
        let moments = take(7);
        assert!(moments.iter().all(|m| (0.0..1.0).contains(m)));
        assert!((moments.iter().sum::<f64>() / 1000.0 - 0.5).abs() < 0.05);
        assert_eq!(moments, take(7));
        assert_ne!(moments, take(8));
    }

    #[test]
    fn a_silent_or_untidy_end_is_no_success() {
        let ended = |status, stderr: &str, left: &[&str]| Ended {
            status,
            stderr: stderr.into(),
            left: left.iter().map(|l| (*l).to_owned()).collect(),
            took: Duration::ZERO,
        };
        assert!(expect(&ended(Some(1), "Error: gone, try again", &[]), &["gone", "try again"]).is_ok());
        assert!(expect(&ended(Some(0), "gone, try again", &[]), &["gone"]).is_err());
        assert!(expect(&ended(Some(1), "", &[]), &["gone"]).is_err());
        let untidy = expect(&ended(Some(1), "gone", &["process 7"]), &["gone"]).unwrap_err();
        assert!(untidy.to_string().contains("process 7"));
    }
}
