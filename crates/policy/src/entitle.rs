//! How much CPU time each VM of a host can have: native bindings of `entitle.h`.

use std::os::raw::c_int;

/// One VM; all amounts in 1/1024 pCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Vm {
    /// cgroup v2 weight, 1..=10000.
    pub weight: u64,
    /// What it would use now.
    pub demand: u64,
    /// The most it can use: its vCPUs, or its `cpu.max` when that is less.
    pub ceiling: u64,
    demand_before: u64,
    weight_from: u64,
}

impl Vm {
    /// A VM with these values, each clamped to its range.
    pub fn new(weight: u64, demand: u64, ceiling: u64) -> Vm {
        let mut vm = Vm { weight, demand, ceiling, ..Vm::default() };
        ffi::entitle_n_clamp(&mut vm);
        vm
    }
}

/// What a VM gets; in 1/1024 pCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entitlement {
    /// For what it wants now.
    pub share: u64,
    /// If it wanted all it can use: what the guest is told.
    pub entitlement: u64,
}

/// A VM's weight and the least that it is to have; see [`raise`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Floor {
    /// cgroup v2 weight, 1..=10000.
    pub weight: u64,
    /// 1/1024 pCPU; 0 = none.
    pub minimum: u64,
    raised: u64,
}

impl Floor {
    /// A VM with these values.
    pub fn new(weight: u64, minimum: u64) -> Floor {
        Floor { weight, minimum, raised: 0 }
    }
}

mod ffi {
    use super::*;
    unsafe extern "C" {
        pub(super) safe fn entitle_n_clamp(vm: &mut Vm);
        pub(super) safe fn entitle_n_order(a: &Vm, b: &Vm) -> c_int;
        pub(super) unsafe fn entitle_n_prepare(vms: *mut Vm, nr: u32);
        pub(super) unsafe fn entitle_n_share(vms: *const Vm, nr: u32, own: u32, demand: u64, capacity: u64) -> u64;
        pub(super) unsafe fn entitle_n_entitlement(vms: *const Vm, nr: u32, own: u32, capacity: u64) -> u64;
        pub(super) unsafe fn entitle_n_raise(vms: *mut Floor, nr: u32, capacity: u64) -> c_int;
        pub(super) safe fn entitle_n_minima(capacity: u64) -> u64;
        pub(super) safe fn entitle_n_demand(runnable: u64, period: u64, wants: u32) -> u64;
    }
}

/// VMs, or groups of them, that compete with one another and with nobody else.
#[derive(Debug, Clone, Default)]
pub struct Level {
    sorted: Vec<Vm>,
    /// Where in `sorted` each is.
    places: Vec<u32>,
}

impl Level {
    /// O(n log n): a sort.
    pub fn new(vms: &[Vm]) -> Self {
        let mut order: Vec<usize> = (0..vms.len()).collect();
        order.sort_by(|&a, &b| ffi::entitle_n_order(&vms[a], &vms[b]).cmp(&0));
        let mut sorted: Vec<Vm> = order.iter().map(|&index| vms[index]).collect();
        let nr = u32::try_from(sorted.len()).expect("fewer than 2^32 VMs");
        // SAFETY: the pointer and the length are those of one vector, which nothing else refers to.
        unsafe { ffi::entitle_n_prepare(sorted.as_mut_ptr(), nr) };
        let mut places = vec![0; vms.len()];
        order.iter().zip(0..).for_each(|(&index, place)| places[index] = place);
        Self { sorted, places }
    }

    /// What number `index` gets of `capacity` (1/1024 pCPU) if it wants `demand` and the others what they want: weighted
    /// max-min. O(log n).
    pub fn share(&self, index: usize, demand: u64, capacity: u64) -> u64 {
        let (place, nr) = (self.places[index], self.sorted.len() as u32);
        // SAFETY: pointer and length are those of one vector, read only; `place` is below `nr`.
        unsafe { ffi::entitle_n_share(self.sorted.as_ptr(), nr, place, demand, capacity) }
    }

    /// The same if it wants what it was said to want.
    pub fn present_share(&self, index: usize, capacity: u64) -> u64 {
        self.share(index, self.sorted[self.places[index] as usize].demand, capacity)
    }

    /// What it may grow to: the same if it wants all it can use.
    pub fn entitlement(&self, index: usize, capacity: u64) -> u64 {
        let (place, nr) = (self.places[index], self.sorted.len() as u32);
        // SAFETY: as above.
        unsafe { ffi::entitle_n_entitlement(self.sorted.as_ptr(), nr, place, capacity) }
    }
}

/// Weighted max-min shares of `capacity` (1/1024 pCPU) among `vms`; the answers are in the order of `vms`.
///
/// O(n log n): a sort, and a binary search per VM.
pub fn entitle(vms: &[Vm], capacity: u64) -> Vec<Entitlement> {
    let level = Level::new(vms);
    let of = |index| Entitlement {
        share: level.present_share(index, capacity),
        entitlement: level.entitlement(index, capacity),
    };
    (0..vms.len()).map(of).collect()
}

/// A VM's demand in a period, in 1/1024 pCPU.
///
/// `runnable`: ns that its vCPUs ran or waited for a pCPU; `period`: ns; `wants`: vCPUs that a cooperating guest asks
/// for, 0 for others.
pub fn demand(runnable: u64, period: u64, wants: u32) -> u64 {
    ffi::entitle_n_demand(runnable, period, wants)
}

/// Raises weights until each VM's part by weight of `capacity` (1/1024 pCPU) is its minimum, as little as is needed.
/// False: the minima do not fit, and all were lowered by the same factor.
pub fn raise(vms: &mut [Floor], capacity: u64) -> bool {
    let nr = u32::try_from(vms.len()).expect("fewer than 2^32 VMs");
    // SAFETY: the pointer and the length are those of one slice, which nothing else refers to.
    unsafe { ffi::entitle_n_raise(vms.as_mut_ptr(), nr, capacity) != 0 }
}

/// Most that all minima of a host of this capacity together may be, 1/1024 pCPU.
pub fn most_minima(capacity: u64) -> u64 {
    ffi::entitle_n_minima(capacity)
}
