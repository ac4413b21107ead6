//! Finds where this kernel keeps its preempt count and its run queues' load, as guest-physical addresses.
//!
//! Sources: BTF for types and offsets, kernel symbols for variables. Nothing is believed before it has passed its check:
//! the linear map by reading a known page through it, the preempt count by watching it rise.

mod depth;
mod layout;
mod linear;
mod probe;
mod vcpu_id;

use std::mem::MaybeUninit;

use entrain_channel::page::{HeaderValues, PreemptLayout, feature};
use libbpf_rs::btf::Btf;

use crate::error::{GuestError, Result};
use crate::system::System;
use layout::{Types, layout};
use linear::Linear;
use probe::{Probe, Survey};

/// Where one CPU's variables are.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    hwid: Option<u32>,
    preempt_gpa: u64,
    /// Utilisation, count of runnable tasks.
    load: Option<(u64, u64)>,
}

/// What the registration says of this kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    linear: Linear,
    layout: PreemptLayout,
    preempt_offset: u32,
    cpus: Vec<Cpu>,
}

/// A page of RAM whose content and address are known, for the check of the linear map.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Guest-physical address of a word.
    pub gpa: u64,
    /// What it holds.
    pub value: u64,
}

impl Kernel {
    /// Looks at the running kernel, for CPUs 0 to `count` - 1. A kernel whose variables can't be found, or are not as this
    /// program knows them, registers none, and why is said: the host's words serve such a guest all the same.
    pub fn survey(system: &System, count: usize, known: Known) -> Self {
        Self::find(system, count, known).unwrap_or_else(|error| {
            tracing::warn!("{}", error.with_source());
            tracing::warn!("the pages are offered without preempt count and load");
            Self {
                linear: Linear { base: 0, size: 0, gpa: 0 },
                layout: PreemptLayout::None,
                preempt_offset: 0,
                cpus: vec![Cpu::default(); count],
            }
        })
    }

    fn find(system: &System, count: usize, known: Known) -> Result<Self> {
        let ram_end = system.ram_end()?;
        let mut object = MaybeUninit::uninit();
        let probe = Probe::load(&mut object)?;
        let surveys = (0..count as u32).map(|cpu| probe.survey(cpu)).collect::<Result<Vec<_>>>()?;
        let btf = Btf::from_vmlinux().map_err(GuestError::bpf("the kernel's BTF could not be read"))?;
        let types = Types::of(&btf);
        let layout = layout(&types, &surveys[0])?;
        let linear = linear::find(&probe, &surveys[0], ram_end, known)?;
        let kernel = Self {
            linear,
            layout,
            preempt_offset: if matches!(layout, PreemptLayout::Task32 | PreemptLayout::Task64) {
                surveys[0].preempt_offset
            } else {
                0
            },
            cpus: cpus(&probe, &types, &surveys, &linear, layout)?,
        };
        depth::check(&probe, kernel.preempt_offset, &surveys, &system.online_cpus()?)?;
        Ok(kernel)
    }

    /// The features that this kernel's registration offers.
    fn features(&self, vcpu: usize) -> u64 {
        let load = if self.cpus[vcpu].load.is_some() { feature::RQ_LOAD } else { 0 };
        load | if self.layout == PreemptLayout::None { 0 } else { feature::PREEMPT_COUNT }
    }

    /// Fills in what the header of a vCPU's page says about the kernel.
    pub fn fill(&self, vcpu: usize, header: &mut HeaderValues) {
        let cpu = &self.cpus[vcpu];
        header.features |= self.features(vcpu);
        header.vcpu_hwid = cpu.hwid.unwrap_or(u32::MAX);
        header.preempt_layout = self.layout as u32;
        header.preempt_offset = self.preempt_offset;
        header.preempt_gpa = cpu.preempt_gpa;
        if matches!(self.layout, PreemptLayout::Task32 | PreemptLayout::Task64) {
            header.linear_base = self.linear.base;
            header.linear_size = self.linear.size;
            header.linear_gpa = self.linear.gpa;
        }
        (header.util_gpa, header.nr_running_gpa) = cpu.load.unwrap_or_default();
    }

    /// One line for the log.
    pub fn describe(&self) -> String {
        let loads = self.cpus.iter().filter(|cpu| cpu.load.is_some()).count();
        format!(
            "{} CPUs, preempt count {:?}, run-queue load of {loads}, linear map {:#x} -> {:#x}",
            self.cpus.len(),
            self.layout,
            self.linear.base,
            self.linear.gpa
        )
    }
}

/// Where the variables of each CPU are.
fn cpus(
    probe: &Probe<'_>,
    types: &Types,
    surveys: &[Survey],
    linear: &Linear,
    layout: PreemptLayout,
) -> Result<Vec<Cpu>> {
    let per_cpu = matches!(layout, PreemptLayout::PerCpu32 | PreemptLayout::PerCpu64);
    let place = |what, address: u64| {
        linear.gpa_of(address).ok_or_else(|| {
            // percpu_alloc=page puts per-CPU variables outside the linear map.
            GuestError::UnknownLayout(format!("{what} at {address:#x}, outside the linear map"), "per-CPU variables")
        })
    };
    surveys
        .iter()
        .map(|survey| {
            let load = match survey.util {
                0 => None,
                util => Some((place("a run queue", util)?, place("a run queue", survey.nr_running)?)),
            };
            Ok(Cpu {
                hwid: vcpu_id::of(probe, types, survey)?,
                preempt_gpa: if per_cpu { place("a preempt count", survey.preempt_count)? } else { 0 },
                load,
            })
        })
        .collect()
}
