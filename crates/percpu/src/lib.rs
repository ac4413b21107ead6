//! Per-CPU caches whose remote drain never interrupts an isolated CPU.
//!
//! A cache per CPU is fast because only its own CPU touches it. Now and then somebody else has to empty it, and then
//! there are two ways:
//!
//! * **Housekeeping CPUs**: the owner works in a restartable sequence (rseq), without any atomic instruction. Whoever
//!   drains closes the cache and makes the kernel restart what runs on that CPU (`membarrier`): an IPI.
//! * **Isolated CPUs**: the owner takes a lock of its own CPU, some nanoseconds. Whoever drains takes the same lock,
//!   and the owner is not interrupted. If it wants its cache in that moment it waits: it spins a little, then sleeps, and
//!   waking it is the one IPI that a drain can cause there.
//!
//! Which CPU is which is given once, as a set. The interface follows QPW (Leonardo Bras, Linux Plumbers Conference
//! 2024), which does the same in the kernel: [`Cache::work_on`] is its `queue_percpu_work_on()`, done at once.
//!
//! rseq is used on x86_64 with glibc 2.35 or later, which registers each thread's area. Elsewhere, and where the kernel
//! lacks `membarrier` for rseq (before 5.10), all CPUs use locks: slower, never wrong.
//!
//! ```
//! use entrain_percpu::{Cache, CpuSet};
//! let cache: Cache<Vec<u8>> = Cache::new(64, &CpuSet::isolated());
//! let buffer = cache.pop().unwrap_or_else(|| Box::new(vec![0; 4096]));
//! drop(cache.push(buffer)); // a full cache gives the object back: then it is freed here
//! cache.drain_all(drop);
//! ```

mod cache;
mod capi;
mod cpus;
mod protocol;
mod restart;
mod slot;

#[cfg(test)]
mod model;

pub use cache::{Cache, Work};
pub use cpus::{BadList, CpuSet};
pub use restart::{current_cpu, rseq_works};
