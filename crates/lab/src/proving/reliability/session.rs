//! One session: a boot, the mix of loads in all guests, and the end.
use std::time::{Duration, Instant};

use entrain_lab_machine::{
    Cache, LabError, Result, cancel,
    image::Images,
    machine::{Command, Machine, MachineSpec, Target},
    progress::{Progress, Quiet},
};

use super::record::Session;

/// The full mix, in turn. Each runs in all guests at once. hackbench makes fewer tasks and sends fewer messages a round
/// than is usual, so that rounds end within the window even where eight vCPUs share one emulated x86_64 CPU.
const LOADS: [&[&str]; 6] = [
    &["run", "dbench"],
    &["run", "hackbench", "--fds", "4", "--loops", "10"],
    &["lock"],
    &["shootdown"],
    &["wake"],
    &["tick"],
];
/// How long each load runs at a time, by the computer's clock.
const WINDOW: Duration = Duration::from_secs(5);
/// The least of the machine's own time that a load runs.
const SHORTEST: Duration = Duration::from_millis(300);
/// A load that has not ended this long after its time is stuck, though nothing else shows it: the watchdog on progress.
const STUCK: Duration = Duration::from_secs(60);

/// One session. A machine that breaks down, a load that fails or hangs are how a session ends.
///
/// # Errors
/// What says nothing of the machine: the user's wish to stop, a full disk, a missing program.
pub(super) fn run(
    cache: &Cache,
    images: &Images,
    spec: &MachineSpec,
    number: u32,
    load_time: Duration,
) -> Result<Session> {
    let mut session = Session { number, ..Session::default() };
    let quiet: &dyn Progress = &Quiet;
    let booted = Machine::boot_from(cache, images, spec, quiet).and_then(|machine| {
        machine.set_pace(machine.factor_of(spec.dilation)?)?;
        Ok(machine)
    });
    let error = match booted.and_then(|machine| drive(machine, number, load_time, &mut session)) {
        Ok(()) => return Ok(Session { ok: true, ..session }),
        Err(e) => e,
    };
    let class = match &error {
        LabError::Fault(fault) => fault.class.name(),
        LabError::Deadline { .. } => "deadline",
        LabError::Remote { .. } => "load",
        _ => return Err(error),
    };
    session.class = Some(class.to_owned());
    session.emulator = error.fault().is_some_and(entrain_lab_machine::Fault::is_emulator);
    session.detail = Some(error.to_string());
    Ok(session)
}

fn drive(machine: Machine, number: u32, load_time: Duration, session: &mut Session) -> Result<()> {
    session.boot_seconds = machine.boot_time().as_secs_f32();
    let (begun, clock) = (Instant::now(), machine.cpu_clock());
    let mut result = Ok(());
    // Each session begins with another load, so that short sessions meet all of them too.
    for load in LOADS.iter().cycle().skip(number as usize % LOADS.len()) {
        if begun.elapsed() >= load_time || result.is_err() {
            break;
        }
        result = window(&machine, machine.guests(), load);
        session.load_seconds = begun.elapsed().as_secs_f32();
        session.windows += u32::from(result.is_ok());
        session.cpu_share = machine.cpu_clock().share_since(&clock);
    }
    result?;
    machine.shutdown()
}

/// Runs one load in all guests at once.
fn window(machine: &Machine, guests: usize, load: &[&str]) -> Result<()> {
    // As much of the computer's time whatever the pace, and of the machine's enough to measure anything.
    let length = WINDOW.div_f64(machine.pace()).max(SHORTEST);
    let seconds = length.as_secs_f64().to_string();
    let argv: Vec<&str> = ["entrain-load"].iter().chain(load).copied().chain(["--seconds", &seconds]).collect();
    let command = Command::new(argv).within(length + STUCK);
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
            cancel::sleep(Duration::from_secs(3))?;
            machine.settle()?;
            return Err(LabError::Remote { who: Target::Guest(guest).to_string(), message });
        }
    }
    machine.check()
}
