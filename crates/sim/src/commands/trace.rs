//! `entrain-sim trace`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use entrain_results::output;
use entrain_sim::kernel::TaskId;
use entrain_sim::replay::export;
use entrain_sim::scenario::Setup;
use entrain_sim::trace::{Timeline, perfetto, picture, text, wait};
use entrain_sim::world::{HOST, MachineId};

use super::{Which, ns};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Who schedules: `stock`, `host` (Entrain on the host alone) or `both`.
    #[arg(long, default_value = "both")]
    arm: String,
    /// Where the window begins, ms.
    #[arg(long, default_value_t = 1000.0)]
    from: f64,
    /// How long it is, ms.
    #[arg(long = "for", default_value_t = 10.0)]
    length: f64,
    /// Prints what happened on this machine alone: `host`, or a guest's number.
    #[arg(long)]
    machine: Option<String>,
    /// Prints what happened on this CPU alone.
    #[arg(long)]
    cpu: Option<u32>,
    /// Says why a task waited, instead of all that happened: the longest wait of the tasks whose names begin so (`guest 0
    /// clock`, `guest 1 vCPU`; `--names` lists them). The window is that of the wait.
    #[arg(long, value_name = "TASKS")]
    wait: Option<String>,
    /// Lists the tasks, with the longest wait of each.
    #[arg(long)]
    names: bool,
    /// Writes the window for ui.perfetto.dev, instead of printing it.
    #[arg(long)]
    perfetto: Option<PathBuf>,
    /// Draws the window: who ran, waited and spun, an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes the window as a recording of `entrain record`, for `entrain report` and `entrain-sim replay`, instead of
    /// printing it.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
}

fn every_task(setup: &Setup) -> Vec<(MachineId, TaskId)> {
    let machines = setup.world.machines.iter().enumerate();
    machines
        .flat_map(|(m, machine)| (0..machine.tasks.len()).map(move |task| (MachineId(m as u16), TaskId(task as u32))))
        .collect()
}

pub(crate) fn run(args: Args) -> Result<bool> {
    let arm = args.which.arm(&args.arm)?;
    let mut setup = args.which.build(arm)?;
    let (mut from, mut until) = (ns(args.from), ns(args.from + args.length));
    let machine = match args.machine.as_deref() {
        None => None,
        Some("host") => Some(HOST),
        Some(number) => Some(MachineId(1 + number.parse::<u16>().context("a machine is `host` or a guest's number")?)),
    };
    let mut found = None;
    if args.names || args.wait.is_some() {
        // The window is known when the run is over: a second one is the same to the last bit.
        setup.world.run(setup.end);
        let tasks = every_task(&setup);
        if args.names {
            for (m, task) in tasks {
                let (from, until) = setup.world.longest_wait(m, task).unwrap_or_default();
                let (name, waited) = (setup.world.name(m, task), text::duration(until - from));
                println!(
                    "{:<10} {name:<24} waited {waited} at most, from {:.6} s",
                    text::machine(m),
                    from as f64 / 1e9
                );
            }
            return Ok(true);
        }
        let prefix = args.wait.clone().unwrap_or_default();
        let wanted: Vec<_> =
            tasks.into_iter().filter(|(m, task)| setup.world.name(*m, *task).starts_with(&prefix)).collect();
        let longest = wait::longest(&setup.world, &wanted);
        let Some(longest) = longest else { bail!("no task whose name begins with {prefix:?} has waited; see --names") };
        found = Some(longest);
        (from, until) = (longest.2.saturating_sub(20_000_000), longest.3 + 1_000_000);
        setup = args.which.build(arm)?;
    }
    setup.world.record(from, until);
    setup.world.run(until.min(setup.end));
    let world = &setup.world;
    if let Some(path) = &args.perfetto {
        let timeline = Timeline::of(world.records(), world.now);
        let trace = serde_json::to_string(&perfetto::trace(world, world.records(), &timeline))?;
        output::write(path, trace.as_ref())?;
        println!("{} records in {}: open it in ui.perfetto.dev", world.records().len(), path.display());
    } else if let Some(path) = &args.svg {
        let timeline = Timeline::of(world.records(), world.now);
        output::write(path, picture::file(world, &timeline, from, world.now).as_bytes())?;
        println!("{} records in {}", world.records().len(), path.display());
    } else if let Some(path) = &args.recording {
        let recording = export::recording(world, from);
        entrain_record::file::write(path, &recording).with_context(|| path.display().to_string())?;
        println!("{} events in {}: `entrain report` reads it", recording.events.len(), path.display());
    } else if found.is_none() {
        let wanted = |record: &entrain_sim::trace::Record| {
            machine.is_none_or(|m| record.machine == m) && args.cpu.is_none_or(|cpu| record.cpu == cpu)
        };
        print!("{}", text::lines(world, world.records(), wanted));
    }
    if let Some((m, task, from, until)) = found {
        print!("{}", wait::why(world, world.records(), m, task, from, until));
    }
    Ok(true)
}
