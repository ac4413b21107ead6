//! How much the simulated kernel looks at: CPUs, tasks and nodes of what orders them, one by one.
//!
//! How long a simulation takes is told by a clock, and differs from one computer to the next. How its work grows with
//! the machine is told by this count, and is the same everywhere: `tests/growth.rs` bounds it.

use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// So many were looked at.
#[inline]
pub(crate) fn looked(count: usize) {
    LOOKS.set(LOOKS.get() + count as u64);
}

/// All that this thread's worlds have looked at.
pub fn looks() -> u64 {
    LOOKS.get()
}
