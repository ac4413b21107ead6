//! What an input may cost in memory: the allocations of the thread that runs a target are counted and held against a
//! bound for each byte of input. System calls and considered offers are counted where they are made
//! (`entrain_host::untrusted`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts for each thread; the memory is the system's.
struct Counting;

#[derive(Clone, Copy)]
struct Counts {
    made: u64,
    live: i64,
    peak: i64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { made: 0, live: 0, peak: 0 }) };
}

fn count(made: u64, bytes: i64) {
    // A thread that ends has no counts any more.
    let _ = COUNTS.try_with(|counts| {
        let Counts { made: before, live, peak } = counts.get();
        let live = live + bytes;
        counts.set(Counts { made: before + made, live, peak: peak.max(live) });
    });
}

// SAFETY: every call is the system's allocator's, with the same arguments; the counts are plain numbers of this thread and
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Allocations made.
    pub allocations: u64,
    /// Most bytes held at a time, beyond those at the start.
    pub peak: u64,
}

/// A bound: for any input, and for each of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Allocations.
    pub allocations: (u64, u64),
    /// Bytes held at a time.
    pub peak: (u64, u64),
}

/// Runs `work` and tells what it took of this thread's memory.
pub fn measure(work: impl FnOnce()) -> Cost {
    let before = COUNTS.get();
    COUNTS.set(Counts { peak: before.live, ..before });
    work();
    let after = COUNTS.get();
    COUNTS.set(Counts { peak: after.peak.max(before.peak), ..after });
    Cost { allocations: after.made - before.made, peak: (after.peak - before.live).max(0) as u64 }
}

impl Bound {
    /// # Panics
    /// When a run over `length` bytes of input took more: whoever chose them makes the daemon work or grow.
    pub fn hold(&self, name: &str, length: usize, cost: Cost) {
        let most = |(any, each): (u64, u64)| any + each * length as u64;
        let (allocations, peak) = (most(self.allocations), most(self.peak));
        assert!(
            cost.allocations <= allocations && cost.peak <= peak,
            "{name}: {length} bytes cost {} allocations (at most {allocations}), {} bytes at a time (at most {peak})",
            cost.allocations,
            cost.peak
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_what_was_made_are_told_apart() {
        let cost = measure(|| {
            for _ in 0..10 {
                drop(std::hint::black_box(vec![0u8; 1000]));
            }
        });
        assert_eq!(cost, Cost { allocations: 10, peak: 1000 });
    }

    #[test]
    #[should_panic(expected = "at most")]
    fn what_goes_beyond_its_bound_is_caught() {
        let bound = Bound { allocations: (1, 0), peak: (100, 1) };
        bound.hold("test", 10, measure(|| drop(std::hint::black_box(vec![0u8; 111]))));
    }
}
