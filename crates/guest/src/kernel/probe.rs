//! The BPF programs that look into the running kernel, loaded for as long as the registration is made.

use std::mem::MaybeUninit;

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::error::{GuestError, Result};
use crate::program;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/register.skel.rs"));
}
pub(super) use skeleton::types::{entrain_depth as Depth, entrain_survey as Survey};
use skeleton::{RegisterSkel, RegisterSkelBuilder, types::entrain_peek};

/// The loaded programs.
pub(super) struct Probe<'object> {
    skel: RegisterSkel<'object>,
}

impl<'object> Probe<'object> {
    pub(super) fn load(object: &'object mut MaybeUninit<OpenObject>) -> Result<Self> {
        let skel = RegisterSkelBuilder::default().open(object).and_then(OpenSkel::load).map_err(GuestError::bpf(
            "the kernel does not tell BPF where its variables are (a kernel without CONFIG_KALLSYMS_ALL does not)",
        ))?;
        Ok(Self { skel })
    }

    /// Where the kernel keeps what it keeps of a CPU.
    pub(super) fn survey(&self, cpu: u32) -> Result<Survey> {
        program::run(&self.skel.progs.survey, Survey { cpu, ..Survey::default() })
    }

    /// A word of kernel memory.
    pub(super) fn peek(&self, address: u64) -> Result<u64> {
        let seen = program::run(&self.skel.progs.peek, entrain_peek { address, ..entrain_peek::default() })?;
        match seen.error {
            0 => Ok(seen.value),
            error => {
                Err(GuestError::SelfCheck(format!("kernel memory at {address:#x} could not be read (error {error})")))
            }
        }
    }

    /// Reads this CPU's preempt count outside and inside of some levels: at `address`, or for 0 at `offset` in the task.
    pub(super) fn depth(&self, address: u64, offset: u32) -> Result<Depth> {
        program::run(&self.skel.progs.depth, Depth { address, offset, ..Depth::default() })
    }
}
