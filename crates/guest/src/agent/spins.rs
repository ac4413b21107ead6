//! Has the host told which vCPUs spin for a sleeping lock, for as long as the pages are offered.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::OpenObject;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::error::GuestError;
use crate::pages::Pages;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/spins.skel.rs"));
}
use skeleton::{SpinsSkel, SpinsSkelBuilder};

/// The programs at work.
pub(super) struct Spins {
    _skel: SpinsSkel<'static>,
}

impl Spins {
    /// Attaches the programs; `None` on kernels where that cannot be done or is of no use (PREEMPT_RT: nobody spins so).
    pub(super) fn start(pages: &Pages) -> Option<Self> {
        load(pages)
            .map_err(GuestError::bpf("the host will not be told who spins for a mutex"))
            .inspect_err(|error| tracing::info!("{}", error.with_source()))
            .ok()
            .map(|skel| Self { _skel: skel })
    }

    /// Detaches them. Whoever spins now is said to spin no more.
    pub(super) fn end(self, pages: &Pages) {
        drop(self);
        for page in pages.iter() {
            page.guest.spins_for.store(0, Relaxed);
        }
    }
}

fn load(pages: &Pages) -> libbpf_rs::Result<SpinsSkel<'static>> {
    // One object for the life of the process.
    let object = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
    let mut open = SpinsSkelBuilder::default().open(object)?;
    open.maps.entrain_pages.reuse_fd(pages.fd().as_fd())?;
    // Functions of one file each, which a compiler may have inlined: without them the host is not told for whom.
    let btf = Btf::from_vmlinux()?;
    let has = |name| btf.type_by_name::<Func<'_>>(name).is_some();
    let (mutex, rwsem) = (has("mutex_spin_on_owner"), has("rwsem_spin_on_owner"));
    open.progs.mutex_spin_begins.set_autoload(mutex);
    open.progs.mutex_spin_ends.set_autoload(mutex);
    open.progs.rwsem_spin_begins.set_autoload(rwsem);
    let mut skel = open.load()?;
    skel.attach()?;
    Ok(skel)
}
