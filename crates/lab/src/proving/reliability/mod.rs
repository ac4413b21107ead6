//! `entrain lab reliability`: how many two-guest sessions under the full mix of loads end well, and how the others end.
mod record;
mod session;

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use entrain_lab_machine::{
    Cache, LabError, cancel,
    image::{self, Images},
    machine::MachineSpec,
    progress::Spinner,
};
use entrain_results::output::{Output, why};
use indicatif::{ProgressBar, ProgressStyle};

use self::record::Series;
use crate::cli::machine_args::MachineArgs;
use crate::output;
use crate::sameness;

/// Options of `entrain lab reliability`.
#[derive(Debug, clap::Args)]
pub struct ReliabilityArgs {
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
    /// Write the result to this file, anew after each session
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Go on with the sessions in that file, if it is there: machine, kernel and --seconds must be the same
    #[arg(long = "continue", requires = "json")]
    go_on: bool,
}

/// Runs the sessions; status 1 unless all of them ended well.
pub fn run(args: ReliabilityArgs) -> anyhow::Result<ExitCode> {
    // Before anything is fetched or built: a file that can't be written, or must not be, is told at once.
    let file = args.json.as_deref().map(Output::new).transpose()?;
    let earlier = earlier(&args)?;
    let cache = Cache::open()?;
    let mut spec = args.machine.spec();
    spec.programs.extend(["dbench", "hackbench"].map(str::to_owned));
    let images = {
        let spinner = Spinner::new();
        entrain_lab_machine::machine::accel::qemu(&cache, spec.arch, &spinner)?;
        image::prepare(&cache, &spec, &spinner)?
    };
    let mut series = Series::new(&spec, &images.release, args.seconds);
    if let (Some(earlier), Some(file)) = (earlier, &file) {
        series.go_on(earlier).with_context(|| format!("{} cannot be gone on with", file.name().display()))?;
        eprintln!("{}: {} sessions are there", file.name().display(), series.sessions.len());
    }
    let (seconds, series, bar) = (args.seconds, Mutex::new(series), bar(args.sessions));
    let mut work = Work { cache, images, spec, seconds, file, series, stopped: OnceLock::new(), bar };
    let series = work.all(args.sessions, args.parallel)?;
    tell(&work.spec, &series);
    if let Some(error) = work.stopped.take() {
        if let Some(file) = work.file.as_ref().filter(|_| !series.sessions.is_empty()) {
            let name = file.name().display();
            eprintln!("{} sessions are in {name}: --continue goes on with them", series.sessions.len());
        }
        return Err(error.into());
    }
    let whole = series.missing(args.sessions).is_empty();
    Ok(ExitCode::from(u8::from(!whole || series.ok < series.sessions.len())))
}

/// What the file holds, where it is to be gone on with. A file with something else in it is not overwritten.
fn earlier(args: &ReliabilityArgs) -> anyhow::Result<Option<Series>> {
    let Some(path) = args.json.as_ref().filter(|path| sameness::is_begun(path)) else { return Ok(None) };
    if args.go_on {
        return Series::read(path).map(Some);
    }
    bail!("{} is there: --continue goes on with its sessions; else remove it or name another file", path.display())
}

fn bar(sessions: u32) -> ProgressBar {
    let bar = ProgressBar::new(sessions.into()).with_style(
        ProgressStyle::with_template("{elapsed:>6} {bar:30} {pos}/{len} sessions, {msg}, {eta} left").expect("valid"),
    );
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Shared by the threads that make sessions.
struct Work {
    cache: Cache,
    /// Those of the first session: all of a series are of one build.
    images: Images,
    spec: MachineSpec,
    seconds: u64,
    file: Option<Output>,
    series: Mutex<Series>,
    /// Why no further session can be made.
    stopped: OnceLock<LabError>,
    bar: ProgressBar,
}

impl Work {
    fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().expect("no panic under it")
    }

    /// Makes the sessions that are missing; fails only if what they found could be kept nowhere else.
    fn all(&self, sessions: u32, parallel: u32) -> anyhow::Result<Series> {
        let (missing, next) = (self.series().missing(sessions), AtomicUsize::new(0));
        self.show();
        std::thread::scope(|scope| {
            for _ in 0..parallel {
                scope.spawn(|| {
                    while let Some(number) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if !self.one(*number) {
                            return;
                        }
                    }
                });
            }
        });
        self.bar.finish_and_clear();
        let series = self.series().clone();
        if series.sessions.is_empty() {
            return Ok(series);
        }
        // What could not be written on the way may find room now; if not, it is kept elsewhere.
        self.save(&series).or_else(|what| {
            let kept = output::keep(series.text().as_bytes(), "reliability", "json");
            let Some(kept) = kept else {
                output::tell(io::stdout(), &series.text());
                bail!("{what}. The sessions are printed above, as JSON");
            };
            let kept = kept.display();
            bail!(
                "{what}. Nothing is lost: the sessions are kept in {kept}; '--json {kept} --continue' goes on with them"
            )
        })?;
        Ok(series)
    }

    /// One session; false if the run must end.
    fn one(&self, number: u32) -> bool {
        if self.stopped.get().is_some() || cancel::cancelled() {
            return false;
        }
        let load_time = Duration::from_secs(self.seconds);
        let session = match session::run(&self.cache, &self.images, &self.spec, number, load_time) {
            Ok(session) => session,
            Err(error) => {
                // The first one is the one to tell.
                let _ = self.stopped.set(error);
                return false;
            }
        };
        let detail = session.detail.clone();
        let mut series = self.series();
        series.push(session);
        let saved = self.save(&series);
        drop(series);
        self.bar.suspend(|| {
            if let Some(detail) = detail {
                output::tell(io::stderr(), &format!("session {number}: {detail}\n"));
            }
            // Not the end of the run: the sessions are in memory, and the disk may have room again later.
            if let Err(what) = saved {
                output::tell(io::stderr(), &format!("{what}; tried again after the next session\n"));
            }
        });
        self.show();
        true
    }

    /// Writes the file; what went wrong, if anything did.
    fn save(&self, series: &Series) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write(series.text().as_bytes()).map_err(|error| why(file.name(), &error))
    }

    fn show(&self) {
        let series = self.series();
        let lost = series.sessions.len() - series.ok;
        self.bar.set_position(series.sessions.len() as u64);
        self.bar.set_message(if lost == 0 { "all well so far".to_owned() } else { format!("{lost} lost") });
    }
}

fn tell(spec: &MachineSpec, series: &Series) {
    println!(
        "{}: {} of {} sessions of {} s ended well ({} guests of {} vCPUs on {} pCPUs, Linux {})",
        spec.arch,
        series.ok,
        series.sessions.len(),
        series.seconds,
        spec.guests.len(),
        spec.guests.first().map_or(0, |g| g.vcpus),
        spec.pcpus,
        series.release,
    );
    for (class, count) in &series.lost {
        println!("  lost by {class}: {count}");
    }
    if !series.starved.is_empty() {
        println!(
            "  not counted: {} in which other programs took the CPU (at most 30 % was left); --continue makes them anew",
            series.starved.len()
        );
    }
    let mut boots: Vec<f32> = series.sessions.iter().map(|s| s.boot_seconds).filter(|s| *s > 0.0).collect();
    boots.sort_by(f32::total_cmp);
    if let (Some(first), Some(last)) = (boots.first(), boots.last()) {
        println!("  up after {:.0} s (median; {first:.0} to {last:.0})", boots[boots.len() / 2]);
    }
}
