//! The loaded BPF program that slows the CPUs down.

use std::mem::MaybeUninit;

use anyhow::{Context, Result, ensure};
use entrain_bpf::{Error, Step};
use entrain_cpufreq_emulation::{energy, snapshot};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, ProgramInput};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::machine::Cpu;

/// The skeleton that the build script makes of the BPF program.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/slow.skel.rs"));
}

/// How the CPUs are slowed, all in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// One run and the stall after it.
    pub(crate) period_us: u32,
    /// What the timer's interrupt costs the task beside the stall.
    pub(crate) overhead_us: u32,
    /// From a request until the frequency is in force.
    pub(crate) delay_us: u32,
}

/// Nothing is pinned: it ends with the process.
pub(crate) struct Slow {
    skel: skeleton::SlowSkel<'static>,
    _links: Vec<Link>,
}

impl Slow {
    /// Loads the program and starts it on each CPU.
    pub(crate) fn start(cpus: &[Cpu], timing: Timing) -> Result<Self> {
        // The object lives as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = skeleton::SlowSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "slow"))?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the BPF program has no read-only data")?;
        rodata.period_ns = u64::from(timing.period_us) * 1000;
        rodata.delay_ns = u64::from(timing.delay_us) * 1000;
        rodata.overhead_ns = u64::from(timing.overhead_us) * 1000;
        for cpu in cpus {
            let setup = rodata.setup.get_mut(cpu.number as usize).context("more CPUs than the emulation knows")?;
            ensure!(cpu.cluster.points.len() <= setup.khz.len(), "more operating points than the emulation knows");
            setup.points = cpu.cluster.points.len() as u32;
            setup.start = cpu.point();
            for (number, point) in cpu.cluster.points.iter().enumerate() {
                setup.khz[number] = point.khz();
                setup.level[number] = cpu.level(point.khz());
            }
        }
        let skel = open.load().map_err(Error::at(Step::Load, "slow"))?;
        for cpu in cpus {
            start_on(&skel.progs.emulate_start, cpu.number)?;
        }
        let mut links = Vec::new();
        for name in ["emulate_switch", "emulate_frequency"] {
            let prog = skel.object().progs_mut().find(|prog| prog.name() == name);
            let prog = prog.with_context(|| format!("the BPF object has no program {name}"))?;
            links.push(prog.attach().map_err(Error::at(Step::Attach, name))?);
        }
        Ok(Self { skel, _links: links })
    }

    /// The sums so far.
    pub(crate) fn read(&self, cpus: &[Cpu]) -> Result<Vec<snapshot::Cpu>> {
        let bss = self.skel.maps.bss_data.as_deref().context("the BPF program has no data")?;
        let read = |cpu: &Cpu| {
            let sums = &bss.counters[cpu.number as usize];
            let points = cpu.cluster.points.len();
            let khz = cpu.cluster.points[(sums.point as usize).min(points - 1)].khz();
            snapshot::Cpu {
                cpu: cpu.number,
                cluster: cpu.cluster.name.to_owned(),
                capacity: cpu.capacity,
                khz_of_points: cpu.cluster.points.iter().map(|point| point.khz()).collect(),
                khz,
                level: cpu.level(khz),
                busy_ns: sums.busy_ns[..points].to_vec(),
                idle_ns: sums.idle_ns[..points].to_vec(),
                stalled_ns: sums.stalled_ns,
                transitions: sums.transitions,
                energy_uj: energy::energy_uj(cpu.cluster, &sums.busy_ns[..points]),
            }
        };
        Ok(cpus.iter().map(read).collect())
    }
}

/// Runs the program that starts the timer of a CPU, on that CPU.
fn start_on(program: &libbpf_rs::ProgramImpl<'_, libbpf_rs::Mut>, cpu: u32) -> Result<()> {
    let before = sched_getaffinity(None).context("cannot read the CPU affinity")?;
    let mut here = CpuSet::new();
    here.set(cpu as usize);
    sched_setaffinity(None, &here).with_context(|| format!("cannot run on CPU {cpu}"))?;
    let outcome = program.test_run(ProgramInput::default());
    sched_setaffinity(None, &before).context("cannot set the CPU affinity back")?;
    let status = outcome.map_err(Error::at(Step::Run, "emulate_start"))?.return_value;
    ensure!(status == 0, "the timer of CPU {cpu} cannot be started (status {})", status as i32);
    Ok(())
}
