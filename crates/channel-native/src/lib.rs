//! The host's side of the page (`entrain_host.h`) outside the kernel: the code that the BPF programs run, natively.
//!
//! The fuzz targets pair with pages by it where there is no kernel to load programs into; the tests here run it through
//! every order of events (`model`) and under a sanitizer of threads (`tests/threads.rs`).

#[cfg(test)]
mod model;

use std::cell::UnsafeCell;

use entrain_channel::hosting::{Op, Step};
use entrain_channel::page::Page;

/// `struct entrain_side`: the host's memory of one pairing.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Side {
    pub seed: u64,
    pub cookie: u64,
    pub boot_id: u64,
    pub gpa: u64,
    pub epoch: u64,
    pub generation: u32,
    pub closed: u32,
    pub instant_busy: u32,
    pub level_busy: u32,
    pub slow: [u64; 8],
    pub fast: [u64; 8],
}

/// `struct entrain_told`: the words that go with a vCPU's state.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Told {
    pub since: u64,
    pub steal: u64,
    pub preemptions: u64,
    pub preemptions_cs: u64,
    pub boosts: u64,
    pub state: u64,
}

/// `struct entrain_beat`: the words of a tick.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Beat {
    pub now: u64,
    pub entitlement: u64,
    pub features: u64,
}

unsafe extern "C" {
    fn entrain_native_step(side: *mut Side, page: *const Page, op: u32, from: u64, to: u64, was: *mut u64) -> i32;
    fn entrain_native_is_closed(side: *const Side) -> i32;
    fn entrain_native_gone(side: *const Side) -> u64;
    fn entrain_native_stands(side: *mut Side, page: *const Page, link: *mut u64) -> i32;
    fn entrain_native_put_state(side: *mut Side, page: *const Page, told: *const Told);
    fn entrain_native_put_beat(side: *mut Side, page: *const Page, beat: *const Beat);
}

/// A pairing of one thread: what BPF's map holds of it, with the page that it has pinned.
pub struct Pairing {
    side: UnsafeCell<Side>,
    page: *const Page,
}

impl Pairing {
    /// As the daemon attaches it.
    ///
    /// # Safety
    /// `page` is memory of this process of a page's size and alignment, mapped for writing, for as long as this lives.
    pub unsafe fn new(side: Side, page: *const Page) -> Self {
        Self { side: UnsafeCell::new(side), page }
    }

    /// `entrain_host_step`.
    pub fn step(&self, op: Op, expected: u64, wanted: u64) -> Step {
        let mut was = 0;
        // SAFETY: the page is the caller's of `new`; this is not `Sync`, so nobody else has the side.
        match unsafe { entrain_native_step(self.side.get(), self.page, op as u32, expected, wanted, &mut was) } {
            0 => Step::Stale,
            _ => Step::Was(was),
        }
    }

    /// A tick: `entrain_host_stands`, `entrain_host_put_beat`. Whether it stands, and the link word as it was.
    pub fn tick(&self, beat: &Beat) -> (bool, u64) {
        let mut link = 0;
        // SAFETY: as above.
        unsafe {
            let stands = entrain_native_is_closed(self.side.get()) == 0
                && entrain_native_stands(self.side.get(), self.page, &mut link) != 0;
            if stands {
                entrain_native_put_beat(self.side.get(), self.page, beat);
            }
            (stands, link)
        }
    }

    /// `entrain_host_gone`.
    pub fn gone(&self) -> u64 {
        // SAFETY: as above.
        unsafe { entrain_native_gone(self.side.get()) }
    }

    /// A switch: `entrain_host_put_state`, as long as it is open.
    pub fn switch(&self, told: &Told) {
        // SAFETY: as above.
        unsafe {
            if entrain_native_is_closed(self.side.get()) == 0 {
                entrain_native_put_state(self.side.get(), self.page, told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use entrain_channel::hosting::Gone;

    use super::*;

    #[test]
    fn c_and_rust_have_one_layout() {
        unsafe extern "C" {
            static entrain_native_layout: [u64; 15];
        }
        let told = |why| 7 << 32 | why as u64;
        let rust = [
            size_of::<Side>() as u64,
            offset_of!(Side, closed) as u64,
            offset_of!(Side, instant_busy) as u64,
            offset_of!(Side, level_busy) as u64,
            offset_of!(Side, fast) as u64,
            size_of::<Told>() as u64,
            offset_of!(Told, state) as u64,
            size_of::<Beat>() as u64,
            offset_of!(Beat, features) as u64,
            Op::Pair as u64,
            Op::Close as u64,
            Op::Release as u64,
            told(Gone::Word),
            told(Gone::Header),
            told(Gone::Link),
        ];
        // SAFETY: a constant of side.c, which nobody writes.
        assert_eq!(unsafe { entrain_native_layout }, rust);
    }
}
