//! What recordings of a host and of a guest have in common: the ring is emptied, the file kept up to date, the end told.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use entrain_system::{Root, monotonic_ns};
use indicatif::{ProgressBar, ProgressStyle};

use crate::file::{Clock, Host, Name, RecordedVm, Writer};
use crate::programs::Programs;

/// How often the ring buffer is emptied: its 8 MiB hold 200,000 events.
const DRAIN: Duration = Duration::from_millis(50);
/// How often the file is brought up to date, and VMs are looked for.
const SAVE: Duration = Duration::from_secs(1);
/// Threads whose names are kept.
const NAMES: usize = 26_000;

/// What to record.
pub(crate) struct Wish {
    /// Names or pids; empty: all VMs.
    pub(crate) vms: Vec<String>,
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
    pub(crate) output: PathBuf,
}

/// What was recorded.
pub(crate) struct Outcome {
    pub(crate) events: u64,
    pub(crate) vcpus: usize,
    pub(crate) host: Host,
}

/// A recording that is being made.
pub(crate) struct Recorder {
    pub(crate) programs: Programs,
    pub(crate) writer: Writer,
    pub(crate) host: Host,
    /// By the kernel's address of the VM and its process: the address alone may be that of one that ended.
    pub(crate) vms: BTreeMap<(u64, i32), RecordedVm>,
    names: HashMap<u32, Name>,
    events: u64,
    stop: Arc<AtomicBool>,
}

impl Recorder {
    /// Opens the file; from here on a signal ends the recording instead of the process.
    pub(crate) fn open(wish: &Wish, programs: Programs) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
        }
        let writer = Writer::create(&wish.output, wish.bytes)
            .with_context(|| format!("cannot write {}", wish.output.display()))?;
        let host = Host {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read("/proc/sys/kernel/osrelease"),
            arch: std::env::consts::ARCH.to_owned(),
            pcpus: Root::live().cpus_or_none("sys/devices/system/cpu/online").len() as u32,
            began_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            ..Host::default()
        };
        Ok(Self { programs, writer, host, vms: BTreeMap::new(), names: HashMap::new(), events: 0, stop })
    }

    /// Attaches the programs: what happens from now on is recorded.
    pub(crate) fn attach(&mut self) -> anyhow::Result<()> {
        self.programs.attach()?;
        self.host.unseen = self.programs.unseen.clone();
        self.host.clocks = vec![Clock::now()];
        self.host.began_ns = monotonic_ns();
        Ok(())
    }

    /// Records until `wish.time` is over or a signal comes, and finishes the file. `update` is called once a second.
    ///
    /// # Errors
    ///
    /// Whatever fails; what was written until then stays beside the output, and the error says where.
    pub(crate) fn run(
        mut self,
        wish: &Wish,
        update: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Outcome> {
        let part = self.writer.part().display().to_string();
        self.follow(wish.time, update).with_context(|| {
            format!(
                "the recording ended early; what was written until then is in {part}: `entrain report {part}` reads it"
            )
        })?;
        let vcpus = self.vms.values().filter(|vm| vm.chosen).map(|vm| vm.vcpus.len()).sum();
        self.writer
            .finish()
            .with_context(|| format!("cannot finish {}; the recording is in {part}", wish.output.display()))?;
        Ok(Outcome { events: self.events, vcpus, host: self.host })
    }

    fn follow(
        &mut self,
        time: Duration,
        mut update: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let bar = bar(time);
        let began = Instant::now();
        let mut save = began + SAVE;
        while began.elapsed() < time && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(DRAIN.min(time.saturating_sub(began.elapsed())));
            self.drain()?;
            if Instant::now() >= save {
                save = Instant::now() + SAVE;
                update(self)?;
                self.save()?;
            }
            bar.set_position(began.elapsed().as_millis() as u64);
            bar.set_message(format!("{} events, {} dropped", self.events, self.programs.dropped()));
        }
        bar.finish_and_clear();
        self.host.ended_ns = monotonic_ns();
        self.host.clocks.push(Clock::now());
        self.programs.detach();
        self.drain()?;
        self.host.complete = true;
        self.save()
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let batch = self.programs.drain()?;
        self.events += batch.events.len() as u64;
        for event in batch.events {
            self.writer.event(event).context("cannot write the events")?;
        }
        for name in batch.names {
            if self.names.len() < NAMES || self.names.contains_key(&name.0) {
                self.names.insert(name.0, name);
            } else {
                self.host.unnamed += 1;
            }
        }
        Ok(())
    }

    /// Brings the file up to date, so that it can be read whatever happens next.
    fn save(&mut self) -> anyhow::Result<()> {
        if !self.host.complete {
            self.host.ended_ns = monotonic_ns();
        }
        self.host.dropped = self.programs.dropped();
        self.host.overwritten = self.writer.overwritten();
        self.writer.flush().context("cannot write the events")?;
        let vms: Vec<RecordedVm> = self.vms.values().cloned().collect();
        let mut names: Vec<Name> = self.names.values().cloned().collect();
        names.sort_by_key(|name| name.0);
        self.writer.tables(&self.host, vms, names).context("cannot write the tables")?;
        Ok(())
    }
}

fn bar(time: Duration) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("recording {elapsed} {bar:30} {msg}  (Ctrl-C ends it)");
    ProgressBar::new(time.as_millis() as u64).with_style(style.expect("a valid template"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
