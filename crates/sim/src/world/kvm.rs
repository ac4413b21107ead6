//! KVM: vCPUs are threads of the host; they enter the guest, leave it, halt. After virt/kvm/kvm_main.c.

use super::irq::Irq;
use super::lane::{ENDLESS, Segment};
use super::machine::Mode;
use super::{Event, HOST, MachineId, World};
use crate::costs;
use crate::kernel::TaskId;
use crate::native::VcpuFields;
use crate::program::Step;
use crate::trace::What;

/// Whose registers KVM saves, and how it learns that a guest spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// A trapped WFE, while others wait for the CPU.
    Arm64,
    /// The pause filter.
    Amd,
    /// The same registers, and nothing traps a guest that spins: the pause filter is off.
    Untrapped,
    /// The same, and interrupts are posted to the APIC's registers: nothing is requested of KVM.
    Apicv,
    /// The pause filter, and none of the guest's registers where BPF could read them: KVM alone knows who was preempted
    /// in its kernel.
    Intel,
}

/// The guest's saved state: EL1h, or level 0 with interrupts on; and EL0, or level 3.
const PSTATE_KERNEL: u64 = 5;
/// The guest's program counter: as it works, and in the first of its loops that wait for an event.
const PC_WORKS: u64 = 0xffff_8000_1000_0000;
const PC_WAITS: u64 = 0xffff_8000_2000_0000;
/// `KVM_REQ_IRQ_PENDING` of arm64 and `KVM_REQ_EVENT` of x86.
const REQUEST_INTERRUPT: u64 = 1 << 9 | 1 << 14;

impl VcpuFields {
    /// Whether an interrupt waits for the vCPU; `taken`: it waits no more.
    ///
    /// # Safety
    /// The object that the fields are in is there.
    pub(super) unsafe fn interrupted(&self, taken: bool) -> bool {
        // SAFETY: the caller vouches for the fields.
        unsafe {
            let posted = self.irr.as_mut().is_some_and(|irr| if taken { std::mem::take(irr) != 0 } else { *irr != 0 });
            let requested = *self.requests & REQUEST_INTERRUPT != 0;
            if taken {
                *self.requests &= !REQUEST_INTERRUPT;
            }
            posted || requested
        }
    }
}

/// One vCPU.
pub struct Vcpu {
    /// Its thread on the host.
    pub task: TaskId,
    pub(super) poll_ns: u64,
    /// How long it polls at most in this halt, ns.
    pub(super) polls: u64,
    pub(super) halted_at: u64,
    /// `vcpu->preempted`, `vcpu->ready`: it was taken off its CPU, or was woken.
    pub(super) preempted: bool,
    pub(super) ready: bool,
    pub(super) dy_eligible: bool,
    /// arm64: its `wfe` is trapped. `kvm_arch_vcpu_load()` leaves it alone where the thread was alone on its CPU then.
    pub(super) traps: bool,
    pub(super) fields: VcpuFields,
    pub(super) index: u32,
}

/// One VM.
pub struct Vm {
    /// Its guest.
    pub machine: MachineId,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    pub(super) last_boosted: u32,
    pub(super) arch: Arch,
    pub(super) paired: bool,
    /// Directed yields that were followed.
    pub yields: u64,
}

impl World {
    /// What the hypervisor has withheld from a guest's CPU, ns.
    pub(super) fn steal_of(&self, m: MachineId, cpu: u32) -> u64 {
        if m == HOST {
            return 0;
        }
        let task = self.machines[0].kernel.task(self.vcpu(m, cpu).task);
        task.sum_wait + task.waits_since.map_or(0, |since| self.now - since)
    }

    pub(super) fn vcpu(&self, m: MachineId, cpu: u32) -> &Vcpu {
        &self.vms[m.0 as usize - 1].vcpus[cpu as usize]
    }

    fn vcpu_mut(&mut self, m: MachineId, cpu: u32) -> &mut Vcpu {
        &mut self.vms[m.0 as usize - 1].vcpus[cpu as usize]
    }

    /// An interrupt for a vCPU that is outside its guest. `from`: the guest's CPU that sent it.
    pub(super) fn pend(&mut self, m: MachineId, cpu: u32, irq: Irq, from: Option<u32>) {
        self.tell(m, cpu, What::Pends(irq));
        let pending = &mut self.lane_mut(m, cpu).pending;
        if !pending.contains(&irq) {
            pending.push(irq);
        }
        let task = self.vcpu(m, cpu).task;
        let VcpuFields { requests, irr, .. } = self.vcpu(m, cpu).fields;
        // SAFETY: the fields live as long as the host's object.
        unsafe {
            match irr.as_mut() {
                Some(irr) => *irr |= 1,
                None => *requests |= REQUEST_INTERRUPT,
            }
        }
        match self.state(HOST, task).mode {
            Mode::Polls => {
                self.polled(m, cpu);
                self.host_goes_on(task, self.costs.exit_work + self.costs.entry);
            }
            Mode::Halted => {
                // The sender's thread kicks it; a timer's interrupt comes to the CPU where the vCPU halted.
                let by = self.machines[0].kernel.task(from.map_or(task, |from| self.vcpu(m, from).task)).cpu;
                self.vcpu_mut(m, cpu).ready = true;
                let outer = std::mem::replace(&mut self.lane_mut(HOST, by).in_irq, from.is_none());
                self.wake(HOST, by, task, false);
                self.lane_mut(HOST, by).in_irq = outer;
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
        let Some((m, vcpu)) = self.vcpu_of(task) else { return };
        if self.machines[0].kernel.minds_lazy(cpu) {
            self.set_left(HOST, cpu, self.costs.entry);
            return self.schedule(HOST, cpu);
        }
        self.state_mut(HOST, task).mode = Mode::InGuest;
        self.quiescent(HOST, cpu);
        self.set_left(HOST, cpu, ENDLESS);
        self.resume(HOST, cpu);
        // SAFETY: the field lives as long as the host's object.
        unsafe { self.vcpu(m, vcpu).fields.interrupted(true) };
        let now = self.now;
        self.tell(m, vcpu, What::Enters);
        let lane = self.lane_mut(m, vcpu);
        lane.on = true;
        lane.since = now;
        let pending = std::mem::take(&mut lane.pending);
        if !pending.is_empty() {
            self.forgets(m, vcpu);
        }
        for irq in pending {
            self.handle(m, vcpu, irq);
        }
        self.preempt_point(m, vcpu);
        self.halt_if_idle(m, vcpu);
    }

    /// The host's CPU is interrupted: the thread leaves the guest, and goes back when the interrupt is over.
    pub(super) fn guest_exit(&mut self, cpu: u32) {
        let Some(task) = self.curr(HOST, cpu) else { return };
        if self.state(HOST, task).mode != Mode::InGuest {
            return;
        }
        let Some((m, vcpu)) = self.vcpu_of(task) else { return };
        self.pause(m, vcpu);
        self.lane_mut(m, vcpu).on = false;
        self.tell(m, vcpu, What::Leaves);
        self.save_state(m, vcpu);
        self.state_mut(HOST, task).mode = Mode::Enters;
        self.set_left(HOST, cpu, self.costs.exit + self.costs.entry);
    }

    /// A guest has been left for a moment, for what its hypervisor does at once. Its thread looks before it enters again
    /// whether it is to call the scheduler.
    pub(super) fn exits_shortly(&mut self, m: MachineId, vcpu: u32) {
        let task = self.vcpu(m, vcpu).task;
        let cpu = self.machines[0].kernel.task(task).cpu;
        if self.curr(HOST, cpu) == Some(task) && self.machines[0].kernel.minds_lazy(cpu) {
            self.plan(self.now, Event::Irq { m: HOST, cpu, irq: Irq::Resched, from: None });
        }
        self.forgets(m, vcpu);
    }

    /// A guest goes on after an exit.
    pub(super) fn forgets(&mut self, m: MachineId, vcpu: u32) {
        self.loses(m, vcpu, self.costs.cold);
    }

    /// A guest loses so much in the mean, ns: the more, the more it touches.
    pub(super) fn loses(&mut self, m: MachineId, vcpu: u32, mean: u64) {
        let lost = self.rng.within(mean / 2, mean * 3 / 2);
        self.burden(m, vcpu, lost);
    }

    /// Where a guest's code stands: each loop that waits for an event has a place of its own.
    pub(super) fn guest_pc(&self, m: MachineId, cpu: u32) -> u64 {
        match self.curr(m, cpu).map(|task| &self.state(m, task).mode) {
            Some(Mode::SpinsForLock(_)) => PC_WAITS,
            Some(Mode::SpinsForAnswers(_)) => PC_WAITS + 0x1000,
            Some(Mode::SpinsForOwner(_)) => PC_WAITS + 0x2000,
            _ => PC_WORKS,
        }
    }

    /// What KVM saves of the guest's registers.
    fn save_state(&mut self, m: MachineId, cpu: u32) {
        let lane = self.lane(m, cpu);
        let kernel = match self.curr(m, cpu) {
            Some(task) => {
                let state = self.state(m, task);
                let spins =
                    matches!(state.mode, Mode::SpinsForLock(_) | Mode::SpinsForAnswers(_) | Mode::SpinsForOwner(_));
                let holds = state.preempt > 0 || !state.kernel_tries.owned.is_empty();
                let works = matches!(state.step(), Step::System(_));
                holds || spins || works || matches!(lane.segment, Segment::Switch(_))
            }
            None => true,
        };
        let fields = self.vcpu(m, cpu).fields;
        // SAFETY: the fields live as long as the host's object.
        unsafe {
            *fields.pstate = if kernel { PSTATE_KERNEL } else { 0 };
            *fields.pc = self.guest_pc(m, cpu);
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
        self.tell(m, vcpu, What::Halts);
        let alone = self.machines[0].kernel.cpu(cpu).nr_running == 1;
        let now = self.now;
        let v = self.vcpu_mut(m, vcpu);
        v.halted_at = now;
        let poll = if alone { v.poll_ns } else { 0 };
        v.polls = poll;
        self.state_mut(HOST, task).mode = Mode::Polls;
        self.set_left(HOST, cpu, self.costs.idle + self.costs.exit + self.costs.exit_work + poll);
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
        if let Some((m, vcpu)) = self.vcpu_of(task) {
            self.polled(m, vcpu);
        }
        let debt = self.lane(HOST, cpu).left;
        self.state_mut(HOST, task).mode = Mode::Enters;
        self.set_left(HOST, cpu, debt + self.costs.exit_work + self.costs.entry);
        self.resume(HOST, cpu);
    }

    /// Grows or shrinks the polling by how long a halt has lasted: `kvm_vcpu_halt()`.
    fn polled(&mut self, m: MachineId, vcpu: u32) {
        let now = self.now;
        let most = costs::HALT_POLL_MAX[usize::from(self.vms[m.0 as usize - 1].arch != Arch::Arm64)];
        let v = self.vcpu_mut(m, vcpu);
        let lasted = now - v.halted_at;
        if lasted <= v.poll_ns {
            // Long enough.
        } else if v.poll_ns > 0 && lasted > most {
            v.poll_ns /= 2;
            if v.poll_ns < costs::HALT_POLL_START {
                v.poll_ns = 0;
            }
        } else if v.poll_ns < most && lasted < most {
            v.poll_ns = (v.poll_ns * 2).clamp(costs::HALT_POLL_START, most);
        }
    }

    /// `kvm_vcpu_can_poll()`: a poll is over as soon as somebody else wants the CPU (`single_task_running()`).
    pub(super) fn stop_poll(&mut self, cpu: u32) {
        let Some(task) = self.curr(HOST, cpu).filter(|task| self.state(HOST, *task).mode == Mode::Polls) else {
            return;
        };
        let Some((m, vcpu)) = self.vcpu_of(task) else { return };
        if self.machines[0].kernel.cpu(cpu).nr_running < 2 || self.lane(HOST, cpu).segment != Segment::Task {
            return;
        }
        self.pause(HOST, cpu);
        let poll = std::mem::take(&mut self.vcpu_mut(m, vcpu).polls);
        let left = self.lane(HOST, cpu).left.saturating_sub(poll);
        self.set_left(HOST, cpu, left);
        self.resume(HOST, cpu);
    }

    /// Preempt notifiers of a switch on the host: `kvm_sched_out()`, `kvm_sched_in()`.
    pub(super) fn vcpus_switch(&mut self, prev: Option<TaskId>, next: Option<TaskId>, gone: bool) {
        if let Some((m, vcpu)) = prev.and_then(|task| self.vcpu_of(task))
            && !gone
        {
            let v = self.vcpu_mut(m, vcpu);
            v.preempted = true;
            v.ready = true;
            let task = v.task;
            if let Some(owner) = self.curr(m, vcpu) {
                self.owner_leaves(m, owner);
            }
            if self.vms[m.0 as usize - 1].arch == Arch::Arm64 {
                self.machines[0].kernel.probe_timer_saved(task);
            }
        }
        if let Some(task) = next
            && let Some((m, vcpu)) = self.vcpu_of(task)
        {
            let kernel = &self.machines[0].kernel;
            let alone = kernel.cpu(kernel.task(task).cpu).nr_running == 1;
            let v = self.vcpu_mut(m, vcpu);
            v.preempted = false;
            v.ready = false;
            v.traps = !alone;
        }
    }

    /// When a guest's CPU is to be interrupted by its timer next, where the timer is set; the guest's own BPF timers are
    /// left out.
    fn next_timer(&self, m: MachineId, cpu: u32) -> Option<u64> {
        let machine = &self.machines[m.0 as usize];
        let lane = self.lane(m, cpu);
        if lane.pending.iter().any(|irq| irq.is_timer()) {
            return Some(self.now);
        }
        let asleep = machine
            .tasks
            .iter()
            .enumerate()
            .filter_map(|(id, state)| state.timer_at.filter(|_| machine.kernel.task(TaskId(id as u32)).cpu == cpu));
        asleep.chain(lane.ticks.then_some(lane.tick_at)).min()
    }

    /// Sets the timer of a vCPU that leaves its CPU as KVM knows it.
    pub(super) fn set_vcpu_timer(&mut self, m: MachineId, cpu: u32) {
        let (taken, due) = match self.lane(m, cpu).in_timer {
            (0, _) => (false, self.next_timer(m, cpu).unwrap_or(0)),
            (_, due) => (true, due),
        };
        let vcpu = self.vcpu(m, cpu).fields.kvm_vcpu;
        self.machines[0].kernel.object_call(|object| {
            if let Some(probes) = &object.probes {
                // SAFETY: the vCPU is the object's.
                unsafe { (probes.set_timer)(vcpu, due, taken) };
            }
        });
    }

    /// The guest's kernel brings its account of steal time up to date: `account_steal_time()`, at ticks.
    pub(super) fn tick_steal(&mut self, m: MachineId, cpu: u32) {
        if m == HOST {
            return;
        }
        let steal = self.steal_of(m, cpu);
        self.machines[m.0 as usize].kernel.object_call(|object| {
            let stat = object.symbol("sim_cpustat").cast::<[u64; 8]>();
            // SAFETY: it is an array of MAX_CPUS of these, and a guest has at most so many CPUs.
            unsafe { (*stat.add(cpu as usize))[7] = steal };
        });
    }

    /// `trace_sched_wakeup()` on the host.
    pub(super) fn trace_wakeup(&mut self, task: TaskId) {
        self.machines[0].kernel.probe_wakeup(task);
    }
}
