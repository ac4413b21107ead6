//! A cache of boxed objects per CPU.

use std::marker::PhantomData;

use crate::cpus::CpuSet;
use crate::protocol;
use crate::restart::{current_cpu, rseq_works};
use crate::slot::Slot;

/// A stack of objects for each CPU: put and taken by who runs on the CPU, emptied by anyone.
#[derive(Debug)]
pub struct Cache<T> {
    slots: Box<[Slot]>,
    objects: PhantomData<Box<T>>,
}

// SAFETY: a cache owns its objects and hands each to one thread at a time.
unsafe impl<T: Send> Send for Cache<T> {}
// SAFETY: no reference to an object is ever given to two threads.
unsafe impl<T: Send> Sync for Cache<T> {}

/// One CPU's cache, while nobody else touches it.
#[derive(Debug)]
pub struct Work<'a, T> {
    slot: &'a Slot,
    objects: PhantomData<&'a mut T>,
}

impl<T: Send> Cache<T> {
    /// A cache of up to `capacity` objects for each CPU that this machine may ever have. CPUs in `isolated` use a lock,
    /// so that emptying their caches does not interrupt them.
    pub fn new(capacity: usize, isolated: &CpuSet) -> Self {
        let sequences = rseq_works();
        let slots = (0..CpuSet::possible()).map(|cpu| Slot::new(cpu, capacity, !sequences || isolated.has(cpu)));
        Self { slots: slots.collect(), objects: PhantomData }
    }

    /// Puts an object into the cache of the current CPU.
    ///
    /// # Errors
    /// The cache is full: the object comes back.
    pub fn push(&self, object: Box<T>) -> Result<(), Box<T>> {
        let word = Box::into_raw(object) as usize;
        let put = protocol::owner(|| {
            let slot = self.here();
            (slot, slot.try_push(word))
        });
        // SAFETY: the word was not put, so it is still this call's alone.
        if put { Ok(()) } else { Err(unsafe { Box::from_raw(word as *mut T) }) }
    }

    /// Takes the object that was put last into the cache of the current CPU; `None` if it is empty.
    pub fn pop(&self) -> Option<Box<T>> {
        let word = protocol::owner(|| {
            let slot = self.here();
            (slot, slot.try_pop())
        })?;
        // SAFETY: each word was made by `into_raw` and is taken once.
        Some(unsafe { Box::from_raw(word as *mut T) })
    }

    /// Runs `work` on a CPU's cache at once, while nobody else touches it: QPW's `queue_percpu_work_on()`. There is
    /// nothing to wait for afterwards. `None`: there is no such CPU.
    ///
    /// The owner of an isolated CPU is not interrupted; one that wants its cache meanwhile waits. `work` must not use the
    /// same CPU's cache other than through what it is given.
    pub fn work_on<R>(&self, cpu: usize, work: impl FnOnce(&mut Work<'_, T>) -> R) -> Option<R> {
        let slot = self.slots.get(cpu)?;
        Some(slot.exclusive(|slot| work(&mut Work { slot, objects: PhantomData })))
    }

    /// Empties one CPU's cache; returns the number of objects. They are given to `object` after the cache is open again.
    pub fn drain_on(&self, cpu: usize, object: impl FnMut(Box<T>)) -> usize {
        let Some(slot) = self.slots.get(cpu) else { return 0 };
        // Allocated before the cache is taken: the owner may be waiting for it meanwhile.
        let mut all: Vec<Box<T>> = Vec::with_capacity(slot.capacity());
        self.work_on(cpu, |work| all.extend(std::iter::from_fn(|| work.pop())));
        let count = all.len();
        all.into_iter().for_each(object);
        count
    }

    /// Empties the caches of all CPUs; returns the number of objects.
    pub fn drain_all(&self, mut object: impl FnMut(Box<T>)) -> usize {
        (0..self.slots.len()).map(|cpu| self.drain_on(cpu, &mut object)).sum()
    }

    /// Whether a CPU's owner uses a lock, so that draining does not interrupt it.
    pub fn is_locked(&self, cpu: usize) -> bool {
        self.slots.get(cpu).is_none_or(Slot::is_locked)
    }

    /// How often the kernel was asked to restart what runs on a CPU: each may have been an IPI. Always 0 on isolated ones.
    pub fn restarts(&self, cpu: usize) -> u64 {
        self.slots.get(cpu).map_or(0, Slot::restarts)
    }

    fn here(&self) -> &Slot {
        let cpu = current_cpu();
        self.slots.get(cpu).expect("the kernel gives a CPU no number beyond its list of possible ones")
    }
}

impl<T> Work<'_, T> {
    /// Puts an object.
    ///
    /// # Errors
    /// The cache is full: the object comes back.
    pub fn push(&mut self, object: Box<T>) -> Result<(), Box<T>> {
        let word = Box::into_raw(object) as usize;
        // SAFETY: the word was not put, so it is still this call's alone.
        if self.slot.put(word) { Ok(()) } else { Err(unsafe { Box::from_raw(word as *mut T) }) }
    }

    /// Takes the object that was put last.
    pub fn pop(&mut self) -> Option<Box<T>> {
        // SAFETY: each word was made by `into_raw` and is taken once.
        self.slot.take().map(|word| unsafe { Box::from_raw(word as *mut T) })
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Cache<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            while let Some(word) = slot.take() {
                // SAFETY: the cache is dropped, so this thread has it for itself; each word was made by `into_raw`.
                drop(unsafe { Box::from_raw(word as *mut T) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_isolated() -> CpuSet {
        let mut set = CpuSet::none();
        (0..CpuSet::possible()).for_each(|cpu| set.add(cpu));
        set
    }

    #[test]
    fn objects_come_back_and_full_is_told() {
        for isolated in [CpuSet::none(), all_isolated()] {
            let cache: Cache<u32> = Cache::new(2, &isolated);
            // A thread that moves between CPUs meanwhile could find another cache: count over all.
            let mut back = 0;
            for i in 0..1000 {
                back += usize::from(cache.push(Box::new(i)).is_err());
            }
            assert_eq!(back + cache.drain_all(drop), 1000);
            assert!(cache.pop().is_none());
        }
    }

    #[test]
    fn isolated_cpus_are_never_restarted() {
        let cache: Cache<u32> = Cache::new(8, &all_isolated());
        for cpu in 0..CpuSet::possible() {
            assert!(cache.is_locked(cpu));
            cache.drain_on(cpu, drop);
            assert_eq!(cache.restarts(cpu), 0);
        }
    }

    #[test]
    fn work_is_done_on_the_named_cpu() {
        let cache: Cache<&str> = Cache::new(2, &CpuSet::none());
        assert_eq!(cache.work_on(0, |w| w.push(Box::new("a")).is_ok()), Some(true));
        assert_eq!(cache.work_on(0, |w| (w.len(), *w.pop().unwrap())), Some((1, "a")));
        assert_eq!(cache.work_on(usize::MAX, |_| ()), None);
    }

    #[test]
    fn dropping_the_cache_drops_its_objects() {
        let counted = std::sync::Arc::new(());
        let cache = Cache::new(4, &CpuSet::isolated());
        cache.push(Box::new(counted.clone())).unwrap();
        drop(cache);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }
}
