//! The interface for C: `include/entrain_percpu.h` says what each function does.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::cpus::CpuSet;
use crate::protocol;
use crate::restart::{current_cpu, rseq_works};
use crate::slot::Slot;

/// A cache of pointers per CPU.
#[derive(Debug)]
pub(crate) struct EntrainPercpu(Box<[Slot]>);

impl EntrainPercpu {
    fn here(&self) -> Option<&Slot> {
        self.0.get(current_cpu())
    }
}

/// Makes a cache; NULL if `isolated` is no list of CPUs.
///
/// # Safety
/// `isolated` is NULL or a string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn entrain_percpu_create(capacity: usize, isolated: *const c_char) -> *mut EntrainPercpu {
    let isolated = if isolated.is_null() {
        CpuSet::isolated()
    } else {
        // SAFETY: the caller gives a string.
        match unsafe { CStr::from_ptr(isolated) }.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(set) => set,
            None => return null_mut(),
        }
    };
    let sequences = rseq_works();
    let slots = (0..CpuSet::possible()).map(|cpu| Slot::new(cpu, capacity, !sequences || isolated.has(cpu)));
    Box::into_raw(Box::new(EntrainPercpu(slots.collect())))
}

/// Frees a cache, not the objects in it.
///
/// # Safety
/// `cache` is NULL or of `entrain_percpu_create`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn entrain_percpu_destroy(cache: *mut EntrainPercpu) {
    if !cache.is_null() {
        // SAFETY: made by `into_raw` above, given back once.
        drop(unsafe { Box::from_raw(cache) });
    }
}

/// Puts an object into the current CPU's cache; 0 if it is full.
///
/// # Safety
/// `cache` is of `entrain_percpu_create`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn entrain_percpu_push(cache: *const EntrainPercpu, object: *mut c_void) -> c_int {
    // SAFETY: the caller gives a cache.
    let cache = unsafe { &*cache };
    let Some(first) = cache.here() else { return 0 };
    c_int::from(protocol::owner(|| {
        let slot = cache.here().unwrap_or(first);
        (slot, slot.try_push(object as usize))
    }))
}

/// Takes an object out of the current CPU's cache; NULL if it is empty.
///
/// # Safety
/// `cache` is of `entrain_percpu_create`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn entrain_percpu_pop(cache: *const EntrainPercpu) -> *mut c_void {
    // SAFETY: the caller gives a cache.
    let cache = unsafe { &*cache };
    let Some(first) = cache.here() else { return null_mut() };
    let word = protocol::owner(|| {
        let slot = cache.here().unwrap_or(first);
        (slot, slot.try_pop())
    });
    word.unwrap_or(0) as *mut c_void
}

/// Empties a CPU's cache; returns the number of objects, each of which was given to `object`.
///
/// # Safety
/// `cache` is of `entrain_percpu_create`; `object` may be called with `context`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn entrain_percpu_drain_on(
    cache: *const EntrainPercpu,
    cpu: usize,
    object: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    context: *mut c_void,
) -> usize {
    // SAFETY: the caller gives a cache.
    let cache = unsafe { &*cache };
    let Some(slot) = cache.0.get(cpu) else { return 0 };
    let all: Vec<usize> = slot.exclusive(|slot| std::iter::from_fn(|| slot.take()).collect());
    if let Some(object) = object {
        for &word in &all {
            // SAFETY: the caller says that it may be called so.
            unsafe { object(word as *mut c_void, context) };
        }
    }
    all.len()
}

/// One more than the highest number that a CPU may have.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn entrain_percpu_cpus() -> usize {
    CpuSet::possible()
}
