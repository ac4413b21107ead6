//! An amount of work that one thread hands to another and waits for.

use crate::spin::work;
use crate::sync::{futex_wait, futex_wake};
use std::sync::atomic::{AtomicU32, Ordering};

/// What is handed over: iterations of work, 0 when there is none, [`END`] after the last.
#[derive(Default)]
pub(crate) struct Hand(AtomicU32);

/// Who works ends by the giver's word alone: by the run's end it could go while work is still to come.
const END: u32 = u32::MAX;

impl Hand {
    /// Hands over so many iterations, more than 0.
    pub(crate) fn give(&self, iterations: u32) {
        self.set(iterations);
    }

    /// There is no more to come.
    pub(crate) fn end(&self) {
        self.set(END);
    }

    /// Works off what is given until the end.
    pub(crate) fn serve(&self) {
        while let Some(iterations) = self.take() {
            work(iterations);
            self.done();
        }
    }

    /// Waits for work; nothing after the last.
    fn take(&self) -> Option<u32> {
        loop {
            match self.0.load(Ordering::Acquire) {
                END => return None,
                0 => drop(futex_wait(&self.0, 0)),
                iterations => return Some(iterations),
            }
        }
    }

    /// Who works is done.
    fn done(&self) {
        self.set(0);
    }

    /// Waits until what was given is done.
    pub(crate) fn await_done(&self, given: u32) {
        while self.0.load(Ordering::Acquire) == given {
            futex_wait(&self.0, given);
        }
    }

    fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        futex_wake(&self.0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_over_and_back() {
        let hand = Hand::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(hand.take(), Some(7));
                hand.done();
            });
            hand.give(7);
            hand.await_done(7);
        });
        hand.end();
        assert_eq!(hand.take(), None);
    }
}
