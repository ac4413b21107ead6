//! `entrain isolate watch`: every interruption of an isolated CPU, attributed to its cause.

mod cgroups;
mod html;
#[cfg(test)]
mod injection;
mod interface;
mod model;
mod over;
mod programs;
mod remedy;
mod report;
mod steal;
pub(crate) mod target;
mod view;

/// The skeleton that the build script makes of the BPF programs.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));
}

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use entrain_bpf::Features;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};

use cgroups::Cgroups;
use entrain_system::kallsyms::Functions;
use entrain_system::{CpuSet, Root, monotonic_ns};
use interface::Event;
use model::{Context, Model};
use over::Over;
use programs::{Programs, Setup};
use report::Report;
use target::Target;

/// Interruptions kept for the timeline; 48 MB at most.
const EVENTS: usize = 400_000;
/// How often the ring buffer is emptied: it holds some 9,000 interruptions.
const DRAIN: Duration = Duration::from_millis(250);
/// Seconds watched when the output is for once and no time was given.
const ONCE: f64 = 10.0;

/// Attributes every interruption of isolated CPUs to its cause and sender (BPF only; works on any kernel with BTF).
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// CPUs to watch, like 2-5,8 [default: those of isolcpus= and nohz_full=]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuSet>,
    /// Watch the CPUs that this VM's vCPU threads (or this thread) are pinned to; all other tasks there are interruptions
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// End after this time
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// Print the table once at the end (after 10 s, or --seconds) instead of showing it live
    #[arg(long)]
    pub once: bool,
    /// The same as JSON
    #[arg(long)]
    pub json: bool,
    /// At the end, write a report with a timeline to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// End as soon as a CPU is interrupted for longer than this in one go, like 50us; show what led to it. Exit status 1
    /// then, 0 where it did not happen
    #[arg(long, value_name = "TIME", value_parser = over::parse_time)]
    pub over: Option<Duration>,
    /// With --over: how many of the last interruptions are kept
    #[arg(long, value_name = "N", default_value_t = 50, requires = "over",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub keep: u32,
}

/// Everything that changes while watching.
struct Watch {
    programs: Programs,
    model: Model,
    root: Root,
    began: Instant,
    /// CLOCK_MONOTONIC at the begin, ns.
    began_ns: u64,
    steal: BTreeMap<u32, u64>,
    /// `None` when nobody wants a timeline.
    events: Option<Vec<Event>>,
    over: Option<Over>,
    missed: u64,
}

/// Watches until the time is over, a signal comes, or `q`.
pub fn run(args: WatchArgs) -> anyhow::Result<ExitCode> {
    if args.seconds.is_some_and(|seconds| !(0.1..=1e6).contains(&seconds)) {
        bail!("--seconds is out of range: 0.1 to 1000000");
    }
    let once = args.once || args.json || !io::stdout().is_terminal();
    // With --over there is an end by itself, however long that takes.
    let seconds = args.seconds.or((once && args.over.is_none()).then_some(ONCE));
    let end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end)).context("cannot handle signals")?;
    }
    let mut watch = Watch::start(&args)?;
    let over = |watch: &Watch| {
        end.load(Ordering::Relaxed)
            || watch.found()
            || seconds.is_some_and(|seconds| watch.began.elapsed().as_secs_f64() >= seconds)
    };
    if once {
        // What comes before this line is not seen: loading takes its time.
        let long = seconds.map_or("until it happens".to_owned(), |seconds| format!("for {seconds} s"));
        eprintln!("watching CPU {} {long}", watch.model.context.cpus);
        while !over(&watch) {
            std::thread::sleep(watch.pause().min(Duration::from_secs_f64(seconds.unwrap_or(ONCE))));
            watch.drain()?;
        }
    } else {
        let mut terminal = ratatui::init();
        let result = live(&mut terminal, &mut watch, over);
        ratatui::restore();
        result?;
    }
    watch.programs.stop();
    watch.drain()?;
    let report = watch.report();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", view::plain(&report));
        match &report.over {
            Some(found) => print!("\n{}", found.text()),
            None if args.over.is_some() => println!("\nNo CPU was interrupted for longer than that in one go."),
            None => {}
        }
    }
    if let Some(path) = &args.html {
        let kept = watch.over.as_ref().map(Over::events);
        let events = kept.as_deref().or(watch.events.as_deref()).unwrap_or_default();
        let page = html::render(&report, &watch.model, events, watch.began_ns);
        fs::write(path, page).with_context(|| format!("cannot write the report {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(report.over.is_some())))
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    watch: &mut Watch,
    over: impl Fn(&Watch) -> bool,
) -> anyhow::Result<()> {
    let mut view = view::View::default();
    let mut report = watch.report();
    let mut next = Instant::now() + watch.pause();
    while !over(watch) {
        terminal.draw(|frame| view.draw(frame, &report))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Input::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                if interrupt || view.key(key.code) {
                    return Ok(());
                }
            }
            continue;
        }
        watch.drain()?;
        next = Instant::now() + watch.pause();
        report = watch.report();
    }
    Ok(())
}

impl Watch {
    fn start(args: &WatchArgs) -> anyhow::Result<Self> {
        let root = Root::live();
        let target = Target::choose(&root, args.cpus.as_ref(), &args.pid)?;
        let features = Features::probe();
        if !features.capable {
            bail!("watching needs root's capabilities (SYS_ADMIN, SYS_PTRACE, BPF, PERFMON): run as root");
        }
        if !features.btf {
            bail!("this kernel has no type information: use one built with CONFIG_DEBUG_INFO_BTF");
        }
        leave(&target.cpus, &root);
        let symbols = Functions::parse(&root.text("proc/kallsyms").unwrap_or_default());
        if symbols.is_empty() {
            tracing::warn!("/proc/kallsyms hides its addresses: functions are shown as numbers (kernel.kptr_restrict)");
        }
        // tick_sched_timer until Linux 6.7.
        let tick = ["tick_nohz_handler", "tick_sched_timer"].iter().find_map(|name| symbols.address(name));
        let possible = root.cpus_or_none("sys/devices/system/cpu/possible");
        let unbound = root.trimmed("sys/devices/virtual/workqueue/cpumask").and_then(|mask| CpuSet::from_mask(&mask));
        let setup = Setup {
            cpus: target.cpus.clone(),
            owners: target.owners,
            possible: possible.last().map_or(1, |last| last + 1),
            unbound: unbound.is_none_or(|mask| !mask.common(&target.cpus).is_empty()),
            tick_handler: tick.unwrap_or(0),
        };
        entrain_bpf::quiet();
        let programs = Programs::start(&setup)?;
        let skipped = relevant(&programs.skipped);
        if !skipped.is_empty() {
            tracing::warn!("this kernel has no tracepoints {}: what they tell is missing", skipped.join(", "));
        }
        let context = Context {
            nohz_full: root.cpus_or_none("sys/devices/system/cpu/nohz_full"),
            cpus: target.cpus,
            kernel: root.trimmed("proc/sys/kernel/osrelease").unwrap_or_default(),
            skipped,
            symbols,
        };
        let cgroups = Cgroups::new(&root.text("proc/self/mountinfo").unwrap_or_default());
        let mut watch = Self {
            programs,
            model: Model::new(context, cgroups),
            root,
            began: Instant::now(),
            began_ns: monotonic_ns(),
            steal: BTreeMap::new(),
            events: (args.html.is_some() && args.over.is_none()).then(Vec::new),
            over: args.over.map(|limit| Over::new(limit, args.keep as usize)),
            missed: 0,
        };
        watch.steal = watch.steal_now();
        Ok(watch)
    }

    /// Empties the ring buffer, and learns what stands behind numbers before it vanishes.
    fn drain(&mut self) -> anyhow::Result<()> {
        let new = self.programs.events()?;
        let programs = &self.programs;
        self.model.learn(new.iter().map(|event| &event.key), |id| programs.stack(id));
        if let Some(over) = &mut self.over {
            over.learn(&new);
        }
        if let Some(events) = &mut self.events {
            let room = EVENTS.saturating_sub(events.len());
            self.missed += new.len().saturating_sub(room) as u64;
            events.extend(new.into_iter().take(room));
        }
        Ok(())
    }

    /// How long to wait until the ring buffer is emptied again.
    fn pause(&self) -> Duration {
        if self.over.is_some() { over::DRAIN } else { DRAIN }
    }

    /// A CPU was interrupted for too long.
    fn found(&self) -> bool {
        self.over.as_ref().is_some_and(Over::found)
    }

    fn report(&mut self) -> Report {
        let totals = self.programs.totals();
        let programs = &self.programs;
        self.model.learn(totals.keys(), |id| programs.stack(id));
        let mut lost = self.programs.lost();
        lost.events += self.missed;
        let steal = steal::since(&self.steal, &self.steal_now());
        let report = self.model.report(&totals, &steal, lost, self.began.elapsed().as_secs_f64());
        Report { over: self.over.as_ref().and_then(|over| over.report(&self.model)), ..report }
    }

    fn steal_now(&self) -> BTreeMap<u32, u64> {
        let text = self.root.trimmed("proc/stat").unwrap_or_default();
        steal::read(&text, &self.model.context.cpus, rustix::param::clock_ticks_per_second())
    }
}

/// Moves this process off the CPUs that it watches. Where it has no other CPU it stays, and says so.
fn leave(watched: &CpuSet, root: &Root) {
    let others = root.cpus_or_none("sys/devices/system/cpu/online").without(watched);
    let mut set = rustix::thread::CpuSet::new();
    others.iter().filter(|cpu| (*cpu as usize) < rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu as usize));
    if others.is_empty() || rustix::thread::sched_setaffinity(None, &set).is_err() {
        tracing::warn!("this program may run on the CPUs that it watches, and then shows up itself");
    }
}

/// Tracepoints whose absence means less is seen. Each architecture has its own for interrupts, and some are optional.
fn relevant(skipped: &[String]) -> Vec<String> {
    let foreign: &[&str] = if cfg!(target_arch = "x86_64") {
        &["ipi_entry", "ipi_exit"]
    } else {
        &["local_timer", "reschedule", "call_function", "irq_work", "x86_", "spurious", "nmi_"]
    };
    let optional = ["thermal_apic", "threshold_apic", "deferred_error_apic", "error_apic"];
    let matters = |name: &&String| !foreign.iter().chain(&optional).any(|start| name.starts_with(start));
    skipped.iter().filter(matters).cloned().collect()
}
