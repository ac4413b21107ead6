//! The guest's sched_ext scheduler: loads it over the agent's pages and tells how it fares.
//!
//! The scheduler works from [`Scheduler::attach`] to [`Scheduler::detach`], or as long as the value lives. When the process
//! ends, however it ends, the kernel takes the scheduler down and all tasks are back on EEVDF.

mod companion;
pub(crate) mod shown;
mod standby;
mod stats;

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use entrain_bpf::copy_of;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use crate::error::{GuestError, Result};
pub use companion::Schedule;
pub(crate) use standby::CALM_S;
pub(crate) use stats::Stats;

mod skel {
    #![allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::undocumented_unsafe_blocks)]
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}

/// `SCX_ECODE_ACT_RESTART`: the scheduler was left because the CPUs changed, and wants to be loaded again.
const RESTART: i64 = 1 << 48;

/// `SCX_EXIT_UNREG` of `enum scx_exit_kind`: nothing below it is an end.
const ENDED: i64 = 64;

/// Possible CPUs that it serves: `GUEST_MAX_CPUS` of `bpf/sched/tunables.h`.
pub(crate) const MAX_CPUS: usize = 1024;

/// How the scheduler is to work.
#[derive(Clone, Debug)]
pub struct Options {
    /// Last-level cache of each possible CPU, numbered from 0; 1..=[`MAX_CPUS`] of them.
    pub llc_of: Vec<u32>,
    /// Those that are online; a scheduler that sees others come must be loaded anew.
    pub online: Vec<u32>,
    /// Whether it parks vCPUs for which the host has no CPU.
    pub vcpud: bool,
}

/// Why the kernel took the scheduler down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The kernel's words, and its message.
    pub reason: String,
    /// CPUs came or went: load it again.
    pub restart: bool,
}

/// The loaded scheduler.
pub struct Scheduler<'object> {
    skel: skel::SchedSkel<'object>,
    // Dropped before the skeleton: the programs stop before their maps go.
    link: Option<Link>,
    /// CPUs that may ever be there.
    possible: usize,
}

impl<'object> Scheduler<'object> {
    /// Loads the scheduler over `pages` (the agent's map, an element per vCPU); nothing runs on it yet.
    ///
    /// # Errors
    /// When the kernel refuses its programs: no sched_ext or an older one, rights are missing.
    pub fn load(
        object: &'object mut MaybeUninit<OpenObject>,
        pages: BorrowedFd<'_>,
        options: &Options,
    ) -> Result<Scheduler<'object>> {
        let mut open = skel::SchedSkelBuilder::default()
            .open(object)
            .map_err(GuestError::bpf("the scheduler's programs could not be read"))?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has constants");
        let possible = options.llc_of.len().clamp(1, MAX_CPUS) as u32;
        rodata.nr_vcpus = possible;
        rodata.nr_words = possible.div_ceil(64);
        rodata.nr_llcs = options.llc_of.iter().max().map_or(1, |last| last + 1);
        rodata.nr_online = options.online.len() as u32;
        rodata.use_vcpud = options.vcpud;
        let bss = open.maps.bss_data.as_deref_mut().expect("the object has variables");
        for ((number, llc), vcpu) in (0..).zip(&options.llc_of).zip(&mut bss.vcpus) {
            vcpu.offline = u64::from(!options.online.contains(&number));
            vcpu.llc = u64::from(*llc);
        }
        open.maps
            .entrain_pages
            .reuse_fd(pages)
            .map_err(GuestError::bpf("the agent's pages do not suit the scheduler"))?;
        let skel = open.load().map_err(GuestError::bpf("the kernel refused the scheduler's programs"))?;
        Ok(Scheduler { skel, link: None, possible: possible as usize })
    }

    /// Puts all ordinary tasks on it.
    ///
    /// # Errors
    /// When the kernel does not take it: another scheduler is loaded.
    pub fn attach(&mut self) -> Result<()> {
        let taken = self.skel.maps.guest_ops.attach_struct_ops();
        self.link =
            Some(taken.map_err(GuestError::bpf("the kernel did not take the scheduler; is another one loaded?"))?);
        Ok(())
    }

    /// Whether tasks run on it, as far as this side knows: [`Scheduler::exit`] tells when the kernel took it down.
    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// Why the kernel has taken the scheduler down; `None` while it runs, and while it is detached.
    pub fn exit(&self) -> Option<Exit> {
        if !self.is_attached() {
            return None;
        }
        let bss = self.skel.maps.bss_data.as_deref().expect("the object has variables");
        if copy_of(&bss.exit_kind) < ENDED {
            return None;
        }
        let mut reason = text(&bss.exit_reason);
        let message = text(&bss.exit_message);
        if !message.is_empty() {
            reason = format!("{reason}: {message}");
        }
        Some(Exit { reason, restart: bss.exit_code & RESTART != 0 })
    }

    /// Counters since it was loaded, and what it sees now.
    pub(crate) fn stats(&self) -> Stats {
        let bss = self.skel.maps.bss_data.as_deref().expect("the object has variables");
        let vcpus = bss.vcpus.iter().take(self.possible);
        Stats {
            attached: self.is_attached(),
            counters: vcpus.fold(copy_of(&bss.stats), |sum, vcpu| stats::add(sum, copy_of(&vcpu.stats))),
            entitlement: u64::try_from(copy_of(&bss.entitlement)).ok(),
            host_alive: copy_of(&bss.host_features) != 0,
        }
    }

    /// Takes the scheduler down: all tasks are back on EEVDF when this returns. It can be attached again.
    pub fn detach(&mut self) {
        self.link = None;
    }
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        self.detach();
    }
}

/// A C string in a fixed array.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_its_zero() {
        assert_eq!(text(b"ab\0c"), "ab");
        assert_eq!(text(&[]), "");
    }
}
