//! KVM: vCPUs are threads of the host; they enter the guest, leave it, halt, spin. After virt/kvm/kvm_main.c.

use std::ffi::c_void;

use super::irq::Irq;
use super::lane::{ENDLESS, Segment};
use super::machine::{MachineSpec, Mode};
use super::{HOST, MachineId, World};
use crate::costs;
use crate::kernel::group::GroupId;
use crate::kernel::mask::CpuMask;
use crate::kernel::{TaskId, TaskSpec};
use crate::native::{TaskPtr, VcpuFields};
use crate::program::Step;

/// Whose registers KVM saves, and how it learns that a guest spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// A trapped WFE, while others wait for the CPU.
    Arm64,
    /// The pause filter.
    Amd,
}

/// The guest's saved state: EL1h, or level 0 with interrupts on; and EL0, or level 3.
const PSTATE_KERNEL: u64 = 5;
/// `KVM_REQ_IRQ_PENDING` of arm64 and `KVM_REQ_EVENT` of x86.
const REQUEST_INTERRUPT: u64 = 1 << 9 | 1 << 14;

/// One vCPU.
pub struct Vcpu {
    /// Its thread on the host.
    pub task: TaskId,
    poll_ns: u64,
    halted_at: u64,
    /// `vcpu->preempted`, `vcpu->ready`: it was taken off its CPU, or was woken.
    preempted: bool,
    ready: bool,
    dy_eligible: bool,
    fields: VcpuFields,
    index: u32,
}

/// One VM.
pub struct Vm {
    /// Its guest.
    pub machine: MachineId,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    last_boosted: u32,
    arch: Arch,
    paired: bool,
    /// Directed yields that were followed.
    pub yields: u64,
}

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
        let first: u32 = self.vms.iter().map(|vm| vm.vcpus.len() as u32).sum();
        self.vms.push(Vm {
            machine: m,
            vcpus: Vec::new(),
            last_boosted: 0,
            arch: spec.arch,
            paired: spec.paired,
            yields: 0,
        });
        let mut tgid = 0;
        for vcpu in 0..cpus {
            let fields = self.new_kvm_vcpu(vcpu, spec.arch);
            let allowed = spec.pins.as_ref().map(|pins| pins[vcpu as usize].clone());
            let task = TaskSpec { tgid, weight: 100, group: spec.group, allowed, kvm_vcpu: fields.kvm_vcpu };
            let task = self.add_task(HOST, task, &[Step::Guest], self.now);
            tgid = self.machines[0].kernel.task(task).tgid;
            self.state_mut(HOST, task).vcpu = Some((vm, vcpu));
            let index = first + vcpu;
            self.track(index, task, fields.kvm_vcpu);
            if spec.paired {
                self.pair(m, vcpu, index, task);
            }
            self.vms[vm as usize].vcpus.push(Vcpu {
                task,
                poll_ns: 0,
                halted_at: 0,
                preempted: false,
                ready: false,
                dy_eligible: false,
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
                let new: unsafe extern "C" fn(i32, *mut VcpuFields) = object.function("sim_vcpu_new");
                new(id as i32, fields.as_mut_ptr());
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

    /// What the hypervisor has withheld from a guest's CPU, ns.
    pub(super) fn steal_of(&self, m: MachineId, cpu: u32) -> u64 {
        if m == HOST {
            return 0;
        }
        let task = self.machines[0].kernel.task(self.vcpu(m, cpu).task);
        task.sum_wait + task.waits_since.map_or(0, |since| self.now - since)
    }

    fn vcpu(&self, m: MachineId, cpu: u32) -> &Vcpu {
        &self.vms[m.0 as usize - 1].vcpus[cpu as usize]
    }

    fn vcpu_mut(&mut self, m: MachineId, cpu: u32) -> &mut Vcpu {
        &mut self.vms[m.0 as usize - 1].vcpus[cpu as usize]
    }

    /// The guest's CPU that a thread of the host runs.
    fn guest_of(&self, task: TaskId) -> Option<(MachineId, u32)> {
        self.state(HOST, task).vcpu.map(|(vm, vcpu)| (MachineId(vm + 1), vcpu))
    }

    /// An interrupt for a vCPU that is outside its guest. `from`: the guest's CPU that sent it.
    pub(super) fn pend(&mut self, m: MachineId, cpu: u32, irq: Irq, from: Option<u32>) {
        let pending = &mut self.lane_mut(m, cpu).pending;
        if !pending.contains(&irq) {
            pending.push(irq);
        }
        let task = self.vcpu(m, cpu).task;
        let requests = self.vcpu(m, cpu).fields.requests;
        // SAFETY: the field lives as long as the host's object.
        unsafe { *requests |= REQUEST_INTERRUPT };
        match self.state(HOST, task).mode {
            Mode::Polls => {
                self.polled(m, cpu);
                self.host_goes_on(task, costs::EXIT_WORK + costs::ENTRY);
            }
            Mode::Halted => {
                // The sender's thread kicks it; a timer's interrupt comes to the CPU where the vCPU halted.
                let by = self.machines[0].kernel.task(from.map_or(task, |from| self.vcpu(m, from).task)).cpu;
                self.vcpu_mut(m, cpu).ready = true;
                self.wake(HOST, by, task, false);
            }
            _ => {}
        }
    }

    /// The thread of a vCPU that waits on its CPU goes on to the guest.
    fn host_goes_on(&mut self, task: TaskId, after: u64) {
        let cpu = self.machines[0].kernel.task(task).cpu;
        let state = self.state_mut(HOST, task);
        state.mode = Mode::Enters;
        state.left = after;
        if self.curr(HOST, cpu) == Some(task) && !matches!(self.lane(HOST, cpu).segment, Segment::Switch(_)) {
            self.pause(HOST, cpu);
            self.set_left(HOST, cpu, after);
            self.resume(HOST, cpu);
        }
    }

    /// The thread is about to enter the guest. The host's lane is paused.
    pub(super) fn guest_enter(&mut self, cpu: u32, task: TaskId) {
        let Some((m, vcpu)) = self.guest_of(task) else { return };
        self.state_mut(HOST, task).mode = Mode::InGuest;
        self.set_left(HOST, cpu, ENDLESS);
        self.resume(HOST, cpu);
        // SAFETY: the field lives as long as the host's object.
        unsafe { *self.vcpu(m, vcpu).fields.requests &= !REQUEST_INTERRUPT };
        let now = self.now;
        let lane = self.lane_mut(m, vcpu);
        lane.on = true;
        lane.since = now;
        for irq in std::mem::take(&mut lane.pending) {
            self.handle(m, vcpu, irq);
        }
        self.preempt_point(m, vcpu);
        if self.lane(m, vcpu).segment == Segment::Idle && self.lane(m, vcpu).on {
            self.guest_idles(m, vcpu);
        }
    }

    /// The host's CPU is interrupted: the thread leaves the guest, and goes back when the interrupt is over.
    pub(super) fn guest_exit(&mut self, cpu: u32) {
        let Some(task) = self.curr(HOST, cpu) else { return };
        if self.state(HOST, task).mode != Mode::InGuest {
            return;
        }
        let Some((m, vcpu)) = self.guest_of(task) else { return };
        self.pause(m, vcpu);
        self.lane_mut(m, vcpu).on = false;
        self.save_state(m, vcpu);
        self.state_mut(HOST, task).mode = Mode::Enters;
        self.set_left(HOST, cpu, costs::EXIT + costs::ENTRY);
    }

    /// What KVM saves of the guest's registers.
    fn save_state(&mut self, m: MachineId, cpu: u32) {
        let lane = self.lane(m, cpu);
        let kernel = match self.curr(m, cpu) {
            Some(task) => {
                let state = self.state(m, task);
                let spins = matches!(state.mode, Mode::SpinsForLock(_) | Mode::SpinsForAnswers(_));
                state.preempt > 0 || spins || matches!(lane.segment, Segment::Switch(_))
            }
            None => true,
        };
        let fields = self.vcpu(m, cpu).fields;
        // SAFETY: the fields live as long as the host's object.
        unsafe {
            *fields.pstate = if kernel { PSTATE_KERNEL } else { 0 };
            *fields.cpl = if kernel { 0 } else { 3 };
            *fields.rflags = 0x200;
        }
    }

    /// The guest's CPU idles: it halts, and KVM polls before it lets the thread sleep.
    pub(super) fn guest_idles(&mut self, m: MachineId, vcpu: u32) {
        let task = self.vcpu(m, vcpu).task;
        let cpu = self.machines[0].kernel.task(task).cpu;
        debug_assert_eq!(self.state(HOST, task).mode, Mode::InGuest);
        self.pause(HOST, cpu);
        let alone = self.machines[0].kernel.cpu(cpu).nr_running == 1;
        let now = self.now;
        let v = self.vcpu_mut(m, vcpu);
        v.halted_at = now;
        let poll = if alone { v.poll_ns } else { 0 };
        self.state_mut(HOST, task).mode = Mode::Polls;
        self.set_left(HOST, cpu, costs::EXIT + costs::EXIT_WORK + poll);
        self.preempt_point(HOST, cpu);
    }

    /// The poll before a halt is over: the thread sleeps. The host's lane is paused.
    pub(super) fn sleep_halted(&mut self, cpu: u32, task: TaskId) {
        self.state_mut(HOST, task).mode = Mode::Halted;
        self.set_left(HOST, cpu, 0);
        self.machines[0].kernel.block(cpu);
        self.schedule(HOST, cpu);
    }

    /// A thread whose vCPU was halted runs again. The host's lane is paused.
    pub(super) fn unhalt(&mut self, cpu: u32, task: TaskId) {
        if let Some((m, vcpu)) = self.guest_of(task) {
            self.polled(m, vcpu);
        }
        let debt = self.lane(HOST, cpu).left;
        self.state_mut(HOST, task).mode = Mode::Enters;
        self.set_left(HOST, cpu, debt + costs::EXIT_WORK + costs::ENTRY);
        self.resume(HOST, cpu);
    }

    /// Grows or shrinks the polling by how long a halt has lasted: `kvm_vcpu_halt()`.
    fn polled(&mut self, m: MachineId, vcpu: u32) {
        let now = self.now;
        let v = self.vcpu_mut(m, vcpu);
        let lasted = now - v.halted_at;
        if lasted <= v.poll_ns {
            // Long enough.
        } else if v.poll_ns > 0 && lasted > costs::HALT_POLL_MAX {
            v.poll_ns /= 2;
            if v.poll_ns < costs::HALT_POLL_START {
                v.poll_ns = 0;
            }
        } else if v.poll_ns < costs::HALT_POLL_MAX && lasted < costs::HALT_POLL_MAX {
            v.poll_ns = (v.poll_ns * 2).clamp(costs::HALT_POLL_START, costs::HALT_POLL_MAX);
        }
    }

    /// How long a task may spin before its hypervisor looks.
    pub(super) fn spin_mark(&self, m: MachineId) -> u64 {
        match m {
            HOST => ENDLESS,
            _ => match self.vms[m.0 as usize - 1].arch {
                Arch::Arm64 => costs::WFE_WINDOW,
                Arch::Amd => costs::PLE_WINDOW,
            },
        }
    }

    /// A guest's CPU has spun for so long: KVM looks for a sibling to yield to. The guest's lane is paused.
    pub(super) fn spun(&mut self, m: MachineId, vcpu: u32) {
        let mark = self.spin_mark(m);
        self.set_left(m, vcpu, mark);
        let task = self.vcpu(m, vcpu).task;
        let cpu = self.machines[0].kernel.task(task).cpu;
        let arch = self.vms[m.0 as usize - 1].arch;
        // kvm_arch_vcpu_load(): WFE is trapped unless the thread is alone on its CPU.
        if arch == Arch::Arm64 && self.machines[0].kernel.cpu(cpu).nr_running == 1 {
            return self.resume(m, vcpu);
        }
        self.pause(HOST, cpu);
        self.burden(HOST, cpu, costs::EXIT_WORK);
        self.enter(HOST, cpu);
        if arch == Arch::Arm64 {
            self.machines[0].kernel.probe_wfx();
        }
        let yielded = self.on_spin(m, vcpu, cpu);
        self.leave(HOST, cpu);
        if yielded {
            self.schedule(HOST, cpu);
        } else {
            self.preempt_point(HOST, cpu);
        }
    }

    /// `kvm_vcpu_on_spin()`: whether a yield was followed.
    fn on_spin(&mut self, m: MachineId, me: u32, cpu: u32) -> bool {
        let vm = m.0 as usize - 1;
        let count = self.vms[vm].vcpus.len() as u32;
        let spinning = self.vms[vm].vcpus[me as usize].fields.in_spin_loop;
        // SAFETY: the field lives as long as the host's object.
        unsafe { *spinning = true };
        let start = self.vms[vm].last_boosted + 1;
        let (mut tries, mut yielded) = (3, false);
        for index in (0..count).map(|i| (start + i) % count).filter(|index| *index != me) {
            self.machines[0].kernel.spent += costs::SPIN_LOOK;
            let v = &mut self.vms[vm].vcpus[index as usize];
            // SAFETY: the fields live as long as the host's object.
            let (kernel, pending, spins) = unsafe {
                let f = &v.fields;
                (*f.pstate & 0xf != 0, *f.requests & REQUEST_INTERRUPT != 0, *f.in_spin_loop)
            };
            if !v.ready || (v.preempted && !pending && !kernel) {
                continue;
            }
            let eligible = !spins || v.dy_eligible;
            if spins {
                v.dy_eligible = !v.dy_eligible;
            }
            if !eligible {
                continue;
            }
            let task = v.task;
            match self.machines[0].kernel.yield_to(cpu, task) {
                Some(true) => {
                    self.vms[vm].last_boosted = index;
                    self.vms[vm].yields += 1;
                    yielded = true;
                    break;
                }
                Some(false) => {}
                None => {
                    tries -= 1;
                    if tries == 0 {
                        break;
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe { *spinning = false };
        self.vms[vm].vcpus[me as usize].dy_eligible = false;
        yielded
    }

    /// Preempt notifiers of a switch on the host: `kvm_sched_out()`, `kvm_sched_in()`.
    pub(super) fn vcpus_switch(&mut self, prev: Option<TaskId>, next: Option<TaskId>, gone: bool) {
        if let Some((m, vcpu)) = prev.and_then(|task| self.guest_of(task))
            && !gone
        {
            let v = self.vcpu_mut(m, vcpu);
            v.preempted = true;
            v.ready = true;
        }
        if let Some((m, vcpu)) = next.and_then(|task| self.guest_of(task)) {
            let v = self.vcpu_mut(m, vcpu);
            v.preempted = false;
            v.ready = false;
        }
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
        self.enter(HOST, 0);
        self.machines[0].kernel.object_call(|object| {
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

    /// The guest's kernel brings its account of steal time up to date: `account_steal_time()`, at ticks.
    pub(super) fn tick_steal(&mut self, m: MachineId, cpu: u32) {
        if m == HOST {
            return;
        }
        let steal = self.steal_of(m, cpu);
        self.machines[m.0 as usize].kernel.object_call(|object| {
            let stat = object.symbol("sim_cpustat").cast::<[u64; 8]>();
            // SAFETY: it is an array of 256 of these, and a guest has at most so many CPUs.
            unsafe { (*stat.add(cpu as usize))[7] = steal };
        });
    }

    /// `trace_sched_wakeup()` on the host.
    pub(super) fn trace_wakeup(&mut self, task: TaskId) {
        self.machines[0].kernel.probe_wakeup(task);
    }
}
