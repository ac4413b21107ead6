//! Model check: loom runs the real order of steps ([`crate::protocol`]) through every interleaving of an owner and
//! drainers.
//!
//! What is modelled is the kernel's part. A sequence is committed only if it was not restarted since its start, in one
//! step with that test; a restart is ordered with commits as the IPI orders them. Both is done by a lock around a count
//! of restarts. What is not modelled is the assembly itself: `tests/stress.rs` runs that.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;

use crate::protocol::{Attempt, Side, exclusive, owner};

const CAPACITY: usize = 2;

struct Model {
    closed: AtomicBool,
    len: AtomicUsize,
    items: [AtomicUsize; CAPACITY],
    lock: Mutex<()>,
    restarts: Mutex<u32>,
    /// For the test of the model itself: a drainer that forgets to restart the owner.
    forgets: bool,
}

impl Side for Model {
    type Guard<'a> = MutexGuard<'a, ()>;

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap()
    }

    fn set_closed(&self, closed: bool) {
        self.closed.store(closed, SeqCst);
    }

    fn restart_owner(&self) {
        if !self.forgets {
            *self.restarts.lock().unwrap() += 1;
        }
    }
}

impl Model {
    fn new(forgets: bool) -> Self {
        Self {
            closed: AtomicBool::new(false),
            len: AtomicUsize::new(0),
            items: [AtomicUsize::new(0), AtomicUsize::new(0)],
            lock: Mutex::new(()),
            restarts: Mutex::new(0),
            forgets,
        }
    }

    /// Commits a new length, unless the sequence that began at `start` was restarted.
    fn commit(&self, start: u32, len: usize) -> bool {
        let restarts = self.restarts.lock().unwrap();
        if *restarts == start {
            self.len.store(len, Relaxed);
        }
        *restarts == start
    }

    fn push(&self, word: usize) -> bool {
        owner(|| {
            let start = *self.restarts.lock().unwrap();
            if self.closed.load(Acquire) {
                return (self, Attempt::Closed);
            }
            let len = self.len.load(Relaxed);
            if len == CAPACITY {
                return (self, Attempt::Done(false));
            }
            self.items[len].store(word, Relaxed);
            (self, if self.commit(start, len + 1) { Attempt::Done(true) } else { Attempt::Aborted })
        })
    }

    fn pop(&self) -> Option<usize> {
        owner(|| {
            let start = *self.restarts.lock().unwrap();
            if self.closed.load(Acquire) {
                return (self, Attempt::Closed);
            }
            let Some(len) = self.len.load(Relaxed).checked_sub(1) else { return (self, Attempt::Done(None)) };
            let word = self.items[len].load(Relaxed);
            (self, if self.commit(start, len) { Attempt::Done(Some(word)) } else { Attempt::Aborted })
        })
    }

    fn drain(&self) -> Vec<usize> {
        exclusive(self, || {
            let len = self.len.load(Relaxed);
            let all = (0..len).map(|i| self.items[i].load(Relaxed)).collect();
            self.len.store(0, Relaxed);
            all
        })
    }
}

/// An owner puts two words and takes one, drainers drain: each word comes out once.
fn conserves(forgets: bool, drainers: usize) {
    let mut builder = loom::model::Builder::new();
    // Two drainers with a bound of 3 pass too, but take over a minute.
    builder.preemption_bound = Some(if drainers > 1 { 2 } else { 3 });
    builder.check(move || {
        let model = Arc::new(Model::new(forgets));
        let threads: Vec<_> = (0..drainers)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || model.drain())
            })
            .collect();
        let mut out = Vec::new();
        assert!(model.push(1));
        assert!(model.push(2));
        out.extend(model.pop());
        for thread in threads {
            out.extend(thread.join().unwrap());
        }
        out.extend(model.drain());
        out.sort_unstable();
        assert_eq!(out, [1, 2]);
    });
}

#[test]
fn one_drainer_loses_and_doubles_nothing() {
    conserves(false, 1);
}

#[test]
fn two_drainers_lose_and_double_nothing() {
    conserves(false, 2);
}

/// The model can fail: without the restart a word is lost or doubled.
#[test]
#[should_panic(expected = "assertion")]
fn without_restart_it_would_go_wrong() {
    conserves(true, 1);
}
