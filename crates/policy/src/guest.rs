//! The guest scheduler's decisions: native bindings of `guest_view.h`, `guest_wake.h`, `guest_preempt.h`,
//! `guest_load.h`, `guest_mode.h` and `guest_vcpud.h`.
//!
//! Fields, units and ranges are those of the headers.

use std::os::raw::c_int;

/// What the host says a vCPU does (`enum entrain_vcpu_state`).
pub mod state {
    /// Nothing usable was published.
    pub const UNKNOWN: u32 = 0;
    /// On a pCPU.
    pub const RUNNING: u32 = 1;
    /// Blocked.
    pub const HALTED: u32 = 2;
    /// Waits for a pCPU.
    pub const PREEMPTED: u32 = 3;
}

/// A price that no usable vCPU has (`GUEST_PRICE_NEVER`).
pub const PRICE_NEVER: u64 = u64::MAX;

/// One vCPU as the guest sees it; see [`vcpu_view`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuView {
    /// One of [`state`].
    pub state: u32,
    /// Kicked now, it would run at once.
    pub instant: u32,
    /// The pCPU it is on, or was on last.
    pub pcpu: u32,
    /// It runs on an extended slice.
    pub extended: u32,
}

/// The guest's memory of the host's heartbeat.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Heartbeat {
    /// The value seen last.
    pub last: u64,
    /// When it changed, ns; 0 = never.
    pub seen: u64,
}

/// A vCPU that could take a task; input of [`wake_price`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Candidate {
    /// What the host says of it.
    pub view: VcpuView,
    /// It may not be used.
    pub parked: u32,
    /// The guest's kernel idles there.
    pub idle: u32,
    /// The task ran there last.
    pub previous: u32,
    /// It ran at another last-level cache.
    pub far: u32,
    /// Neither idle nor running a task of the scheduler's.
    pub held: u32,
    /// Tasks that wait there.
    pub queued: u32,
    /// How long tasks run there at a time, ns.
    pub burst: u64,
    /// How long the host lets vCPUs of this guest wait, ns; 0 = not known.
    pub host_wait: u64,
    /// Of its pCPU, 1..1024.
    pub capacity: u32,
    /// Share of its time that was stolen lately, 1/1024.
    pub stolen: u32,
}

/// Input of [`take_over`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Takeover {
    /// One of [`state`], of the vCPU whose queue is looked at.
    pub victim_state: u32,
    /// It is parked.
    pub victim_parked: u32,
    /// Its kernel idles: a kick is on the way.
    pub victim_idle: u32,
    /// It would run at once.
    pub victim_instant: u32,
    /// The looking vCPU has work of its own.
    pub own_work: u32,
    /// Virtual time of that work.
    pub own_vtime: u64,
    /// Virtual time of the head of the other's queue.
    pub head_vtime: u64,
    /// Advantage that a move between running vCPUs needs, ns.
    pub slice: u64,
    /// The head starts sooner where it is ([`wake_stays`]).
    pub stays: u32,
}

/// What the guest's own steal time says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct VcpudFelt {
    most: u32,
    grew: u32,
    window_at: u64,
    ran: u64,
    stolen: u64,
    grow_after: u64,
    pause: u64,
    turn_after: u64,
    turn_pause: u64,
    suffers: u32,
    pad: u32,
}

/// The controller's memory; the default is the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Vcpud {
    /// vCPUs in use.
    pub keep: u32,
    /// From which one they are counted.
    pub first: u32,
    entitled: u32,
    less: u32,
    less_since: u64,
    more_since: u64,
    less_ran: u64,
    less_stolen: u64,
    room_since: u64,
    room_wait: u64,
    roomed_at: u64,
    felt: VcpudFelt,
}

/// Input of [`Vcpud::step`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct VcpudInput {
    /// Monotonic clock, ns, not 0.
    pub now: u64,
    /// 1..256.
    pub nr_vcpus: u32,
    /// vCPUs that pinned tasks need.
    pub floor: u32,
    /// Runnable tasks.
    pub wants: u32,
    /// vCPUs not in use that the host would run at once.
    pub room: u32,
    /// 1/1024 pCPU; -1 = the host says nothing.
    pub entitlement: i64,
    /// ns that the kept vCPUs ran since the last step.
    pub ran: u64,
    /// ns that the host withheld from them.
    pub stolen: u64,
    /// Any number, another one each time.
    pub random: u64,
}

/// The memory of calm and contended; the default is the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mode {
    wanted: u64,
    stolen: u64,
    contended_at: u64,
    contended: u32,
}

/// Input of [`Mode::step`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ModeInput {
    /// Monotonic clock, ns, not 0.
    pub now: u64,
    /// ns that the vCPUs ran since the last step.
    pub ran: u64,
    /// ns that the host withheld from them.
    pub stolen: u64,
    /// Of the step, ns.
    pub length: u64,
    /// vCPUs that the host holds back at this moment.
    pub held: u32,
    /// vCPUs that are online and not in use.
    pub parked: u32,
}

mod ffi {
    use super::*;
    unsafe extern "C" {
        pub(super) safe fn guest_n_mode_step(mode: &mut Mode, input: &ModeInput) -> c_int;
        pub(super) safe fn guest_n_withheld(stolen: u64, length: u64) -> u64;
        pub(super) safe fn guest_n_host_waits(changes: u64, preemptions: u64) -> u64;
        pub(super) safe fn guest_n_host_wait_mean(mean: u64, waited: u64, waits: u64) -> u64;
        pub(super) safe fn guest_n_yield_charge(rest: u64, share: u64) -> u64;
        pub(super) safe fn guest_n_vcpu_view(features: u64, state: u64, instant: u64, view: &mut VcpuView);
        pub(super) safe fn guest_n_host_alive(heartbeat: &mut Heartbeat, beat: u64, now: u64) -> c_int;
        pub(super) safe fn guest_n_scale(features: u64, value: u64) -> u32;
        pub(super) safe fn guest_n_entitlement(features: u64, value: u64, nr_vcpus: u32) -> i64;
        pub(super) safe fn guest_n_wake_price(candidate: &Candidate, util: u32) -> u64;
        pub(super) safe fn guest_n_wake_direct(candidate: &Candidate) -> c_int;
        pub(super) safe fn guest_n_take_over(takeover: &Takeover) -> c_int;
        pub(super) safe fn guest_n_wake_stays(stay: u64, ahead: u64, kick: u64) -> c_int;
        pub(super) safe fn guest_n_slice(waiting: u32) -> u64;
        pub(super) safe fn guest_n_debt(share: u64, total: u64) -> u64;
        pub(super) safe fn guest_n_peace(cost: u64, ran: u64) -> u64;
        pub(super) safe fn guest_n_preempts(waking: u64, running: u64) -> c_int;
        pub(super) safe fn guest_n_load_update(load: u64, worked: u64, elapsed: u64, capacity: u32, perf: u32) -> u64;
        pub(super) safe fn guest_n_util(load: u64) -> u32;
        pub(super) safe fn guest_n_ramp(worked: u64) -> u32;
        pub(super) safe fn guest_n_task_claim(load: u64, est: u32, worked: u64) -> u32;
        pub(super) safe fn guest_n_task_est(est: u32, load: u64, worked: u64, elapsed: u64) -> u32;
        pub(super) safe fn guest_n_io_boost(boost: u32, waits_for_io: c_int, elapsed: u64) -> u32;
        pub(super) safe fn guest_n_vcpu_claim(load: u64, idle_for: u64, running: u32, waiting: i64) -> u32;
        pub(super) safe fn guest_n_real_time(ran: u64, stolen: u64) -> u64;
        pub(super) safe fn guest_n_mean(mean: u64, value: u64) -> u64;
        pub(super) safe fn guest_n_stolen_share(worked: u64, stolen: u64) -> u32;
        pub(super) safe fn guest_n_vcpud_step(vcpud: &mut Vcpud, input: &VcpudInput) -> u32;
        pub(super) safe fn guest_n_vcpud_kept(pinned: c_int, pinned_all: u32, free_before: u32, keep: u32) -> c_int;
    }
}

/// Decodes the host's fast words.
pub fn vcpu_view(features: u64, state: u64, instant: u64) -> VcpuView {
    let mut view = VcpuView::default();
    ffi::guest_n_vcpu_view(features, state, instant, &mut view);
    view
}

/// Whether the host's words may be used at `now` (ns, not 0).
pub fn host_alive(heartbeat: &mut Heartbeat, beat: u64, now: u64) -> bool {
    ffi::guest_n_host_alive(heartbeat, beat, now) != 0
}

/// Capacity or performance level, 1..1024.
pub fn scale(features: u64, value: u64) -> u32 {
    ffi::guest_n_scale(features, value)
}

/// Entitlement in 1/1024 pCPU, `None` when the host publishes none.
pub fn entitlement(features: u64, value: u64, nr_vcpus: u32) -> Option<u64> {
    u64::try_from(ffi::guest_n_entitlement(features, value, nr_vcpus)).ok()
}

/// What it costs to let the task wait there, ns; [`PRICE_NEVER`] when it may not.
pub fn wake_price(candidate: &Candidate, util: u32) -> u64 {
    ffi::guest_n_wake_price(candidate, util)
}

/// Whether the task may be put where nobody can take it over.
pub fn wake_direct(candidate: &Candidate) -> bool {
    ffi::guest_n_wake_direct(candidate) != 0
}

/// Whether a task had better wait for a vCPU where tasks run for `stay` ns at a time and `ahead` wait before it, than have
/// an idle one kicked, which costs `kick` ns.
pub fn wake_stays(stay: u64, ahead: u64, kick: u64) -> bool {
    ffi::guest_n_wake_stays(stay, ahead, kick) != 0
}

/// Whether another vCPU's waiting task runs here now.
pub fn take_over(takeover: &Takeover) -> bool {
    ffi::guest_n_take_over(takeover) != 0
}

impl Mode {
    /// One step; whether the guest is contended.
    pub fn step(&mut self, input: &ModeInput) -> bool {
        ffi::guest_n_mode_step(self, input) != 0
    }
}

/// What was withheld from one vCPU in a step of that length, ns.
pub fn host_withheld(stolen: u64, length: u64) -> u64 {
    ffi::guest_n_withheld(stolen, length)
}

/// How often a vCPU waited for a pCPU in so many changes of its state.
pub fn host_waits(changes: u64, preemptions: u64) -> u64 {
    ffi::guest_n_host_waits(changes, preemptions)
}

/// How long the host lets a vCPU wait at a time, mean, ns.
pub fn host_wait_mean(mean: u64, waited: u64, waits: u64) -> u64 {
    ffi::guest_n_host_wait_mean(mean, waited, waits)
}

/// What a task that yields gives up of its clock, virtual ns; `rest` of its slice in ns.
pub fn yield_charge(rest: u64, share: u64) -> u64 {
    ffi::guest_n_yield_charge(rest, share)
}

/// Slice with `waiting` others in the queue, ns.
pub fn slice(waiting: u32) -> u64 {
    ffi::guest_n_slice(waiting)
}

/// Most virtual time that a task owes when it joins a queue; shares in 1/1024 of a weight.
pub fn debt(share: u64, total: u64) -> u64 {
    ffi::guest_n_debt(share, total)
}

/// How long a task that has worked so long (ns) since it woke up is left in peace on a vCPU where a switch costs `cost`
/// ns (0: it is not known), ns.
pub fn peace(cost: u64, ran: u64) -> u64 {
    ffi::guest_n_peace(cost, ran)
}

/// Whether a waking task takes the vCPU from the running one, by their virtual times.
pub fn preempts(waking: u64, running: u64) -> bool {
    ffi::guest_n_preempts(waking, running) != 0
}

/// What a task that has worked so long (ns) without a sleep is taken to need, 0..=1024.
pub fn ramp(worked: u64) -> u32 {
    ffi::guest_n_ramp(worked)
}

/// What a task is taken to need while it runs, 0..=1024.
pub fn task_claim(load: u64, est: u32, worked: u64) -> u32 {
    ffi::guest_n_task_claim(load, est, worked)
}

/// What a task is expected to need when it wakes up, 0..=1024, after a stay of `worked` ns; `elapsed` since its last one, ns.
pub fn task_est(est: u32, load: u64, worked: u64, elapsed: u64) -> u32 {
    ffi::guest_n_task_est(est, load, worked, elapsed)
}

/// What a task is taken to need after its sleep, 0..=1024, because it waits for devices; `elapsed` since its last one, ns.
pub fn io_boost(boost: u32, waits_for_io: bool, elapsed: u64) -> u32 {
    ffi::guest_n_io_boost(boost, waits_for_io.into(), elapsed)
}

/// What a vCPU tells its host, 0..=1024.
pub fn vcpu_claim(load: u64, idle_for: u64, running: u32, waiting: i64) -> u32 {
    ffi::guest_n_vcpu_claim(load, idle_for, running, waiting)
}

/// Load after `elapsed` ns of which `worked` were real work, 0..=2^20.
pub fn load_update(load: u64, worked: u64, elapsed: u64, capacity: u32, perf: u32) -> u64 {
    ffi::guest_n_load_update(load, worked, elapsed, capacity, perf)
}

/// Utilisation of a load, 0..=1024.
pub fn util(load: u64) -> u32 {
    ffi::guest_n_util(load)
}

/// Time that the host did not take away, ns.
pub fn real_time(ran: u64, stolen: u64) -> u64 {
    ffi::guest_n_real_time(ran, stolen)
}

/// Running mean of a duration, ns.
pub fn mean(mean: u64, value: u64) -> u64 {
    ffi::guest_n_mean(mean, value)
}

/// Share of the wanted time that was stolen, 0..1024.
pub fn stolen_share(worked: u64, stolen: u64) -> u32 {
    ffi::guest_n_stolen_share(worked, stolen)
}

impl Vcpud {
    /// One step; returns the vCPUs to keep, `max(1, floor)..=nr_vcpus`.
    pub fn step(&mut self, input: &VcpudInput) -> u32 {
        ffi::guest_n_vcpud_step(self, input)
    }
}

/// Which of the vCPUs are kept: those with pinned work, filled up to `keep` from number `first` on.
pub fn vcpud_kept(pinned: &[bool], keep: u32, first: u32) -> Vec<bool> {
    let all = pinned.iter().filter(|&&pinned| pinned).count() as u32;
    let mut free = 0;
    let mut kept = vec![false; pinned.len()];
    for turn in 0..pinned.len() {
        let at = (first as usize + turn) % pinned.len();
        kept[at] = ffi::guest_n_vcpud_kept(c_int::from(pinned[at]), all, free, keep) != 0;
        free += u32::from(!pinned[at]);
    }
    kept
}
