//! What threads share: futex words, the phase of the run, counters on cache lines of their own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Waits until `word` is no longer `value` or a wake-up comes. True if the thread slept and was woken.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32) -> bool {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call, the kernel only reads it, and no timeout is given.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, no_timeout) == 0 }
}

/// Wakes up to `count` waiters of `word`.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word outlives the call; FUTEX_WAKE uses it only as an address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
}

/// Where the run is. Threads wait for its start, record only while it is measured, and end when it stops.
#[derive(Default)]
pub(crate) struct Phase(AtomicU32);

const IDLE: u32 = 0;
const WARMUP: u32 = 1;
const MEASURE: u32 = 2;
const STOP: u32 = 3;

impl Phase {
    /// Blocks until the run starts or is called off. False if there is nothing to run.
    pub(crate) fn wait_start(&self) -> bool {
        while self.0.load(Ordering::Acquire) == IDLE {
            futex_wait(&self.0, IDLE);
        }
        self.running()
    }

    /// The run goes on.
    pub(crate) fn running(&self) -> bool {
        self.0.load(Ordering::Relaxed) != STOP
    }

    /// What happens now counts.
    pub(crate) fn measuring(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MEASURE
    }

    fn set(&self, phase: u32) {
        self.0.store(phase, Ordering::Release);
        futex_wake(&self.0, i32::MAX);
    }

    pub(crate) fn warm_up(&self) {
        self.set(WARMUP);
    }

    pub(crate) fn measure(&self) {
        self.set(MEASURE);
    }

    pub(crate) fn stop(&self) {
        self.set(STOP);
    }
}

/// A counter that one thread writes and others read. It has its cache lines to itself (two: the neighbour line is
/// prefetched with it), so that counting is not a load of its own.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning thread may call this.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One for each of `n` threads.
    pub(crate) fn many(n: usize) -> Vec<Self> {
        (0..n).map(|_| Self::default()).collect()
    }

    /// All values at this moment.
    pub(crate) fn values(counters: &[Self]) -> Vec<u64> {
        counters.iter().map(Self::get).collect()
    }
}

/// The smallest over the largest of what the threads did between two readings: 1 is perfectly fair, 0 means that one
/// thread did nothing. 1 if nobody did anything.
pub(crate) fn fairness(before: &[u64], after: &[u64]) -> f64 {
    let done = || before.iter().zip(after).map(|(b, a)| a - b);
    match (done().min(), done().max()) {
        (Some(min), Some(max)) if max > 0 => min as f64 / max as f64,
        _ => 1.0,
    }
}

/// All that the threads did between two readings.
pub(crate) fn total(before: &[u64], after: &[u64]) -> u64 {
    before.iter().zip(after).map(|(b, a)| a - b).sum()
}

/// The rate at which all threads go on, from one look to the next.
#[derive(Default)]
pub(crate) struct Pace {
    last: Option<(Vec<u64>, f64)>,
}

impl Pace {
    /// Per second since the last look; the first is measured from `before`, at 0 s.
    pub(crate) fn look(&mut self, before: &[u64], now: Vec<u64>, at: f64) -> f64 {
        let (then, since) = self.last.take().unwrap_or_else(|| (before.to_vec(), 0.0));
        let rate = total(&then, &now) as f64 / (at - since);
        self.last = Some((now, at));
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_min_over_max() {
        assert_eq!(fairness(&[10, 10], &[20, 30]), 0.5);
        assert_eq!(fairness(&[10, 10], &[10, 30]), 0.0);
        assert_eq!(fairness(&[1, 1], &[1, 1]), 1.0);
        assert_eq!(total(&[10, 10], &[20, 30]), 30);
    }

    #[test]
    fn the_pace_is_that_since_the_last_look() {
        let mut pace = Pace::default();
        assert_eq!(pace.look(&[10, 10], vec![20, 30], 2.0), 15.0);
        assert_eq!(pace.look(&[10, 10], vec![24, 30], 3.0), 4.0);
    }

    #[test]
    fn a_waiter_is_woken_once_the_word_changes() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    futex_wait(&word, 0);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(10));
            word.store(1, Ordering::Release);
            futex_wake(&word, 1);
        });
        assert!(!futex_wait(&word, 0), "the word is not 0 any more, so nobody may sleep on it");
    }

    #[test]
    fn a_run_that_is_called_off_never_starts() {
        let phase = Phase::default();
        phase.stop();
        assert!(!phase.wait_start());
    }
}
