//! How owner and drainer of a cache with a restartable owner keep out of each other's way. The order of steps is here
//! and nowhere else; loom runs it through every interleaving (`model.rs`).

/// What the protocol needs of a cache.
pub(crate) trait Side {
    /// Held by at most one drainer; an owner that finds the cache closed waits for it.
    type Guard<'a>
    where
        Self: 'a;

    /// Takes the lock of the cache.
    fn lock(&self) -> Self::Guard<'_>;
    /// Says whether owners have to keep out.
    fn set_closed(&self, closed: bool);
    /// When this returns, every sequence that was under way on the cache's CPU has either been committed, and is
    /// visible here, or starts anew and sees what was written before the call.
    fn restart_owner(&self);
}

/// How a restartable sequence ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attempt<T> {
    /// Committed, or ended without a need to.
    Done(T),
    /// Interrupted, or on another CPU by now.
    Aborted,
    /// The cache is closed.
    Closed,
}

/// Runs `work` while no owner touches the cache.
pub(crate) fn exclusive<S: Side, R>(side: &S, work: impl FnOnce() -> R) -> R {
    /// Opens the cache again, also if `work` panics. Before the lock is given up: fields drop in this order.
    struct Open<'a, S: Side>(&'a S, #[allow(dead_code, reason = "held until the cache is open")] S::Guard<'a>);
    impl<S: Side> Drop for Open<'_, S> {
        fn drop(&mut self) {
            self.0.set_closed(false);
        }
    }
    let guard = side.lock();
    let _open = Open(side, guard);
    side.set_closed(true);
    // Only now: a sequence that began before may not have seen the cache closed.
    side.restart_owner();
    work()
}

/// Repeats a sequence until it is done. `attempt` names the cache that it found closed.
pub(crate) fn owner<'a, S: Side + 'a, T>(mut attempt: impl FnMut() -> (&'a S, Attempt<T>)) -> T {
    loop {
        match attempt() {
            (_, Attempt::Done(value)) => return value,
            (_, Attempt::Aborted) => {}
            // Sleeps until the drainer is done. Spinning could keep it off this very CPU.
            (side, Attempt::Closed) => drop(side.lock()),
        }
    }
}
