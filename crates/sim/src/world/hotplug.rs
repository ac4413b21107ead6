//! CPUs of the host come and go.

use super::lane::{ENDLESS, Segment};
use super::{Event, HOST, MachineId, World};

/// A CPU in the middle of a switch goes so much later, ns.
const AGAIN: u64 = 5_000;

impl World {
    /// Has a CPU of the host go or come at a time, ns. CPU 0 stays: it is where tasks begin.
    ///
    /// # Panics
    /// When it is CPU 0.
    pub fn plan_hotplug(&mut self, cpu: u32, online: bool, at: u64) {
        assert!(cpu != 0, "CPU 0 stays");
        self.plan(at, Event::Hotplug { cpu, online });
    }

    pub(super) fn hotplug(&mut self, cpu: u32, online: bool) {
        if self.machines[0].kernel.cpu(cpu).locked {
            return self.plan(self.now + AGAIN, Event::Hotplug { cpu, online });
        }
        self.pause(HOST, cpu);
        if let Some(task) = self.curr(HOST, cpu) {
            let left = self.lane(HOST, cpu).left;
            self.state_mut(HOST, task).left = left;
        }
        let prev = self.curr(HOST, cpu);
        // The controller's thread runs elsewhere.
        self.enter(HOST, 0);
        if online {
            self.machines[0].kernel.cpu_online(cpu);
        } else {
            self.machines[0].kernel.cpu_offline(cpu);
            self.machines[0].kernel.probe_switch(prev, None, false);
            self.vcpus_switch(prev, None, false);
        }
        self.leave(HOST, 0);
        let lane = self.lane_mut(HOST, cpu);
        (lane.segment, lane.left) = (Segment::Idle, ENDLESS);
        lane.tick_turn += 1;
        lane.ticks = false;
    }

    /// What the host's daemon does with its heartbeat: CPUs that have come or gone change the rings.
    pub(super) fn follow_cpus(&mut self) {
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
