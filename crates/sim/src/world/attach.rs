//! Schedulers are attached and detached while the world runs, and bypassed, as the kernel does on the way and while it
//! suspends.

use super::machine::HOST_SCHED;
use super::{Act, HOST, Irq, MachineId, World};
use crate::kernel::Kernel;

/// How long the kernel bypasses a scheduler before it has exited all cgroups and tasks, ns: each is a call of a sleepable
/// program or a wait for a lock.
const LEAVES: u64 = 2_000_000;

impl World {
    /// Kernel code of a machine's CPU 0 that may call all CPUs.
    fn run_on_zero(&mut self, m: MachineId, what: impl FnOnce(&mut Kernel)) {
        let moved = self.pause(m, 0);
        self.enter(m, 0);
        what(&mut self.machines[m.0 as usize].kernel);
        self.leave(m, 0);
        if moved {
            self.preempt_point(m, 0);
        } else if self.machines[m.0 as usize].kernel.cpu(0).need_resched {
            self.pend(m, 0, Irq::Resched, None);
        }
    }

    /// The daemon, or the guest's agent, loads its scheduler and attaches it.
    pub(super) fn attach(&mut self, m: MachineId) {
        let kernel = &self.machines[m.0 as usize].kernel;
        if kernel.scx_attached() {
            return;
        }
        let (cpus, online) = (kernel.topo.cpus(), kernel.online.clone());
        self.machines[m.0 as usize].kernel.object_call(|object| {
            // SAFETY: the functions have these types in native/host.c and native/guest.c; CPUs are those of the machine.
            unsafe {
                if m == HOST {
                    let arrange: unsafe extern "C" fn(u32) = object.function("sim_arrange");
                    arrange(0);
                } else {
                    let there: unsafe extern "C" fn(u32, bool) = object.function("sim_online");
                    (0..cpus).for_each(|cpu| there(cpu, online.has(cpu)));
                    object.set("nr_online", online.count() as u32);
                }
            }
            if m == HOST {
                object.set("extra_features", HOST_SCHED);
            }
        });
        self.run_on_zero(m, Kernel::attach);
    }

    /// It is detached: the kernel bypasses it first, and leaves it when it has come so far.
    pub(super) fn detach(&mut self, m: MachineId) {
        let kernel = &self.machines[m.0 as usize].kernel;
        if !kernel.scx_attached() {
            return;
        }
        if !kernel.scx_bypassing() {
            self.run_on_zero(m, |kernel| kernel.scx_bypass(true));
            return self.act(self.now + LEAVES, Act::Detach(m));
        }
        // A guest's scheduler stands by; the host's is unloaded, with its timers.
        self.run_on_zero(m, |kernel| kernel.detach(m == HOST));
        if m == HOST {
            for turn in self.machines[0].bpf_timers.values_mut() {
                *turn += 1;
            }
            self.machines[0].kernel.object_call(|object| object.set("extra_features", 0_u64));
        }
    }

    /// Bypass mode by itself, as around a suspend to RAM.
    pub(super) fn bypass(&mut self, m: MachineId, on: bool) {
        let kernel = &self.machines[m.0 as usize].kernel;
        if kernel.scx_attached() && kernel.scx_bypassing() != on {
            self.run_on_zero(m, |kernel| kernel.scx_bypass(on));
        }
    }
}
