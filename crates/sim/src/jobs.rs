//! Runs of a sweep on all cores. Each is a world of its own, so that what they give does not depend on how many run at
//! a time, nor on which ends first: it comes in the order of what was asked for.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// As many threads as this process may use.
pub fn all_cores() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Works off `items` on so many threads. `done` hears of each that is, in no order; when it says no, no further one is
/// begun, and there is no result.
pub fn run<T: Sync, R: Send>(
    items: &[T],
    threads: NonZero<usize>,
    work: impl Fn(&T) -> R + Sync,
    done: impl Fn(&T, &R) -> bool + Sync,
) -> Option<Vec<R>> {
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads.get().min(items.len()) {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let result = work(item);
                    if !done(item, &result) {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    results.lock().expect("no thread has failed")[at] = Some(result);
                }
            });
        }
    });
    results.into_inner().expect("no thread has failed").into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_a_no_ends_it() {
        let items: Vec<u64> = (0..50).collect();
        let threads = NonZero::new(3).expect("not 0");
        let slow = |item: &u64| {
            std::thread::sleep(std::time::Duration::from_micros((item * 37) % 300));
            item * 2
        };
        let all = run(&items, threads, slow, |_, _| true).expect("nobody ended it");
        assert_eq!(all, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(run(&items, threads, slow, |item, _| *item < 10), None);
    }
}
