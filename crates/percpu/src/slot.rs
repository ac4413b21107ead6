//! The cache of one CPU: a stack of words with a fixed capacity.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::{self, Attempt, Side};
use crate::restart;

/// Two cache lines: the prefetcher fetches pairs, and a neighbour's line must not come along.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// Not 0: owners keep out. Read by the sequences of [`restart`] at this offset (0).
    closed: AtomicU32,
    /// Words on the stack. Written by the sequences of [`restart`] at this offset (8).
    len: AtomicUsize,
    /// Words that the stack can hold (16).
    capacity: usize,
    /// The stack (24).
    items: *mut usize,
    cpu: usize,
    /// Owners use the lock instead of sequences: an isolated CPU, or no rseq here.
    locked: bool,
    lock: Mutex<()>,
    storage: UnsafeCell<Box<[usize]>>,
    /// Times that the kernel was asked to restart what runs on this CPU.
    restarts: AtomicU64,
}

// SAFETY: `items` points into `storage`, which lives as long as the slot and is only touched by who holds the lock with
// the cache closed (or `locked`), or by a sequence of the one thread that runs on the CPU at that time.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) fn new(cpu: usize, capacity: usize, locked: bool) -> Self {
        let mut storage = vec![0; capacity].into_boxed_slice();
        Self {
            closed: AtomicU32::new(0),
            len: AtomicUsize::new(0),
            capacity,
            items: storage.as_mut_ptr(),
            cpu,
            locked,
            lock: Mutex::new(()),
            storage: UnsafeCell::new(storage),
            restarts: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// One try to put a word; `Done(false)`: full.
    pub(crate) fn try_push(&self, word: usize) -> Attempt<bool> {
        if !self.locked {
            // SAFETY: the slot is one whose owners use sequences, of this CPU number.
            return unsafe { restart::push(std::ptr::from_ref(self).cast(), self.cpu as u32, word) };
        }
        let _guard = self.lock();
        Attempt::Done(self.put(word))
    }

    /// One try to take a word; `Done(None)`: empty.
    pub(crate) fn try_pop(&self) -> Attempt<Option<usize>> {
        if !self.locked {
            // SAFETY: as in `try_push`.
            return unsafe { restart::pop(std::ptr::from_ref(self).cast(), self.cpu as u32) };
        }
        let _guard = self.lock();
        Attempt::Done(self.take())
    }

    /// Runs `work` on the stack while nobody else touches it, from any CPU.
    pub(crate) fn exclusive<R>(&self, work: impl FnOnce(&Self) -> R) -> R {
        if self.locked {
            let _guard = self.lock();
            return work(self);
        }
        protocol::exclusive(self, || work(self))
    }

    /// For who has the stack for itself (the lock, or `exclusive`).
    pub(crate) fn put(&self, word: usize) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        if len == self.capacity {
            return false;
        }
        // SAFETY: len < capacity, and the caller has the stack for itself.
        unsafe { self.items.add(len).write(word) };
        self.len.store(len + 1, Ordering::Relaxed);
        true
    }

    /// For who has the stack for itself.
    pub(crate) fn take(&self) -> Option<usize> {
        let len = self.len.load(Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: len + 1 words were put, and the caller has the stack for itself.
        let word = unsafe { self.items.add(len).read() };
        self.len.store(len, Ordering::Relaxed);
        Some(word)
    }

    /// For who has the stack for itself.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

impl Side for Slot {
    type Guard<'a> = MutexGuard<'a, ()>;

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no invariant that a panic could break: a word is either on the stack or not.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_closed(&self, closed: bool) {
        // Release: what the drainer did to the stack comes before its opening.
        self.closed.store(u32::from(closed), Ordering::SeqCst);
    }

    fn restart_owner(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        restart::restart(self.cpu as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequences know the fields by these offsets.
    #[test]
    fn offsets_are_those_of_the_sequences() {
        assert_eq!(std::mem::offset_of!(Slot, closed), 0);
        assert_eq!(std::mem::offset_of!(Slot, len), 8);
        assert_eq!(std::mem::offset_of!(Slot, capacity), 16);
        assert_eq!(std::mem::offset_of!(Slot, items), 24);
    }
}
