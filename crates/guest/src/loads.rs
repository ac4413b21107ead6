//! `entrain guest --mode register --loads`: tells the host what each vCPU needs, beside the guest's own scheduler.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use entrain_channel::page::feature;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::agent::Companion;
use crate::error::{GuestError, Result};
use crate::pages::Pages;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/loads.skel.rs"));
}
use skeleton::{LoadsSkel, LoadsSkelBuilder};

/// The programs, at work between start and stop.
#[derive(Default)]
pub struct Loads {
    skel: Option<LoadsSkel<'static>>,
}

impl Companion for Loads {
    fn features(&self) -> u64 {
        feature::GUEST_WORDS
    }

    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// On kernels before 5.18, or without BTF.
    fn start(&mut self, pages: &Pages) -> Result<()> {
        let what = "this kernel lets no BPF program follow its loads; go without --loads";
        self.skel = Some(load(pages).map_err(GuestError::bpf(what))?);
        Ok(())
    }

    fn stop(&mut self) {
        self.skel = None;
    }
}

fn load(pages: &Pages) -> libbpf_rs::Result<LoadsSkel<'static>> {
    // One object for the life of the process.
    let object = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
    let mut open = LoadsSkelBuilder::default().open(object)?;
    open.maps.entrain_pages.reuse_fd(pages.fd().as_fd())?;
    open.maps.vcpu_loads.set_max_entries(pages.count() as u32)?;
    let mut skel = open.load()?;
    skel.attach()?;
    Ok(skel)
}
