//! `entrain lab reliability`: how many two-guest sessions under the full mix of loads end well, and how the others end.
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::machine_args::MachineArgs;
use crate::{
    Cache, LabError, Result, cancel, image,
    machine::{Command, Machine, MachineSpec, Target},
    progress::{Progress, Quiet, Spinner},
};

/// The full mix, in turn. Each runs in all guests at once. hackbench sends fewer messages a round than is usual, so that
/// rounds end within the window even where two emulators share a computer.
const LOADS: [&[&str]; 6] =
    [&["run", "dbench"], &["run", "hackbench", "--loops", "10"], &["lock"], &["shootdown"], &["wake"], &["tick"]];
/// How long each load runs at a time.
const WINDOW: Duration = Duration::from_secs(5);
/// A load that has not ended this long after its time is stuck, though nothing else shows it: the watchdog on progress.
const STUCK: Duration = Duration::from_secs(60);

/// Options of `entrain lab reliability`.
#[derive(Debug, clap::Args)]
pub(super) struct ReliabilityArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Number of sessions: boots of a host machine with its guests
    #[arg(long, default_value_t = 50)]
    sessions: u32,
    /// Time under load in each session, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Sessions at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    parallel: u32,
    /// Write the result to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One session.
#[derive(Debug, Serialize)]
struct Session {
    number: u32,
    ok: bool,
    /// The fault's class, or "deadline", "load" (a load failed), "other".
    class: Option<String>,
    /// In full, with the last lines of the console.
    detail: Option<String>,
    /// May the emulator alone be to blame?
    emulator: bool,
    /// Until host machine and guests were up, s.
    boot_seconds: f32,
    /// Under load, s.
    load_seconds: f32,
    /// Loads that ended in all guests.
    windows: u32,
    /// Share of the CPU time it asked for that the machine got, 0 to 1.
    cpu_share: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: u32,
    machine: &'a MachineSpec,
    release: String,
    seconds: u64,
    ok: usize,
    lost: BTreeMap<String, usize>,
    sessions: Vec<Session>,
}

pub(super) fn run(args: ReliabilityArgs) -> anyhow::Result<ExitCode> {
    let cache = Cache::open()?;
    let mut spec = args.machine.spec();
    spec.programs.extend(["dbench", "hackbench"].map(str::to_owned));
    let images = {
        let spinner = Spinner::new();
        crate::machine::accel::qemu(&cache, spec.arch, &spinner)?;
        image::prepare(&cache, &spec, &spinner)?
    };
    let bar = ProgressBar::new(args.sessions.into()).with_style(
        ProgressStyle::with_template("{elapsed:>6} {bar:30} {pos}/{len} sessions, {msg}, {eta} left").expect("valid"),
    );
    bar.set_message("all well so far");
    bar.enable_steady_tick(Duration::from_millis(500));
    let (next, done) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.parallel {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.sessions || cancel::cancelled() {
                        return;
                    }
                    let Some(session) = session(&cache, &spec, number, Duration::from_secs(args.seconds)) else {
                        return;
                    };
                    let mut done = done.lock().expect("no panic under it");
                    if let Some(detail) = &session.detail {
                        bar.suspend(|| eprintln!("session {number}: {detail}"));
                    }
                    done.push(session);
                    let lost = done.iter().filter(|s| !s.ok).count();
                    bar.set_message(format!("{lost} lost"));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut sessions = done.into_inner().expect("no panic under it");
    sessions.sort_by_key(|s| s.number);
    let mut lost = BTreeMap::new();
    for session in sessions.iter().filter(|s| !s.ok) {
        *lost.entry(session.class.clone().unwrap_or_default()).or_insert(0) += 1;
    }
    let ok = sessions.iter().filter(|s| s.ok).count();
    let report =
        Report { schema: 1, machine: &spec, release: images.release, seconds: args.seconds, ok, lost, sessions };
    tell(&report);
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?).with_context(|| path.display().to_string())?;
    }
    cancel::check()?;
    Ok(ExitCode::from(u8::from(report.ok < report.sessions.len())))
}

fn tell(report: &Report<'_>) {
    let spec = report.machine;
    println!(
        "{}: {} of {} sessions of {} s ended well ({} guests of {} vCPUs on {} pCPUs, Linux {})",
        spec.arch,
        report.ok,
        report.sessions.len(),
        report.seconds,
        spec.guests.len(),
        spec.guests.first().map_or(0, |g| g.vcpus),
        spec.pcpus,
        report.release,
    );
    for (class, count) in &report.lost {
        println!("  lost by {class}: {count}");
    }
    let mut boots: Vec<f32> = report.sessions.iter().map(|s| s.boot_seconds).filter(|s| *s > 0.0).collect();
    boots.sort_by(f32::total_cmp);
    if let (Some(first), Some(last)) = (boots.first(), boots.last()) {
        println!("  up after {:.0} s (median; {first:.0} to {last:.0})", boots[boots.len() / 2]);
    }
}

/// One session; `None` if the user stopped it.
fn session(cache: &Cache, spec: &MachineSpec, number: u32, load_time: Duration) -> Option<Session> {
    let mut session = Session {
        number,
        ok: false,
        class: None,
        detail: None,
        emulator: false,
        boot_seconds: 0.0,
        load_seconds: 0.0,
        windows: 0,
        cpu_share: 0.0,
    };
    let error = match drive(cache, spec, number, load_time, &mut session) {
        Ok(()) => {
            session.ok = true;
            return Some(session);
        }
        Err(LabError::Cancelled) => return None,
        Err(e) => e,
    };
    session.class = Some(match &error {
        LabError::Fault(fault) => fault.class.name().to_owned(),
        LabError::Deadline { .. } => "deadline".into(),
        LabError::Remote { .. } => "load".into(),
        _ => "other".into(),
    });
    session.emulator = error.fault().is_some_and(crate::Fault::is_emulator);
    session.detail = Some(error.to_string());
    Some(session)
}

fn drive(cache: &Cache, spec: &MachineSpec, number: u32, load_time: Duration, session: &mut Session) -> Result<()> {
    let quiet: &dyn Progress = &Quiet;
    let machine = Machine::boot(cache, spec, quiet)?;
    session.boot_seconds = machine.boot_time().as_secs_f32();
    let (begun, clock) = (Instant::now(), machine.cpu_clock());
    let mut result = Ok(());
    // Each session begins with another load, so that short sessions meet all of them too.
    for load in LOADS.iter().cycle().skip(number as usize % LOADS.len()) {
        if begun.elapsed() >= load_time || result.is_err() {
            break;
        }
        result = window(&machine, spec.guests.len(), load);
        session.load_seconds = begun.elapsed().as_secs_f32();
        session.windows += u32::from(result.is_ok());
        session.cpu_share = machine.cpu_clock().share_since(&clock);
    }
    result?;
    machine.shutdown()
}

/// Runs one load in all guests at once.
fn window(machine: &Machine, guests: usize, load: &[&str]) -> Result<()> {
    let seconds = WINDOW.as_secs().to_string();
    let argv: Vec<&str> = ["entrain-load"].iter().chain(load).copied().chain(["--seconds", &seconds]).collect();
    let command = Command::new(argv).within(WINDOW + STUCK);
    let running: Vec<_> =
        (0..guests).map(|n| machine.start(Target::Guest(n), command.clone())).collect::<Result<_>>()?;
    for (guest, running) in running.into_iter().enumerate() {
        let outcome = running.wait()?;
        if !outcome.ok() {
            let message = format!(
                "'{}': status {}: {}",
                load.join(" "),
                outcome.status,
                String::from_utf8_lossy(&outcome.stderr)
            );
            // A dying guest can end its programs before its fault is known.
            std::thread::sleep(Duration::from_secs(3));
            machine.check()?;
            return Err(LabError::Remote { who: Target::Guest(guest).to_string(), message });
        }
    }
    machine.check()
}
