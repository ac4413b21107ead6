//! Rust mirror of `bpf/sched_interface.h`. A test compares its size with what the BPF object says of itself.

/// Counters of one vCPU or of the whole host; times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[repr(C)]
pub struct Stats {
    /// Put on a CPU.
    pub switches: u64,
    /// Taken off a CPU while runnable.
    pub preemptions: u64,
    /// Of those, in what may be a critical section.
    pub preemptions_held: u64,
    /// On a CPU.
    pub ran: u64,
    /// Runnable without a CPU.
    pub waited: u64,
    /// Wake-ups.
    pub wakeups: u64,
    /// Times that a slice was extended.
    pub extended: u64,
    /// By so much in all.
    pub extended_ns: u64,
    /// Taken off later slices for it.
    pub repaid_ns: u64,
    /// Extensions refused: (granted), not critical, event's bound, budget.
    pub extend_no: [u64; 4],
    /// Directed yields to it: honoured, not waiting, holds nothing, just boosted, foreign, unfair, not allowed.
    pub yields: [u64; 8],
    /// Honoured, but another CPU had taken the target meanwhile.
    pub yields_lost: u64,
    /// Went to the front since it was preempted inside a section.
    pub fronted: u64,
    /// Chosen out of turn since a sibling ran.
    pub corun: u64,
    /// On a CPU while a sibling was on another.
    pub corun_ns: u64,
    /// Wake-ups that asked for a CPU that was taken.
    pub preempts: u64,
    /// Times that it gave up the CPU to a sibling.
    pub spins: u64,
    /// Wake-ups that its guest called latency-critical.
    pub urgent: u64,
}

/// What the scheduler keeps of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[repr(C)]
pub(super) struct Public {
    /// Its clock, ns of virtual time.
    pub vtime: u64,
    /// 1 for a vCPU thread.
    pub vcpu: u32,
    /// Of the VMM; 0 while it is not known to be a vCPU.
    pub tgid: i32,
    /// 1 + the queue that it runs from or waits in; 0 while it sleeps.
    pub queue: u32,
    /// For the alignment of what follows.
    pub pad: u32,
    /// Since the scheduler was loaded.
    pub stats: Stats,
}

const WORDS: usize = size_of::<Stats>() / 8;

impl Stats {
    /// Reads a value as the kernel copied it out; `None` if it is shorter than expected.
    pub fn from_bytes(bytes: &[u8]) -> Option<Stats> {
        let mut words = [0u64; WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.get(..size_of::<Stats>())?.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().ok()?);
        }
        // SAFETY: Stats is repr(C) of u64 alone, so it is exactly these words, and every value of them is valid.
        Some(unsafe { std::mem::transmute::<[u64; WORDS], Stats>(words) })
    }

    /// Adds another's counters to these.
    pub fn add(&mut self, other: &Stats) {
        // SAFETY: as in from_bytes, in both directions.
        let mut sum = unsafe { std::mem::transmute::<Stats, [u64; WORDS]>(*self) };
        // SAFETY: as above.
        let more = unsafe { std::mem::transmute::<Stats, [u64; WORDS]>(*other) };
        for (a, b) in sum.iter_mut().zip(more) {
            *a = a.wrapping_add(b);
        }
        // SAFETY: as above.
        *self = unsafe { std::mem::transmute::<[u64; WORDS], Stats>(sum) };
    }
}

impl Public {
    /// Reads a value as the kernel copied it out; `None` if it is shorter than expected.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Public> {
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (ids, queue) = (word(8)?.to_ne_bytes(), word(16)?.to_ne_bytes());
        Some(Public {
            vtime: word(0)?,
            vcpu: u32::from_ne_bytes(ids[..4].try_into().ok()?),
            tgid: i32::from_ne_bytes(ids[4..].try_into().ok()?),
            queue: u32::from_ne_bytes(queue[..4].try_into().ok()?),
            pad: 0,
            stats: Stats::from_bytes(bytes.get(24..)?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_has_the_size_of_the_original() {
        assert_eq!(size_of::<Stats>(), size_of::<crate::skeleton::sched::types::sched_stats>());
        assert_eq!(size_of::<Public>(), size_of::<crate::skeleton::sched::types::sched_public>());
    }

    #[test]
    fn values_are_read_in_order() {
        let mut bytes = Vec::new();
        for n in 0..(3 + WORDS as u64) {
            bytes.extend_from_slice(&(n + 1).to_ne_bytes());
        }
        let public = Public::from_bytes(&bytes).expect("long enough");
        assert_eq!((public.vtime, public.vcpu, public.tgid, public.queue), (1, 2, 0, 3));
        assert_eq!(public.stats.switches, 4);
        assert_eq!(public.stats.urgent, 3 + WORDS as u64);
        assert_eq!(Public::from_bytes(&bytes[..bytes.len() - 1]), None);
        let mut sum = public.stats;
        sum.add(&public.stats);
        assert_eq!(sum.yields[7], 2 * public.stats.yields[7]);
    }
}
