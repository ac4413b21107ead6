//! `entrain record` on a host: follows the chosen VMs.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, bail};
use entrain_bpf::Features;
use entrain_host::finder::{DaemonTable, Finder, Machine};
use entrain_system::monotonic_ns;

use crate::event::{Event, Kind, flag};
use crate::programs::Programs;
use crate::recorder::{Outcome, Recorder, Wish, read};

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
    let mut recorder = Recorder::open(wish, Programs::load(daemon.as_ref())?)?;
    recorder.host.daemon = daemon.is_some();
    let mut chosen = Chosen { finder, daemon, wanted: wish.vms.clone(), followed: HashSet::new() };
    chosen.update(&mut recorder, machines)?;
    recorder.attach()?;
    chosen.first_states(&mut recorder)?;
    recorder.run(wish, |recorder| {
        let machines = chosen.finder.machines()?;
        chosen.update(recorder, machines)
    })
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

/// The VMs that are wanted, and the vCPUs of them that are followed.
struct Chosen {
    finder: Finder,
    daemon: Option<DaemonTable>,
    wanted: Vec<String>,
    followed: HashSet<i32>,
}

impl Chosen {
    /// Follows vCPUs that are new and forgets those that are gone. VMs that have ended stay in the file.
    fn update(&mut self, recorder: &mut Recorder, machines: Vec<Machine>) -> anyhow::Result<()> {
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
            let vm = recorder.vms.entry((machine.kvm, machine.pid)).or_default();
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
                    if recorder.programs.follow(vcpu.tid, vcpu.kvm_vcpu, entry) {
                        self.followed.insert(vcpu.tid);
                        // The states of the first ones are told when all programs are attached.
                        if recorder.host.began_ns > 0
                            && let Some(state) = first_state(vcpu.tid, now)
                        {
                            recorder.writer.event(state).context("cannot write the events")?;
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
            recorder.programs.forget(tid);
        }
        Ok(())
    }

    fn first_states(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        for state in self.followed.iter().filter_map(|tid| first_state(*tid, recorder.host.began_ns)) {
            recorder.writer.event(state)?;
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
