//! Guests that spin: what traps them, and whom KVM yields to; `kvm_vcpu_on_spin()` of virt/kvm/kvm_main.c.

use super::kvm::Arch;
use super::lane::ENDLESS;
use super::{HOST, MachineId, World};
use crate::trace::What;

impl World {
    /// How long a task may spin before its hypervisor looks.
    pub(super) fn spin_mark(&self, m: MachineId) -> u64 {
        match m {
            HOST => ENDLESS,
            _ => match self.vms[m.0 as usize - 1].arch {
                Arch::Arm64 => self.costs.wfe_window,
                Arch::Amd | Arch::Apicv | Arch::Intel => self.costs.ple_window,
                Arch::Untrapped => ENDLESS,
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
        if arch == Arch::Arm64 && !self.vcpu(m, vcpu).traps {
            return self.resume(m, vcpu);
        }
        self.pause(HOST, cpu);
        self.burden(HOST, cpu, self.costs.exit_work);
        self.enter(HOST, cpu);
        if arch == Arch::Arm64 {
            let pc = self.guest_pc(m, vcpu);
            self.machines[0].kernel.probe_wfx(pc);
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
            self.machines[0].kernel.spent += self.costs.spin_look;
            let v = &mut self.vms[vm].vcpus[index as usize];
            // SAFETY: the fields live as long as the host's object.
            let (kernel, pending, spins) = unsafe {
                let f = &v.fields;
                (*f.pstate & 0xf != 0, f.interrupted(false), *f.in_spin_loop)
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
            let followed = self.machines[0].kernel.yield_to(cpu, task);
            self.tell(m, me, What::Yields { to: task, followed });
            match followed {
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
}
