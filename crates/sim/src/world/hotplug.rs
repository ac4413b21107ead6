//! CPUs of the host and of its guests come and go.

use super::lane::{ENDLESS, Segment};
use super::{Act, Event, HOST, Irq, MachineId, World};

/// A CPU that cannot go now (it switches, or what runs there may not be preempted) is tried again so much later, ns.
const AGAIN: u64 = 5_000;
/// A guest's agent loads a scheduler anew that has no word about CPUs: so long until it is attached, ns.
const RELOADS: u64 = 50_000_000;

impl World {
    /// Has a CPU of the host go or come at a time, ns. CPU 0 stays: it is where tasks begin.
    ///
    /// # Panics
    /// When it is CPU 0.
    pub fn plan_hotplug(&mut self, cpu: u32, online: bool, at: u64) {
        assert!(cpu != 0, "CPU 0 stays");
        self.plan(at, Event::Hotplug { m: HOST, cpu, online });
    }

    pub(super) fn hotplug(&mut self, m: MachineId, cpu: u32, online: bool) {
        let kernel = &self.machines[m.0 as usize].kernel;
        if cpu == 0 || cpu >= kernel.topo.cpus() || kernel.online.has(cpu) == online {
            return;
        }
        if !kernel.may_go(cpu) || !self.preemptible(m, cpu) {
            let wait = if m == HOST { AGAIN } else { 20 * AGAIN };
            return self.plan(self.now + wait, Event::Hotplug { m, cpu, online });
        }
        self.pause(m, cpu);
        if let Some(task) = self.curr(m, cpu) {
            let left = self.lane(m, cpu).left;
            self.state_mut(m, task).left = left;
        }
        let prev = self.curr(m, cpu);
        // The controller's thread runs elsewhere.
        self.enter(m, 0);
        let kernel = &mut self.machines[m.0 as usize].kernel;
        if online {
            kernel.cpu_online(cpu);
        } else {
            kernel.cpu_offline(cpu);
            if m == HOST {
                kernel.probe_switch(prev, None, false);
                self.vcpus_switch(prev, None, false);
            }
        }
        self.leave(m, 0);
        self.look_at_zero(m);
        let lane = self.lane_mut(m, cpu);
        (lane.segment, lane.left) = (Segment::Idle, ENDLESS);
        lane.tick_turn += 1;
        lane.ticks = false;
        if !online {
            self.quiescent(m, cpu);
            self.leave_wake_list(m, cpu);
            for irq in std::mem::take(&mut self.lane_mut(m, cpu).pending) {
                self.undelivered(m, irq);
            }
            // CPU_OFF, or a halt with interrupts off: the vCPU's thread sleeps.
            if m != HOST && self.lane(m, cpu).on {
                self.guest_idles(m, cpu);
            }
        }
        if std::mem::take(&mut self.machines[m.0 as usize].kernel.reloads) {
            self.detach(m);
            self.act(self.now + RELOADS, Act::Attach(m));
        }
    }

    /// CPU 0 may have been told to look while it did not run kernel code of its own.
    fn look_at_zero(&mut self, m: MachineId) {
        if self.machines[m.0 as usize].kernel.cpu(0).need_resched {
            self.send(m, 0, 0, Irq::Resched);
        }
    }

    /// An interrupt to a CPU that is not there: the sender of a call does not wait for it, timers expire elsewhere.
    pub(super) fn undelivered(&mut self, m: MachineId, irq: Irq) {
        match irq {
            Irq::Call(sender) => self.answer(m, sender),
            Irq::Sleep(_) | Irq::BpfTimer(_) | Irq::FairBandwidth(..) => self.interrupt(m, 0, irq, None),
            Irq::Resched | Irq::Tick | Irq::WakeList => {}
        }
    }

    /// What the host's daemon does with its heartbeat: CPUs that have come or gone change the rings.
    pub(super) fn follow_cpus(&mut self) {
        if !self.machines[0].kernel.scx_attached() {
            return;
        }
        self.enter(HOST, 0);
        self.machines[0].kernel.object_call(|object| {
            // SAFETY: both have these types in the sources of the host's object.
            unsafe {
                let changes = object.symbol("cpu_changes").cast::<u32>().read_volatile();
                let arrange: unsafe extern "C" fn(u32) = object.function("sim_arrange");
                if changes != 0 {
                    arrange(1);
                }
            }
        });
        self.leave(HOST, 0);
    }

    /// The CPU, or where it is not there, the one that takes its interrupts.
    pub(super) fn cpu_or_other(&self, m: MachineId, cpu: u32) -> u32 {
        if self.machines[m.0 as usize].kernel.online.has(cpu) { cpu } else { 0 }
    }
}
