//! `entrain record`: follows the chosen VMs and writes what happens.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use entrain_bpf::Features;
use entrain_host::finder::{DaemonTable, Finder, Machine};
use entrain_system::{Root, monotonic_ns};
use indicatif::{ProgressBar, ProgressStyle};

use crate::event::{Event, Kind, flag};
use crate::file::{Clock, Host, Name, RecordedVm, Writer};
use crate::programs::Programs;

/// How often the ring buffer is emptied: its 8 MiB hold 200,000 events.
pub(crate) const DRAIN: Duration = Duration::from_millis(50);
/// How often the file is brought up to date, and VMs are looked for.
pub(crate) const SAVE: Duration = Duration::from_secs(1);
/// Threads whose names are kept.
pub(crate) const NAMES: usize = 26_000;

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

/// Records until the time is over or a signal comes.
pub(crate) fn capture(wish: &Wish) -> anyhow::Result<Outcome> {
    let features = Features::probe();
    if !features.capable {
        bail!("recording needs root's capabilities (SYS_ADMIN, SYS_PTRACE, BPF, PERFMON): run as root");
    }
    if !features.btf {
        bail!("this kernel has no type information: use one built with CONFIG_DEBUG_INFO_BTF");
    }
    if !features.kvm {
        bail!("this machine has no KVM: load its module (kvm_intel or kvm_amd), or boot arm64 at EL2");
    }
    entrain_bpf::quiet();
    let mut finder = Finder::load()?;
    let machines = finder.machines()?;
    check(&machines, &wish.vms)?;
    let tids: Vec<i32> = machines.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.tid).collect();
    let daemon = DaemonTable::find(&tids);
    let programs = Programs::load(daemon.as_ref())?;

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let writer =
        Writer::create(&wish.output, wish.bytes).with_context(|| format!("cannot write {}", wish.output.display()))?;
    let host = Host {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease"),
        arch: std::env::consts::ARCH.to_owned(),
        pcpus: Root::live().cpus_or_none("sys/devices/system/cpu/online").len() as u32,
        began_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        daemon: daemon.is_some(),
        ..Host::default()
    };
    let mut recorder = Recorder {
        finder,
        daemon,
        programs,
        writer,
        host,
        wanted: wish.vms.clone(),
        vms: BTreeMap::new(),
        followed: HashSet::new(),
        names: HashMap::new(),
        events: 0,
    };
    recorder.update(machines)?;
    recorder.programs.attach()?;
    recorder.host.unseen = recorder.programs.unseen.clone();
    recorder.host.clocks = vec![Clock::now()];
    recorder.host.began_ns = monotonic_ns();
    recorder.first_states()?;
    let result = recorder.follow(wish.time, &stop);
    result.with_context(|| {
        format!(
            "the recording ended early; what was written until then is in {part}: `entrain report {part}` reads it",
            part = recorder.writer.part().display()
        )
    })?;
    let part = recorder.writer.part().display().to_string();
    let vcpus = recorder.vms.values().filter(|vm| vm.chosen).map(|vm| vm.vcpus.len()).sum();
    let (events, host) = (recorder.events, recorder.host);
    recorder
        .writer
        .finish()
        .with_context(|| format!("cannot finish {}; the recording is in {part}", wish.output.display()))?;
    Ok(Outcome { events, vcpus, host })
}

/// Every wish must name a VM.
fn check(machines: &[Machine], wanted: &[String]) -> anyhow::Result<()> {
    let known: Vec<String> = machines.iter().map(|vm| format!("{} ({})", vm.name, vm.pid)).collect();
    if machines.is_empty() {
        bail!("no VM runs on this host");
    }
    for wish in wanted {
        if !machines.iter().any(|vm| matches(vm, wish)) {
            bail!("no VM is called {wish} or has this pid; there are: {}", known.join(", "));
        }
    }
    Ok(())
}

fn matches(machine: &Machine, wish: &str) -> bool {
    machine.name == wish || wish.parse() == Ok(machine.pid)
}

struct Recorder {
    finder: Finder,
    daemon: Option<DaemonTable>,
    programs: Programs,
    writer: Writer,
    host: Host,
    wanted: Vec<String>,
    /// By the kernel's address of the VM and its process: the address alone may be that of one that ended.
    vms: BTreeMap<(u64, i32), RecordedVm>,
    followed: HashSet<i32>,
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
                let machines = self.finder.machines()?;
                self.update(machines)?;
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

    /// Follows vCPUs that are new and forgets those that are gone. VMs that have ended stay in the file.
    fn update(&mut self, machines: Vec<Machine>) -> anyhow::Result<()> {
        // Before any of them is followed, so that no event of a vCPU is older than what it begins with.
        let now = monotonic_ns();
        let mut alive = HashSet::new();
        let new = |vcpu: &&entrain_host::finder::MachineVcpu| !self.followed.contains(&vcpu.tid);
        let tids: Vec<i32> = machines.iter().flat_map(|vm| &vm.vcpus).filter(new).map(|vcpu| vcpu.tid).collect();
        let entries = match &self.daemon {
            Some(table) if !tids.is_empty() => table.entries(&tids),
            _ => HashMap::new(),
        };
        for machine in machines {
            let chosen = self.wanted.is_empty() || self.wanted.iter().any(|wish| matches(&machine, wish));
            let vm = self.vms.entry((machine.kvm, machine.pid)).or_default();
            (vm.name, vm.pid, vm.chosen) = (machine.name, machine.pid, chosen);
            let first = machine.vcpus.first().and_then(|vcpu| vcpu.counter);
            vm.counter = first.filter(|_| machine.vcpus.iter().all(|vcpu| vcpu.counter == first));
            for vcpu in machine.vcpus {
                if !vm.vcpus.contains(&(vcpu.id, vcpu.tid as u32)) {
                    vm.vcpus.push((vcpu.id, vcpu.tid as u32));
                }
                alive.insert(vcpu.tid);
                if chosen && !self.followed.contains(&vcpu.tid) {
                    let entry = entries.get(&vcpu.tid).copied();
                    if self.programs.follow(vcpu.tid, vcpu.kvm_vcpu, entry) {
                        self.followed.insert(vcpu.tid);
                        // The states of the first ones are told when all programs are attached.
                        if self.host.began_ns > 0
                            && let Some(state) = first_state(vcpu.tid, now)
                        {
                            self.writer.event(state).context("cannot write the events")?;
                        }
                    } else {
                        tracing::warn!("there are more vCPUs than one recording can follow: the others are left out");
                    }
                }
            }
        }
        // The finder loses a VM as soon as it begins to end; its threads go on until their last switch.
        let gone = |tid: &i32| !alive.contains(tid) && !Path::new(&format!("/proc/{tid}")).exists();
        for tid in self.followed.extract_if(gone) {
            self.programs.forget(tid);
        }
        Ok(())
    }

    fn first_states(&mut self) -> anyhow::Result<()> {
        for state in self.followed.iter().filter_map(|tid| first_state(*tid, self.host.began_ns)) {
            self.writer.event(state)?;
        }
        Ok(())
    }
}

/// What a vCPU is doing now, told as of `ns`: one that does the same all the time makes no event. `None`: it is gone.
fn first_state(tid: i32, ns: u64) -> Option<Event> {
    let text = read(format!("/proc/{tid}/stat"));
    // The name is in parentheses and may hold anything; state is the first field after it, the CPU the 37th.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let runnable = fields.first() == Some(&"R");
    Some(Event {
        ns,
        kind: Kind::State,
        flags: if runnable { flag::RUNNABLE } else { 0 },
        cpu: fields.get(36).and_then(|cpu| cpu.parse().ok()).unwrap_or(0),
        tid: tid as u32,
        other: 0,
        arg: 0,
    })
}

pub(crate) fn bar(time: Duration) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("recording {elapsed} {bar:30} {msg}  (Ctrl-C ends it)");
    ProgressBar::new(time.as_millis() as u64).with_style(style.expect("a valid template"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
