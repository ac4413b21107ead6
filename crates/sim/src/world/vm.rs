//! VMs come into the world: vCPUs get threads, agents pair with the daemon, and what both do now and then.

use std::ffi::c_void;

use super::kvm::{Arch, Vcpu, Vm};
use super::machine::MachineSpec;
use super::{HOST, MachineId, World};
use crate::kernel::group::GroupId;
use crate::kernel::mask::CpuMask;
use crate::kernel::{TaskId, TaskSpec};
use crate::native::{TaskPtr, VcpuFields};
use crate::program::Step;

/// What a new VM is like.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Its guest.
    pub guest: MachineSpec,
    /// The cgroup of its vCPUs on the host.
    pub group: GroupId,
    /// Whether its agent pairs with the host's daemon.
    pub paired: bool,
    /// Its architecture.
    pub arch: Arch,
    /// Where each vCPU may run; `None`: anywhere.
    pub pins: Option<Vec<CpuMask>>,
}

impl World {
    /// Adds a VM. Its vCPUs begin to run at once, and halt.
    pub fn add_vm(&mut self, spec: &VmSpec) -> MachineId {
        let m = self.add_machine(&spec.guest);
        let vm = self.vms.len() as u16;
        let cpus = spec.guest.shape.cpus();
        let first = self.vms.last().and_then(|vm| vm.vcpus.last()).map_or(0, |vcpu| vcpu.index + 1);
        let most: u32 = self.machines[0].kernel.object_call(|object| object.get("sim_max_vcpus"));
        if (first..first + cpus).contains(&most) {
            self.notes
                .push(format!("the host's daemon watches {most} vCPUs: those from guest {vm} on it does not know"));
        }
        self.vms.push(Vm {
            machine: m,
            vcpus: Vec::new(),
            last_boosted: 0,
            arch: spec.arch,
            paired: spec.paired && first < most,
            yields: 0,
        });
        let mut tgid = 0;
        for vcpu in 0..cpus {
            let fields = self.new_kvm_vcpu(vcpu, spec.arch);
            let allowed = spec.pins.as_ref().map(|pins| pins[vcpu as usize].clone());
            let task =
                TaskSpec { tgid, weight: 100, group: spec.group, allowed, realtime: false, kvm_vcpu: fields.kvm_vcpu };
            let task = self.add_task(HOST, task, &[Step::Guest], self.now);
            tgid = self.machines[0].kernel.task(task).tgid;
            self.state_mut(HOST, task).vcpu = Some((vm, vcpu));
            let index = first + vcpu;
            if index < most {
                self.track(index, task, fields.kvm_vcpu);
            }
            if spec.paired && index < most {
                self.pair(m, vcpu, index, task);
            }
            self.vms[vm as usize].vcpus.push(Vcpu {
                task,
                poll_ns: 0,
                polls: 0,
                halted_at: 0,
                preempted: false,
                ready: false,
                dy_eligible: false,
                traps: true,
                fields,
                index,
            });
        }
        m
    }

    fn new_kvm_vcpu(&mut self, id: u32, arch: Arch) -> VcpuFields {
        let kernel = &mut self.machines[0].kernel;
        kernel.object_call(|object| {
            let mut fields = std::mem::MaybeUninit::<VcpuFields>::uninit();
            // SAFETY: the function has this type in native/host.c and fills all fields.
            unsafe {
                (*object.context()).arm64 = u32::from(arch == Arch::Arm64);
                (*object.context()).intel = u32::from(arch == Arch::Intel);
                let new: unsafe extern "C" fn(i32, bool, *mut VcpuFields) = object.function("sim_vcpu_new");
                new(id as i32, arch == Arch::Apicv, fields.as_mut_ptr());
                fields.assume_init()
            }
        })
    }

    fn track(&mut self, index: u32, task: TaskId, kvm_vcpu: *mut c_void) {
        let kernel = &mut self.machines[0].kernel;
        let pointer = kernel.pointer(task);
        let error = kernel.object_call(|object| {
            // SAFETY: the function has this type in native/host.c; the task and the vCPU are the object's.
            unsafe {
                let track: unsafe extern "C" fn(u32, TaskPtr, *mut c_void) -> i32 = object.function("sim_track");
                track(index, pointer, kvm_vcpu)
            }
        });
        assert_eq!(error, 0, "observe.bpf.c tracks a vCPU");
    }

    /// The agent offers a page, the daemon pairs with it.
    fn pair(&mut self, m: MachineId, vcpu: u32, index: u32, task: TaskId) {
        let seed = self.rng.next() | 1;
        let guest = &mut self.machines[m.0 as usize];
        let preempt = guest.preempt_words.as_mut_ptr().wrapping_add(vcpu as usize);
        let page = guest.kernel.object_call(|object| {
            // SAFETY: the function has this type in native/guest.c; pages are asked for in order, as it expects.
            unsafe {
                let page: unsafe extern "C" fn(u32, u64) -> *mut c_void = object.function("sim_page");
                page(vcpu, seed)
            }
        });
        let kernel = &mut self.machines[0].kernel;
        let pointer = kernel.pointer(task);
        kernel.object_call(|object| {
            // SAFETY: the function has this type in native/host.c. The page and the preempt count live as long as the
            // guest, which lives as long as the world; nothing else is borrowed from them while the host's object runs.
            unsafe {
                let pair: unsafe extern "C" fn(u32, TaskPtr, *mut c_void, *mut u64) = object.function("sim_pair");
                pair(index, pointer, page, preempt);
            }
        });
    }

    /// How often a guest that Entrain schedules has parked a vCPU.
    pub fn parks(&mut self, m: MachineId) -> u64 {
        self.guest_count(m, "sim_parks")
    }

    /// How many vCPUs of a guest that Entrain schedules count as crowded, and are not looked at any more.
    pub fn forgotten(&mut self, m: MachineId) -> u64 {
        self.guest_count(m, "sim_forgotten")
    }

    /// A count over all vCPUs, by one of the functions of native/guest.c.
    fn guest_count(&mut self, m: MachineId, name: &str) -> u64 {
        self.machines[m.0 as usize].kernel.object_call(|object| {
            // SAFETY: the functions that are named above have this type in native/guest.c.
            unsafe {
                let count: unsafe extern "C" fn() -> u64 = object.function(name);
                count()
            }
        })
    }

    /// What the host's daemon and the guests' agents do now and then.
    pub(super) fn daemon(&mut self) {
        let pcpus = u64::from(self.machines[0].kernel.topo.cpus());
        let vms = self.vms.len() as u64;
        let mut entitlement = Vec::new();
        for vm in &self.vms {
            let vcpus = vm.vcpus.len() as u64;
            // Equal VMs: what entitle.h works out when all of them want all they can use.
            let own = (vcpus * 1024).min(pcpus * 1024 / vms) as u32;
            debug_assert!(vm.vcpus.iter().enumerate().all(|(i, v)| v.index as usize == entitlement.len() + i));
            entitlement.resize(entitlement.len() + vm.vcpus.len(), own);
        }
        self.follow_cpus();
        self.enter(HOST, 0);
        self.machines[0].kernel.object_call(|object| {
            entitlement.truncate(object.get::<u32>("sim_max_vcpus") as usize);
            // SAFETY: the function has this type in native/host.c; there is a figure for each vCPU.
            unsafe {
                let tick: unsafe extern "C" fn(u32, *mut u32) = object.function("sim_daemon_tick");
                tick(entitlement.len() as u32, entitlement.as_mut_ptr());
            }
        });
        for vm in (0..self.vms.len()).filter(|vm| self.vms[*vm].paired) {
            self.machines[vm + 1].kernel.object_call(|object| {
                // SAFETY: the function has this type in native/guest.c.
                unsafe {
                    let beat: unsafe extern "C" fn() = object.function("sim_agent_beat");
                    beat();
                }
            });
        }
    }
}
