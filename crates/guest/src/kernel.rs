//! Finds where this kernel keeps its preempt count and its run queues' load, as guest-physical addresses.
//!
//! Sources: BTF for types and offsets, kernel symbols for variables. Nothing is believed before it has passed its check:
//! the linear map by reading a known page through it, the preempt count by watching it rise.

use std::mem::MaybeUninit;

use entrain_channel::page::{HeaderValues, PAGE_SIZE, PreemptLayout, feature};
use libbpf_rs::btf::types::{Int, Var};
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ProgramInput, ProgramMut};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{GuestError, Result};
use crate::system::System;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/register.skel.rs"));
}
use skeleton::{RegisterSkel, RegisterSkelBuilder};

/// `struct entrain_survey` of bpf/register.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    cpu: u32,
    preempt_offset: u32,
    preempt_count: u64,
    util: u64,
    nr_running: u64,
    apicid: u64,
    page_offset_base: u64,
    memstart_addr: u64,
    cpu_logical_map: u64,
}

/// `struct entrain_peek`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Peek {
    address: u64,
    value: u64,
    error: i64,
}

/// `struct entrain_depth`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Depth {
    address: u64,
    offset: u32,
    known: u32,
    outside: u32,
    inside: u32,
    error: i64,
}

/// `ENTRAIN_DEPTH`.
const DEPTH: u32 = 3;

/// The linear map: `size` bytes from virtual address `base` map the RAM from guest-physical address `gpa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Linear {
    base: u64,
    size: u64,
    gpa: u64,
}

impl Linear {
    fn gpa_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base).filter(|&offset| offset < self.size)?;
        Some(self.gpa + offset)
    }

    fn address_of(&self, gpa: u64) -> Option<u64> {
        gpa.checked_sub(self.gpa).filter(|&offset| offset < self.size).map(|offset| self.base + offset)
    }
}

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
            let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            tracing::warn!("{error}{why}");
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
        let mut storage = MaybeUninit::uninit();
        let skel =
            RegisterSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load).map_err(GuestError::bpf(
                "the kernel does not tell BPF where its variables are (a kernel without CONFIG_KALLSYMS_ALL does not)",
            ))?;
        let surveys = (0..count as u32)
            .map(|cpu| run(&skel.progs.survey, Survey { cpu, ..Survey::default() }))
            .collect::<Result<Vec<_>>>()?;
        let btf = Btf::from_vmlinux().map_err(GuestError::bpf("the kernel's BTF could not be read"))?;
        let layout = layout(&Types::of(&btf), &surveys[0])?;
        let linear = linear_map(&skel, &surveys[0], ram_end, known)?;
        let kernel = Self {
            linear,
            layout,
            preempt_offset: if matches!(layout, PreemptLayout::Task32 | PreemptLayout::Task64) {
                surveys[0].preempt_offset
            } else {
                0
            },
            cpus: cpus(&skel, &Types::of(&btf), &surveys, &linear, layout)?,
        };
        kernel.check_depth(&skel, &surveys, &system.online_cpus()?)?;
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

    /// On each CPU that is online, the count must rise by as many levels as are entered.
    fn check_depth(&self, skel: &RegisterSkel<'_>, surveys: &[Survey], online: &[u32]) -> Result<()> {
        let before = sched_getaffinity(None).map_err(GuestError::system("sched_getaffinity"))?;
        let checked = online.iter().filter(|&&cpu| (cpu as usize) < surveys.len()).try_for_each(|&cpu| {
            let mut set = CpuSet::new();
            set.set(cpu as usize);
            // It may have gone offline since.
            if sched_setaffinity(None, &set).is_err() {
                return Ok(());
            }
            let address = surveys[cpu as usize].preempt_count;
            let seen = run(&skel.progs.depth, Depth { address, offset: self.preempt_offset, ..Depth::default() })?;
            depth_is_right(cpu, &seen)
        });
        sched_setaffinity(None, &before).map_err(GuestError::system("sched_setaffinity"))?;
        checked
    }
}

fn depth_is_right(cpu: u32, seen: &Depth) -> Result<()> {
    let levels = (seen.inside & 0xff).wrapping_sub(seen.outside & 0xff);
    if seen.known == 0 || (seen.error == 0 && levels == DEPTH) {
        return Ok(());
    }
    Err(GuestError::SelfCheck(format!(
        "the preempt count of CPU {cpu} went from {:#x} to {:#x} in {DEPTH} levels of preempt_disable (read error {})",
        seen.outside, seen.inside, seen.error
    )))
}

/// The sizes that decide which layout it is, from BTF.
struct Types {
    preempt_count: Option<usize>,
    hot_count: bool,
    irq_disable_state: bool,
    apicid: Option<usize>,
}

impl Types {
    fn of(btf: &Btf<'_>) -> Self {
        let variable = |name: &str| {
            let int: Int<'_> =
                btf.type_by_name::<Var<'_>>(name)?.next_type()?.skip_mods_and_typedefs().try_into().ok()?;
            Some(int.bits as usize / 8)
        };
        let hot_count = btf.type_by_name::<Var<'_>>("pcpu_hot").is_some()
            && btf.type_by_name::<libbpf_rs::btf::types::Struct<'_>>("pcpu_hot").is_some_and(|hot| hot.size() >= 12);
        Self {
            preempt_count: variable("__preempt_count"),
            hot_count,
            irq_disable_state: btf.type_by_name::<Var<'_>>("local_interrupt_disable_state").is_some(),
            apicid: variable("x86_cpu_to_apicid"),
        }
    }
}

/// Decides the layout of the preempt count. Since 7.x (with local_interrupt_disable_state) the hardirq bits have moved;
/// on 64-bit x86 the count became 64 bits wide in the same change.
fn layout(types: &Types, survey: &Survey) -> Result<PreemptLayout> {
    let found = format!(
        "__preempt_count of {:?} bytes, pcpu_hot: {}, thread_info.preempt_count at {:?}, local_interrupt_disable_state: {}",
        types.preempt_count,
        types.hot_count,
        (survey.preempt_offset != u32::MAX).then_some(survey.preempt_offset),
        types.irq_disable_state
    );
    match (survey.preempt_offset, types.preempt_count, types.hot_count, types.irq_disable_state) {
        (u32::MAX, Some(8), false, true) => Ok(PreemptLayout::PerCpu64),
        (u32::MAX, Some(4), false, false) => Ok(PreemptLayout::PerCpu32),
        (u32::MAX, None, true, false) => Ok(PreemptLayout::PerCpu32),
        (offset, None, false, true) if offset != u32::MAX => Ok(PreemptLayout::Task64),
        (offset, None, false, false) if offset != u32::MAX => Ok(PreemptLayout::Task32),
        _ => Err(GuestError::UnknownLayout(found, "preempt count")),
    }
}

/// Finds the linear map and reads the known page through it.
fn linear_map(skel: &RegisterSkel<'_>, survey: &Survey, ram_end: u64, known: Known) -> Result<Linear> {
    let candidates = if survey.memstart_addr != 0 {
        let start = peek(skel, survey.memstart_addr)?;
        // PAGE_OFFSET is -(1 << VA_BITS) of the configuration, which is not told: 48 and 52 are usual, the others possible.
        [48, 52, 47, 42, 39, 36].map(|bits| arm_linear(bits, start)).to_vec()
    } else if survey.page_offset_base != 0 {
        vec![(peek(skel, survey.page_offset_base)?, 0)]
    } else {
        // x86 without CONFIG_DYNAMIC_MEMORY_LAYOUT: with four or five levels of page tables (arch/x86/mm/kaslr.c).
        vec![(0xffff_8880_0000_0000, 0), (0xff11_0000_0000_0000, 0)]
    };
    let page = PAGE_SIZE as u64;
    for (base, gpa) in candidates.iter().copied() {
        let Some(size) = ram_end.checked_sub(gpa).filter(|&size| size > 0 && base.checked_add(size - 1).is_some())
        else {
            continue;
        };
        let linear = Linear { base, size, gpa };
        if (base | gpa) % page == 0
            && linear.address_of(known.gpa).is_some_and(|alias| peek(skel, alias).is_ok_and(|seen| seen == known.value))
        {
            return Ok(linear);
        }
    }
    Err(GuestError::UnknownLayout(
        format!("a known page at {:#x} was not found through a linear map at any of {candidates:x?}", known.gpa),
        "memory",
    ))
}

/// arm64 maps memstart_addr at PAGE_OFFSET. With 52-bit addresses configured on a CPU without, memstart_addr is below 0,
/// and only the upper part of that range exists: the result starts at address 0 then.
fn arm_linear(bits: u32, start: u64) -> (u64, u64) {
    let base = (1_u64 << bits).wrapping_neg();
    if start > i64::MAX as u64 { (base.wrapping_add(start.wrapping_neg()), 0) } else { (base, start) }
}

fn cpus(
    skel: &RegisterSkel<'_>,
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
                hwid: hwid(skel, types, survey)?,
                preempt_gpa: if per_cpu { place("a preempt count", survey.preempt_count)? } else { 0 },
                load,
            })
        })
        .collect()
}

/// KVM's vcpu_id of a CPU, where the kernel knows it (it does not for CPUs that were never plugged in).
fn hwid(skel: &RegisterSkel<'_>, types: &Types, survey: &Survey) -> Result<Option<u32>> {
    if survey.cpu_logical_map != 0 {
        // KVM on arm64 makes MPIDR from vcpu_id: 4 bits Aff0, 8 bits Aff1, 8 bits Aff2 (reset_mpidr); this is its inverse.
        let mpidr = peek(skel, survey.cpu_logical_map + 8 * u64::from(survey.cpu))?;
        return Ok((mpidr != u64::MAX).then(|| vcpu_id_of_mpidr(mpidr)));
    }
    match (survey.apicid, types.apicid) {
        (0, _) => Ok(None),
        (address, Some(2)) => Ok(Some(peek(skel, address)? as u32 & 0xffff).filter(|&id| id != 0xffff)),
        (address, Some(4)) => Ok(Some(peek(skel, address)? as u32).filter(|&id| id != u32::MAX)),
        _ => Ok(None),
    }
}

fn vcpu_id_of_mpidr(mpidr: u64) -> u32 {
    (mpidr & 0xf | (mpidr >> 8 & 0xff) << 4 | (mpidr >> 16 & 0xff) << 12) as u32
}

fn peek(skel: &RegisterSkel<'_>, address: u64) -> Result<u64> {
    let seen = run(&skel.progs.peek, Peek { address, ..Peek::default() })?;
    match seen.error {
        0 => Ok(seen.value),
        error => Err(GuestError::SelfCheck(format!("kernel memory at {address:#x} could not be read (error {error})"))),
    }
}

/// Runs a program of type syscall with its context, and returns the context as the program left it.
pub(crate) fn run<T: Copy>(program: &ProgramMut<'_>, mut context: T) -> Result<T> {
    // SAFETY: T is a repr(C) struct of integers without padding; any bytes are a value of it.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut context).cast::<u8>(), size_of::<T>()) };
    let input = ProgramInput { context_in: Some(bytes), ..ProgramInput::default() };
    program.test_run(input).map_err(GuestError::bpf("a BPF program could not be run"))?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(preempt_count: Option<usize>, hot_count: bool, irq_disable_state: bool) -> Types {
        Types { preempt_count, hot_count, irq_disable_state, apicid: None }
    }

    fn at(offset: u32) -> Survey {
        Survey { preempt_offset: offset, ..Survey::default() }
    }

    #[test]
    fn known_layouts_are_told_apart_and_others_refused() {
        let x86 = at(u32::MAX);
        let known = |types: Types, survey: &Survey| layout(&types, survey).expect("known");
        assert_eq!(known(types(Some(8), false, true), &x86), PreemptLayout::PerCpu64);
        assert_eq!(known(types(Some(4), false, false), &x86), PreemptLayout::PerCpu32);
        assert_eq!(known(types(None, true, false), &x86), PreemptLayout::PerCpu32);
        assert_eq!(known(types(None, false, true), &at(16)), PreemptLayout::Task64);
        assert_eq!(known(types(None, false, false), &at(16)), PreemptLayout::Task32);
        for unknown in [
            types(Some(8), false, false),
            types(Some(4), false, true),
            types(Some(2), false, false),
            types(None, false, false),
        ] {
            let error = layout(&unknown, &x86).expect_err("unknown").to_string();
            assert!(error.contains("__preempt_count of"), "{error}");
        }
    }

    #[test]
    fn a_negative_start_of_memory_becomes_a_later_base() {
        assert_eq!(arm_linear(48, 0x4000_0000), (0xffff_0000_0000_0000, 0x4000_0000));
        // 52 bits configured, 48 in hardware: memstart_addr -= 2^52 - 2^48.
        let start = 0x4000_0000_u64.wrapping_sub((1 << 52) - (1 << 48));
        let (base, gpa) = arm_linear(52, start);
        let linear = Linear { base, size: 1 << 40, gpa };
        assert_eq!(linear.gpa_of(0xffff_0000_0000_0000), Some(0x4000_0000));
        assert_eq!(linear.address_of(0x4000_1000), Some(0xffff_0000_0000_1000));
    }

    #[test]
    fn vcpu_ids_come_back_from_mpidr() {
        for id in [0_u64, 1, 15, 16, 255, 4095, 4096, 70_000] {
            let mpidr = (id & 0xf) | (id >> 4 & 0xff) << 8 | (id >> 12 & 0xff) << 16 | 1 << 31;
            assert_eq!(u64::from(vcpu_id_of_mpidr(mpidr)), id);
        }
    }

    #[test]
    fn a_count_that_does_not_rise_is_noticed() {
        let seen = Depth { known: 1, outside: 1, inside: 4, ..Depth::default() };
        depth_is_right(0, &seen).expect("3 levels");
        depth_is_right(0, &Depth { known: 0, ..seen }).expect("can't be checked");
        assert!(depth_is_right(0, &Depth { inside: 1, ..seen }).is_err());
        assert!(depth_is_right(0, &Depth { error: -14, ..seen }).is_err());
    }
}
