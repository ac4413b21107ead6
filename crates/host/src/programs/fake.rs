//! What the fleet asks of the programs, without a kernel that has them: `entrain_host.h` natively, and the tables beside.
//!
//! For the fuzz targets. Threads, entries and pairings are found and forgotten as `bpf/observe/calls.bpf.h` does it, and a
//! pairing keeps a mapping of its own of the page, as the kernel keeps a pin.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;

use entrain_bpf::ArrayView;
use entrain_channel::hosting::{Op, Step};
use entrain_channel::page::{PAGE_SIZE, Page};
use entrain_channel_native as native;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{Kind, Place, Programs};
use crate::interface::{HOST_VCPUS, HOST_VMS, Pairing, TickArgs, Vcpu};

/// Threads, entries, pairings.
#[derive(Default)]
pub(crate) struct Fake {
    /// The thread of each entry.
    threads: RefCell<HashMap<u32, i32>>,
    /// The entry that each thread leads to.
    refs: RefCell<HashMap<i32, u32>>,
    pairings: RefCell<HashMap<i32, Pinned>>,
    clock: Cell<u64>,
}

/// A pairing with its page.
struct Pinned {
    pairing: native::Pairing,
    page: *mut libc::c_void,
}

impl Pinned {
    fn new(value: &Pairing) -> io::Result<Self> {
        let side = &value.side;
        let old = value.page.cast::<libc::c_void>();
        // SAFETY: a length of 0 makes a second mapping of the same shared page, at a place of the kernel's choice.
        let page = unsafe { libc::mremap(old, 0, PAGE_SIZE, libc::MREMAP_MAYMOVE) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let side = native::Side {
            seed: side.seed,
            cookie: side.cookie,
            boot_id: side.boot_id,
            gpa: side.gpa,
            epoch: side.epoch,
            generation: side.generation,
            closed: side.closed,
            instant_busy: 0,
            level_busy: 0,
            slow: side.slow,
            fast: side.fast,
        };
        // SAFETY: a whole page, mapped until this is dropped; the target's file is not truncated.
        Ok(Self { pairing: unsafe { native::Pairing::new(side, page.cast::<Page>()) }, page })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: this one's own mapping, which nobody else knows.
        unsafe { libc::munmap(self.page, PAGE_SIZE) };
    }
}

impl Fake {
    pub(super) fn track(&self, vcpus: &ArrayView<Vcpu>, index: u32, tid: i32) -> bool {
        self.refs.borrow_mut().insert(tid, index);
        self.threads.borrow_mut().insert(index, tid);
        let mut entry = vcpus.get(index as usize);
        entry.used = 1;
        vcpus.set(index as usize, entry);
        true
    }

    pub(super) fn untrack(&self, vcpus: &ArrayView<Vcpu>, index: u32) {
        let mut entry = vcpus.get(index as usize);
        entry.used = 0;
        vcpus.set(index as usize, entry);
        let Some(tid) = self.threads.borrow_mut().remove(&index) else { return };
        // The thread may run another vCPU by now, whose entry it leads to.
        if self.refs.borrow().get(&tid).is_none_or(|leads| *leads == index) {
            self.pairings.borrow_mut().remove(&tid);
            self.refs.borrow_mut().remove(&tid);
        }
    }

    pub(super) fn attach(&self, place: &Place, value: &Pairing) -> io::Result<()> {
        let mut pairings = self.pairings.borrow_mut();
        if pairings.contains_key(&place.tid) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        pairings.insert(place.tid, Pinned::new(value)?);
        Ok(())
    }

    pub(super) fn detach(&self, place: &Place) {
        self.pairings.borrow_mut().remove(&place.tid);
    }

    pub(super) fn step(&self, place: &Place, op: Op, expected: u64, wanted: u64) -> Step {
        let Some(tid) = self.threads.borrow().get(&place.index).copied() else { return Step::Nothing };
        let pairings = self.pairings.borrow();
        pairings.get(&tid).map_or(Step::Nothing, |pinned| pinned.pairing.step(op, expected, wanted))
    }

    pub(super) fn tick(&self, vcpus: &ArrayView<Vcpu>, entries: u32) -> TickArgs {
        let mut found = TickArgs { entries, ..TickArgs::default() };
        self.clock.set(self.clock.get() + 100_000_000);
        for (index, tid) in &*self.threads.borrow() {
            let mut entry = vcpus.get(*index as usize);
            let pairings = self.pairings.borrow();
            let Some(pinned) = pairings.get(tid) else {
                entry.gone = 0;
                vcpus.set(*index as usize, entry);
                continue;
            };
            let beat = native::Beat { now: self.clock.get(), entitlement: 1024, ..native::Beat::default() };
            let (stands, link) = pinned.pairing.tick(&beat);
            if link != 0 {
                entry.link = link;
            }
            entry.gone = pinned.pairing.gone();
            vcpus.set(*index as usize, entry);
            found.paired += u32::from(stands);
            found.gone += u32::from(entry.gone != 0);
        }
        found
    }

    /// Every vCPU is switched.
    pub(crate) fn switch(&self) {
        self.clock.set(self.clock.get() + 1_000_000);
        let now = self.clock.get();
        for pinned in self.pairings.borrow().values() {
            pinned.pairing.switch(&native::Told {
                since: now,
                steal: now >> 10,
                state: now,
                ..native::Told::default()
            });
        }
    }

    /// Pairings that are attached.
    pub(crate) fn pairings(&self) -> usize {
        self.pairings.borrow().len()
    }
}

impl Programs {
    /// Tables in this process.
    pub(crate) fn fake() -> io::Result<Self> {
        fn view<T: Copy>(entries: usize) -> io::Result<ArrayView<T>> {
            let file = memfd_create("table", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, (size_of::<T>().next_multiple_of(8) * entries).next_multiple_of(PAGE_SIZE) as u64)?;
            // SAFETY: the tables' values are plain numbers, and zeros are some of them.
            Ok(unsafe { ArrayView::new(file, entries)? })
        }
        Ok(Self {
            kernel: Kind::Fake(Fake::default()),
            links: Vec::new(),
            has_wfx: false,
            vcpus: view(HOST_VCPUS)?,
            vms: view(HOST_VMS)?,
            pcpus: view(1)?,
        })
    }

    /// What stands for the kernel.
    pub(crate) fn as_fake(&self) -> &Fake {
        match &self.kernel {
            Kind::Fake(fake) => fake,
            Kind::Loaded(..) | Kind::Watch(..) => unreachable!("made by `fake`"),
        }
    }
}
