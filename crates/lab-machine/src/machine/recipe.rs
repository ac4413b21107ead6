//! QEMU's arguments for host machines and guests, and their kernels' parameters. Each choice that is not obvious is a
//! measured one: docs/lab.md says what goes wrong without it.
use std::path::Path;

use entrain_lab_agent::message::PORT;

use super::{Arch, GuestSpec, MachineSpec, MemoryBackend};

/// Where the host machine's image keeps what its guests boot.
pub const GUEST_KERNEL: &str = "/usr/lib/entrain/guest/kernel";
/// See [`GUEST_KERNEL`].
pub const GUEST_INITRD: &str = "/usr/lib/entrain/guest/initrd";

/// The host machine's QEMU arguments.
pub fn host(spec: &MachineSpec, kvm: bool, kernel: &Path, initrd: &Path) -> Vec<String> {
    let mut args = vec!["-name".into(), "entrain-lab,debug-threads=on".into()];
    let (accel, machine, cpu) = board(spec, kvm);
    let machine = machine.to_owned() + &spec.topology.caches(spec.arch);
    push(&mut args, &["-accel", accel, "-M", &machine, "-cpu", cpu, "-device", "virtio-serial-pci"]);
    common(&mut args, &spec.topology.smp(spec.arch, spec.pcpus), spec.memory_mib);
    args.extend(spec.topology.numa(spec.pcpus, spec.memory_mib));
    push(&mut args, &["-kernel", &kernel.to_string_lossy(), "-initrd", &initrd.to_string_lossy()]);
    let mut line = base_cmdline(spec.arch, spec.rt);
    if spec.arch == Arch::X86_64 && !kvm {
        // Busy pairs of guests lived longer with both (evidence in docs/lab.md).
        line.extend(["transparent_hugepage=never", "numa_balancing=disable"].map(str::to_owned));
    }
    line.extend(spec.cmdline.iter().cloned());
    push(&mut args, &["-append", &line.join(" ")]);
    args
}

/// Accelerator, machine and CPU of the host machine.
pub(super) fn board(spec: &MachineSpec, kvm: bool) -> (&'static str, &'static str, &'static str) {
    match (spec.arch, kvm) {
        (Arch::Aarch64, false) => ("tcg,thread=multi", "virt,virtualization=on,gic-version=3", "neoverse-n1"),
        // A KVM that can't nest refuses to give a VM EL2.
        (Arch::Aarch64, true) if !spec.nested => ("kvm", "virt,gic-version=3", "host"),
        (Arch::Aarch64, true) => ("kvm", "virt,virtualization=on,gic-version=3", "host"),
        (Arch::X86_64, false) => ("tcg,thread=multi", "q35", "EPYC,+svm,+npt,-monitor"),
        (Arch::X86_64, true) => ("kvm", "q35", "host"),
    }
}

/// A guest's QEMU and its arguments, as run in the host machine.
pub fn guest(spec: &MachineSpec, kvm: bool, guest: &GuestSpec) -> Vec<String> {
    let mut args =
        vec![format!("qemu-system-{}", spec.arch), "-name".into(), format!("{},debug-threads=on", guest.name)];
    let (machine, cpu) = match spec.arch {
        Arch::Aarch64 => ("virt,gic-version=host", "host"),
        // microvm has few devices, and each access to a device costs two emulated world switches.
        // Without -xsave the guest's kernel oopses in fpstate_reset under emulated SVM.
        Arch::X86_64 if kvm => ("microvm,pit=off,pic=off,rtc=on,isa-serial=on", "host"),
        Arch::X86_64 => ("microvm,pit=off,pic=off,rtc=on,isa-serial=on", "host,-xsave,-avx,-avx2"),
    };
    push(&mut args, &["-accel", "kvm", "-M", machine, "-cpu", cpu, "-device", "virtio-serial-device"]);
    common(&mut args, &guest.vcpus.to_string(), guest.memory_mib);
    let backend = match guest.memory {
        MemoryBackend::Private => None,
        MemoryBackend::Shared => Some("share=on"),
        MemoryBackend::Hugetlb => Some("share=on,hugetlb=on,hugetlbsize=2M"),
    };
    if let Some(backend) = backend {
        let object = format!("memory-backend-memfd,id=ram,size={}M,{backend}", guest.memory_mib);
        push(&mut args, &["-object", &object, "-machine", "memory-backend=ram"]);
    }
    if guest.cpu_pm {
        push(&mut args, &["-overcommit", "cpu-pm=on"]);
    }
    push(&mut args, &["-kernel", GUEST_KERNEL, "-initrd", guest.initrd.as_deref().unwrap_or(GUEST_INITRD)]);
    let mut line = base_cmdline(spec.arch, spec.rt);
    line.extend(guest.cmdline.iter().cloned());
    push(&mut args, &["-append", &line.join(" ")]);
    args
}

/// What QEMU is told at both levels. The sockets behind `console`, `agent` and `qmp` are made by [`super::qemu`].
fn common(args: &mut Vec<String>, smp: &str, memory_mib: u32) {
    push(args, &["-smp", smp, "-m", &memory_mib.to_string()]);
    push(args, &["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    push(args, &["-serial", "chardev:console", "-mon", "chardev=qmp,mode=control"]);
    push(args, &["-device", &format!("virtserialport,chardev=agent,name={PORT}")]);
}

/// Parameters that every kernel of the lab gets.
fn base_cmdline(arch: Arch, rt: bool) -> Vec<String> {
    // A kernel that is broken must end, so that the lab sees it at once: panic on oops, and no reboot (-no-reboot).
    let mut line: Vec<&str> = vec!["panic=-1", "oops=panic", "mitigations=off", "loglevel=5", "random.trust_cpu=on"];
    // Twice emulated, a CPU that waits behind others on the development machine looks stuck: with the usual 20 s a busy
    // computer lost boots to soft lockups that were none. A CPU that is really silent is still found within a minute.
    line.extend(["watchdog_thresh=30", "rcupdate.rcu_cpu_stall_timeout=60"]);
    match arch {
        // QEMU hands a kaslr-seed over; KASLR forces KPTI on CPUs without E0PD, and then each system call flushes TCG's
        // translation cache: seven times slower.
        Arch::Aarch64 => line.extend(["console=ttyAMA0", "nokaslr", "kpti=off"]),
        Arch::X86_64 => {
            line.extend(["console=ttyS0", "tsc=reliable"]);
            if rt {
                // Else KVM refuses: "RT requires X86_FEATURE_CONSTANT_TSC".
                line.push("setcpuid=constant_tsc,nonstop_tsc");
            }
        }
    }
    line.into_iter().map(str::to_owned).collect()
}

fn push(args: &mut Vec<String>, more: &[&str]) {
    args.extend(more.iter().map(|&a| a.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(args: &'a [String], option: &str) -> &'a str {
        &args[args.iter().position(|a| a == option).unwrap() + 1]
    }

    #[test]
    fn an_aarch64_host_has_el2_and_no_kpti() {
        let spec = MachineSpec { cmdline: vec!["foo=1".into()], ..MachineSpec::default() };
        let args = host(&spec, false, Path::new("/k"), Path::new("/i"));
        assert!(value(&args, "-M").contains("virtualization=on"));
        let line = value(&args, "-append");
        assert!(line.contains("nokaslr") && line.contains("kpti=off") && line.ends_with("foo=1"), "{line}");
    }

    #[test]
    fn a_host_without_guests_asks_kvm_for_no_el2() {
        let machine = |nested, kvm| board(&MachineSpec { nested, ..MachineSpec::default() }, kvm).1;
        assert!(machine(true, true).contains("virtualization=on"));
        assert!(!machine(false, true).contains("virtualization"));
        assert_eq!(machine(false, false), machine(true, false), "emulated, figures stay comparable");
    }

    #[test]
    fn guests_memory_is_shared_unless_told_otherwise() {
        let spec = MachineSpec { arch: Arch::X86_64, ..MachineSpec::default() };
        let mut g = GuestSpec::new("g0", 4);
        let args = guest(&spec, false, &g);
        assert!(value(&args, "-object").contains("share=on"));
        assert!(value(&args, "-cpu").contains("-xsave"));
        g.memory = MemoryBackend::Private;
        assert!(!guest(&spec, false, &g).iter().any(|a| a == "-object" || a == "-overcommit"));
        g.cpu_pm = true;
        assert_eq!(value(&guest(&spec, false, &g), "-overcommit"), "cpu-pm=on");
    }
}
