//! `entrain record` in a guest: every switch of every CPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use entrain_bpf::Features;
use entrain_system::{Root, monotonic_ns};

use crate::capture::{DRAIN, NAMES, Outcome, SAVE, Wish, bar, read};
use crate::file::{Clock, Host, Name, Writer};
use crate::programs::Programs;

/// Records until the time is over or a signal comes.
pub(crate) fn capture(wish: &Wish) -> anyhow::Result<Outcome> {
    let features = Features::probe();
    if !features.capable {
        bail!("recording needs root's capabilities (SYS_ADMIN, BPF, PERFMON): run as root");
    }
    if !features.btf {
        bail!("this kernel has no type information: use one built with CONFIG_DEBUG_INFO_BTF");
    }
    entrain_bpf::quiet();
    let programs = Programs::load_guest()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let writer =
        Writer::create(&wish.output, wish.bytes).with_context(|| format!("cannot write {}", wish.output.display()))?;
    let cpus = Root::live().cpus_or_none("sys/devices/system/cpu/online").len();
    let host = Host {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease"),
        arch: std::env::consts::ARCH.to_owned(),
        pcpus: cpus as u32,
        began_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        guest: true,
        ..Host::default()
    };
    let mut recorder = Recorder { programs, writer, host, names: HashMap::new(), events: 0 };
    recorder.programs.attach()?;
    recorder.host.clocks = vec![Clock::now()];
    recorder.host.began_ns = monotonic_ns();
    recorder.follow(wish.time, &stop).with_context(|| {
        let part = recorder.writer.part().display();
        format!("the recording ended early; what was written until then is in {part}")
    })?;
    let (events, host) = (recorder.events, recorder.host);
    recorder.writer.finish().with_context(|| format!("cannot finish {}", wish.output.display()))?;
    Ok(Outcome { events, vcpus: cpus, host })
}

struct Recorder {
    programs: Programs,
    writer: Writer,
    host: Host,
    names: HashMap<u32, Name>,
    events: u64,
}

impl Recorder {
    fn follow(&mut self, time: Duration, stop: &AtomicBool) -> anyhow::Result<()> {
        let bar = bar(time);
        let began = Instant::now();
        let mut save = began + SAVE;
        while began.elapsed() < time && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(DRAIN.min(time.saturating_sub(began.elapsed())));
            self.drain()?;
            if Instant::now() >= save {
                save = Instant::now() + SAVE;
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
        for event in batch.events {
            self.events += 1;
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
        let mut names: Vec<Name> = self.names.values().cloned().collect();
        names.sort_by_key(|name| name.0);
        self.writer.tables(&self.host, Vec::new(), names).context("cannot write the tables")?;
        Ok(())
    }
}
