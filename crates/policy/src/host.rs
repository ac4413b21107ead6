//! The host scheduler's decisions: native bindings of `fair.h`, `slice.h`, `extend.h`, `yield.h`, `place.h`, `cost.h`,
//! `tick.h`.
//!
//! Fields and units are those of the headers; virtual times wrap and are compared by difference.

use std::os::raw::c_int;

/// How surely a vCPU is in a critical section of its guest (`enum entrain_critical`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Critical {
    /// Nothing is known.
    Unknown = 0,
    /// In user mode.
    User = 1,
    /// In kernel mode, no more is known.
    Kernel = 2,
    /// In kernel mode with a preempt count of 0.
    Free = 3,
    /// Interrupts masked.
    Masked = 4,
    /// Preempt count above 0.
    Section = 5,
}

/// Input of [`slice`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SliceIn {
    /// In which everyone who waits should have run once, ns.
    pub period: u64,
    /// Shortest slice, ns.
    pub floor: u64,
    /// Longest slice, ns.
    pub ceiling: u64,
    /// Tasks that wait in the CPU's queue, without this one.
    pub waiting: u32,
}

/// Bounds of an extension.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ExtendLimits {
    /// After so long the vCPU is looked at again, ns.
    pub step: u64,
    /// Most that one event may be extended, ns.
    pub event: u64,
    /// Most that a full bucket holds, ns.
    pub burst: u64,
    /// Refill, parts per million of wall time.
    pub rate_ppm: u64,
}

/// A vCPU's account of extensions, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtendState {
    /// Left in the bucket.
    pub tokens: u64,
    /// When it was last filled up.
    pub refilled: u64,
    /// Extended so far in this event.
    pub used: u64,
    /// Not yet taken off a later slice.
    pub debt: u64,
}

/// Outcome of [`extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// So many nanoseconds more.
    Granted(u64),
    /// The guest is in no critical section.
    NotCritical,
    /// This event's bound is reached.
    EventSpent,
    /// The vCPU's bucket is empty.
    BudgetSpent,
}

/// Input of [`yield_to`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct YieldIn {
    /// The target stands in a queue.
    pub waiting: u32,
    /// Of the same VM.
    pub sibling: u32,
    /// May run on the yielder's CPU.
    pub allowed: u32,
    /// Its [`Critical`] level when it was switched out.
    pub level: u32,
    /// An interrupt waits for it.
    pub owes: u32,
    /// The guest says that the yielder spins for it.
    pub named: u32,
    /// A CPU is to take it next, by another yield.
    pub next: u32,
    /// Since the CPU last went to somebody by his clock, ns.
    pub turn: u64,
}

/// Bounds of a directed yield.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct YieldLimits {
    /// How long a turn lasts, ns.
    pub turn: u64,
}

/// Outcome of [`lend`], in the order of `enum entrain_lend_verdict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lend {
    /// It is looked at again.
    GoesOn,
    /// It gives the CPU back.
    Leaves,
    /// Nobody waits: it stays as any other.
    Over,
}

/// Outcome of [`yield_to`], in the order of `enum entrain_yield_verdict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yield {
    /// The target runs next.
    Honoured,
    /// It runs already, or is not queued.
    NotWaiting,
    /// It was preempted where it can hold no lock.
    HoldsNothing,
    /// Another yield already put it to the front.
    JustBoosted,
    /// It belongs to another VM.
    Foreign,
    /// The turn is over.
    Unfair,
    /// Its affinity excludes the CPU.
    NotAllowed,
}

/// Input of [`preempt`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PreemptIn {
    /// Virtual time of the task that wakes.
    pub vtime: u64,
    /// Of the one that runs, charged up to now.
    pub victim_vtime: u64,
    /// Since it came to this CPU, ns.
    pub victim_ran: u64,
}

/// Bounds of a wake-up preemption.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PreemptLimits {
    /// Virtual time that the victim must be ahead, ns.
    pub granularity: u64,
    /// A victim stays at least so long, ns.
    pub min_run: u64,
}

/// What the timers of one vCPU have been; the default at the start.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Tick {
    /// When the last one expired, ns of any clock that the guest's follows.
    pub at: u64,
    /// Of the tick, as far as is known, ns; 0: nothing is.
    pub period: u64,
    /// Periods in which a tick has followed on a tick, since another timer expired; their sum, ns.
    pub row: u64,
    /// 1: the last one came one period after the one before.
    pub once: u32,
    /// 1: the period is known for sure.
    pub known: u32,
}

mod ffi {
    use super::*;
    unsafe extern "C" {
        pub(super) safe fn entrain_n_queue_vtime(queue: u64, running: u64, waits: c_int, first: u64) -> u64;
        pub(super) safe fn entrain_n_move_vtime(vtime: u64, from: u64, to: u64, keep: u64) -> u64;
        pub(super) safe fn entrain_n_bounded_vtime(vtime: u64, furthest: u64, behind: u64) -> u64;
        pub(super) safe fn entrain_n_wake_vtime(vtime: u64, queue: u64, credit: u64, debt: u64) -> u64;
        pub(super) safe fn entrain_n_time_of(vtime: u64, share: u64) -> u64;
        pub(super) safe fn entrain_n_preempt_after(input: &PreemptIn, limits: &PreemptLimits, share: u64) -> u64;
        pub(super) safe fn entrain_n_cost(mean: u64, sample: u64) -> u64;
        pub(super) safe fn entrain_n_least(least: u64, sample: u64) -> u64;
        pub(super) safe fn entrain_n_costs(mean: u64, times: u64, most: u64) -> u64;
        pub(super) safe fn entrain_n_tick_alone(tick: &mut Tick, at: u64) -> c_int;
        pub(super) safe fn entrain_n_lead(debt: u64, wait: u64, share: u64, load: u64) -> u64;
        pub(super) safe fn entrain_n_led_vtime(vtime: u64, queue: u64, lead: u64) -> u64;
        pub(super) safe fn entrain_n_latency_credit(target: u64, period: u64) -> u64;
        pub(super) safe fn entrain_n_share(group: u64, part: u64, active: u64) -> u64;
        pub(super) safe fn entrain_n_charge_share(ran: u64, share: u64) -> u64;
        pub(super) safe fn entrain_n_slice(input: &SliceIn) -> u64;
        pub(super) safe fn entrain_n_extend(
            state: &mut ExtendState,
            limits: &ExtendLimits,
            level: u32,
            now: u64,
            step: &mut u64,
        ) -> c_int;
        pub(super) safe fn entrain_n_extend_event(event: u64, peace: u64, used: u64, due: u64) -> u64;
        pub(super) safe fn entrain_n_extend_return(state: &mut ExtendState, limits: &ExtendLimits, unused: u64);
        pub(super) safe fn entrain_n_extend_repay(state: &mut ExtendState, slice: u64, floor: u64) -> u64;
        pub(super) safe fn entrain_n_yield(input: &YieldIn, limits: &YieldLimits) -> c_int;
        pub(super) safe fn entrain_n_lend(level: u32, others_wait: u32) -> c_int;
        pub(super) safe fn entrain_n_urgent(word: u64) -> c_int;
        pub(super) safe fn entrain_n_granularity(granularity: u64, urgent: c_int) -> u64;
        pub(super) safe fn entrain_n_preempt(input: &PreemptIn, limits: &PreemptLimits) -> c_int;
    }
}

/// A queue's virtual time after a task has begun to run, given the clock of the first that waits.
pub fn queue_vtime(queue: u64, running: u64, first: Option<u64>) -> u64 {
    ffi::entrain_n_queue_vtime(queue, running, first.is_some().into(), first.unwrap_or_default())
}

/// The virtual time of a task that goes from one CPU to another, given their clocks: it keeps its lag, and its own clock
/// where those are apart by no more than `keep`.
pub fn move_vtime(vtime: u64, from: u64, to: u64, keep: u64) -> u64 {
    ffi::entrain_n_move_vtime(vtime, from, to, keep)
}

/// A virtual time that counts as no further behind the furthest than so.
pub fn bounded_vtime(vtime: u64, furthest: u64, behind: u64) -> u64 {
    ffi::entrain_n_bounded_vtime(vtime, furthest, behind)
}

/// The virtual time of a task that wakes up.
pub fn wake_vtime(vtime: u64, queue: u64, credit: u64, debt: u64) -> u64 {
    ffi::entrain_n_wake_vtime(vtime, queue, credit, debt)
}

/// The time on a CPU that costs so much virtual time, ns; at most 10 s.
pub fn time_of(vtime: u64, share: u64) -> u64 {
    ffi::entrain_n_time_of(vtime, share)
}

/// How far ahead of its queue a clock may be, virtual ns: `debt` ns of its own, and what `load` comes in `wait` ns.
pub fn lead(debt: u64, wait: u64, share: u64, load: u64) -> u64 {
    ffi::entrain_n_lead(debt, wait, share, load)
}

/// The virtual time of a task that goes on waiting.
pub fn led_vtime(vtime: u64, queue: u64, lead: u64) -> u64 {
    ffi::entrain_n_led_vtime(vtime, queue, lead)
}

/// Credit that serves a waking task within `target`, where everybody is served once in `period`; ns.
pub fn latency_credit(target: u64, period: u64) -> u64 {
    ffi::entrain_n_latency_credit(target, period)
}

/// A task's part of its group's share, in 1/1024 of a weight.
pub fn share(group: u64, part: u64, active: u64) -> u64 {
    ffi::entrain_n_share(group, part, active)
}

/// Virtual time for `ran` ns at a share in 1/1024 of a weight.
pub fn charge_share(ran: u64, share: u64) -> u64 {
    ffi::entrain_n_charge_share(ran, share)
}

/// How long a task may run, ns.
pub fn slice(input: &SliceIn) -> u64 {
    ffi::entrain_n_slice(input)
}

/// Whether a slice that ended is extended by a step.
pub fn extend(state: &mut ExtendState, limits: &ExtendLimits, level: u32, now: u64) -> Extend {
    let mut step = 0;
    match ffi::entrain_n_extend(state, limits, level, now, &mut step) {
        0 => Extend::Granted(step),
        1 => Extend::NotCritical,
        2 => Extend::EventSpent,
        _ => Extend::BudgetSpent,
    }
}

/// The bound of an event, ns, where a guest's timer falls due in `due` ns whose vCPU waits; at least `peace`.
pub fn extend_event(event: u64, peace: u64, used: u64, due: u64) -> u64 {
    ffi::entrain_n_extend_event(event, peace, used, due)
}

/// Gives back what was not used of a step.
pub fn extend_return(state: &mut ExtendState, limits: &ExtendLimits, unused: u64) {
    ffi::entrain_n_extend_return(state, limits, unused);
}

/// Takes what is owed off a new slice; returns the slice.
pub fn extend_repay(state: &mut ExtendState, slice: u64, floor: u64) -> u64 {
    ffi::entrain_n_extend_repay(state, slice, floor)
}

/// Whether a directed yield is followed.
pub fn yield_to(input: &YieldIn, limits: &YieldLimits) -> Yield {
    match ffi::entrain_n_yield(input, limits) {
        0 => Yield::Honoured,
        1 => Yield::NotWaiting,
        2 => Yield::HoldsNothing,
        3 => Yield::JustBoosted,
        4 => Yield::Foreign,
        5 => Yield::Unfair,
        _ => Yield::NotAllowed,
    }
}

/// Whether a vCPU that was let in since it holds something goes on.
pub fn lend(level: u32, others_wait: bool) -> Lend {
    match ffi::entrain_n_lend(level, others_wait.into()) {
        0 => Lend::GoesOn,
        1 => Lend::Leaves,
        _ => Lend::Over,
    }
}

/// Whether a guest's `latency` word, any number, makes a wake-up of its vCPU an urgent one.
pub fn urgent(word: u64) -> bool {
    ffi::entrain_n_urgent(word) != 0
}

/// Virtual time that a victim must be ahead of one that wakes, ns, given that of a wake-up that is not urgent.
pub fn granularity(granularity: u64, urgent: bool) -> u64 {
    ffi::entrain_n_granularity(granularity, urgent.into())
}

/// Whether a task that wakes takes the CPU.
pub fn preempt(input: &PreemptIn, limits: &PreemptLimits) -> bool {
    ffi::entrain_n_preempt(input, limits) != 0
}

/// After how many ns [`preempt`] says yes, if the victim, of this share, runs on.
pub fn preempt_after(input: &PreemptIn, limits: &PreemptLimits, share: u64) -> u64 {
    ffi::entrain_n_preempt_after(input, limits, share)
}

/// The mean cost of a switch, ns, after one more sample; 0: none is known.
pub fn cost(mean: u64, sample: u64) -> u64 {
    ffi::entrain_n_cost(mean, sample)
}

/// What something takes at least, ns, after one more sample that contains other work as well; 0: none is known.
pub fn least(least: u64, sample: u64) -> u64 {
    ffi::entrain_n_least(least, sample)
}

/// So many times the cost of a switch, at most `most`, ns.
pub fn costs(mean: u64, times: u64, most: u64) -> u64 {
    ffi::entrain_n_costs(mean, times, most)
}

/// Whether a vCPU's next timer, which expires `at` (ns, always of the same clock), is its kernel's tick, and it has had
/// no other for long.
pub fn tick_alone(tick: &mut Tick, at: u64) -> bool {
    ffi::entrain_n_tick_alone(tick, at) != 0
}
