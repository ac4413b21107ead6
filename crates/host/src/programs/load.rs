//! From the objects to loaded programs and their tables.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use entrain_bpf::{ArrayView, Error, Features, Step};
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::interface::{HOST_VCPUS, HOST_VMS, Pcpu, Vcpu, Vm};
use crate::skeleton::{observe, watch};

/// Memory for an open object. It lives as long as the process, as the object does.
fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

/// An error of the system with a program that is loaded.
pub(super) fn io(name: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::at(Step::Run, name)(libbpf_rs::Error::from(error))
}

/// The tables `vcpus`, `vms` and `pcpus`.
pub(super) type Views = (ArrayView<Vcpu>, ArrayView<Vm>, ArrayView<Pcpu>);

pub(super) fn views([vcpus, vms, table]: [BorrowedFd<'_>; 3], pcpus: u32) -> Result<Views, Error> {
    let view = |error: rustix::io::Errno| io("observe")(error.into());
    // SAFETY: the types are the skeleton's of the values of these maps, which are plain numbers; both objects have them of
    // the same header.
    unsafe {
        Ok((
            ArrayView::new(vcpus, HOST_VCPUS).map_err(view)?,
            ArrayView::new(vms, HOST_VMS).map_err(view)?,
            ArrayView::new(table, pcpus as usize).map_err(view)?,
        ))
    }
}

pub(super) fn page(features: &Features, pcpus: u32, extra: u64) -> Result<observe::ObserveSkel<'static>, Error> {
    let mut open = observe::ObserveSkelBuilder::default().open(storage()).map_err(Error::at(Step::Open, "observe"))?;
    open.progs.observe_hypercall.set_autoload(features.kvm_hypercall);
    open.progs.observe_wfx.set_autoload(features.kvm_wfx);
    open.progs.levels.set_autoload(features.freq_scale);
    open.progs.observe_frequency.set_autoload(features.freq_scale && features.cpu_frequency);
    open.maps.pcpus.set_max_entries(pcpus).map_err(Error::at(Step::Open, "observe"))?;
    open.maps.domains.set_max_entries(pcpus).map_err(Error::at(Step::Open, "observe"))?;
    open.maps.rodata_data.as_deref_mut().expect("observe has read-only data").extra_features = extra;
    open.load().map_err(Error::at(Step::Load, "observe"))
}

pub(super) fn watch(features: &Features, pcpus: u32) -> Result<watch::WatchSkel<'static>, Error> {
    let mut open = watch::WatchSkelBuilder::default().open(storage()).map_err(Error::at(Step::Open, "watch"))?;
    open.progs.levels.set_autoload(features.freq_scale);
    open.maps.pcpus.set_max_entries(pcpus).map_err(Error::at(Step::Open, "watch"))?;
    open.maps.domains.set_max_entries(pcpus).map_err(Error::at(Step::Open, "watch"))?;
    open.load().map_err(Error::at(Step::Load, "watch"))
}
