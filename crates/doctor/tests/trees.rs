//! The doctor on prepared machines: files as such machines have them, in a temporary folder.

use std::fs;
use std::os::unix::fs::symlink;

use entrain_doctor::{Backing, Machine, Purpose, Report, Role, Status, Vmm, examine};

/// A prepared machine.
struct Tree(tempfile::TempDir);

impl Tree {
    fn file(self, path: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("has a folder")).expect("temporary folder");
        fs::write(path, bytes).expect("temporary folder");
        self
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("has a folder")).expect("temporary folder");
        symlink(target, path).expect("temporary folder");
        self
    }

    /// A host with a kernel whose type information holds these names.
    fn host(release: &str, names: &[&str]) -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
            .file("proc/sys/kernel/osrelease", format!("{release}\n"))
            .file("proc/self/status", "CapEff:\t000001ffffffffff\n")
            .file("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu svm\n")
            .file("proc/kallsyms", "ffffffff8 D runqueues\n")
            .file("sys/kernel/btf/vmlinux", btf(names))
            .file("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
            .file("sys/kernel/sched_ext/state", "disabled\n")
            .file("sys/fs/cgroup/cgroup.controllers", "cpu\n")
            .file("dev/kvm", "")
    }

    /// A QEMU of 512 MiB, two vCPUs and a graphics card of 16 MiB, whose RAM is mapped as `line` says.
    fn qemu(self, pid: i32, program: &str, arguments: &str, line: &str) -> Self {
        self.link(&format!("proc/{pid}/exe"), program)
            .file(&format!("proc/{pid}/comm"), "qemu-system-x86\n")
            .file(&format!("proc/{pid}/cmdline"), arguments)
            .file(&format!("proc/{pid}/cgroup"), "0::/machine.slice\n")
            .file(
                &format!("proc/{pid}/maps"),
                format!(
                    "560000000000-560000100000 r-xp 00000000 fe:00 1234    {program}\n{line}\n\
                     7f9000000000-7f9000021000 rw-p 00000000 00:00 0 \n\
                     7f9080000000-7f9081000000 rw-p 00000000 00:00 0 \n\
                     7f9100000000-7f9104000000 ---p 00000000 00:00 0 \n"
                ),
            )
            .link(&format!("proc/{pid}/fd/9"), "anon_inode:kvm-vm")
            .link(&format!("proc/{pid}/fd/10"), "anon_inode:kvm-vcpu:0")
            .link(&format!("proc/{pid}/fd/11"), "anon_inode:kvm-vcpu:1")
    }

    fn for_purpose(&self, purpose: Purpose) -> Report {
        examine(&Machine::at(self.0.path()), None, Some(purpose)).expect("a machine")
    }

    fn examine(&self, role: Option<Role>) -> Report {
        examine(&Machine::at(self.0.path()), role, None).expect("a machine")
    }
}

/// Type information that holds these names and nothing else.
fn btf(names: &[&str]) -> Vec<u8> {
    let strings: Vec<u8> = names.iter().flat_map(|name| [&b"\0"[..], name.as_bytes()].concat()).chain([0]).collect();
    let mut data = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, 0, 0, strings.len() as u32] {
        data.extend(word.to_le_bytes());
    }
    [data, strings].concat()
}

const MODERN: [&str; 9] = [
    "BPF_UPTR",
    "sched_ext_ops",
    "created_vcpus",
    "btf_trace_kvm_hypercall",
    "scx_bpf_dsq_peek",
    "scx_bpf_task_set_slice",
    "scx_bpf_tid_to_task",
    "scx_bpf_cpu_curr",
    "scx_compat_marker_cgroup_set_bandwidth_may_sleep",
];
const SHARED: &str =
    "7f0000000000-7f0020000000 rw-s 00000000 00:01 1033                       /memfd:memory-backend-memfd (deleted)";
const PRIVATE: &str = "7f0000000000-7f0020000000 rw-p 00000000 00:00 0 ";

#[test]
fn a_host_where_all_is_well() {
    let tree =
        Tree::host("6.14.0", &MODERN).qemu(4711, "/usr/bin/qemu-system-x86_64", "qemu\0-name\0guest=web1\0", SHARED);
    let report = tree.examine(None);
    assert_eq!(report.roles, ["host"]);
    let not_ok: Vec<_> = report.findings.iter().filter(|finding| finding.status != Status::Ok).map(|f| f.id).collect();
    // No daemon runs behind a prepared tree.
    assert_eq!(not_ok, ["host.daemon"]);
    assert_eq!(report.exit_status(), 0);
    let vm = &report.vms[0];
    assert_eq!((vm.pid, vm.identity.name.as_str(), vm.vcpus, vm.vmm), (4711, "web1", 2, Vmm::Qemu));
    let ram = vm.ram.expect("readable");
    assert_eq!((ram.bytes, ram.backing), (512 << 20, Backing::Shared));
}

#[test]
fn private_ram_is_missing_and_the_line_to_add_is_told() {
    let libvirt = "qemu\0-name\0guest=db1,debug-threads=on\0-object\0{\"qom-type\":\"secret\",\"id\":\"masterKey0\"}\0";
    let tree = Tree::host("6.14.0", &MODERN)
        .qemu(10, "/usr/bin/qemu-system-x86_64", "qemu\0-m\x00512\0", PRIVATE)
        .qemu(20, "/usr/bin/qemu-system-x86_64", libvirt, PRIVATE)
        .qemu(30, "/usr/bin/cloud-hypervisor", "cloud-hypervisor\0", PRIVATE)
        .qemu(40, "/usr/bin/firecracker", "firecracker\0--id\0fc1\0", PRIVATE)
        // The mappings are more: its firmware has two flash chips of 64 MiB.
        .qemu(50, "/usr/bin/qemu-system-aarch64", "qemu\0-m\0size=384M\0", PRIVATE);
    let report = tree.examine(None);
    assert_eq!(report.exit_status(), 1);
    let remedy = |pid| {
        let finding = report.find("vm.memory", Some(pid)).expect("looked at");
        assert_eq!(finding.status, Status::Missing, "{pid}");
        finding.remedy.join("\n")
    };
    assert!(remedy(10).contains("-object memory-backend-memfd,id=mem,size=512M,share=on -machine memory-backend=mem"));
    assert!(remedy(20).contains("virsh edit db1"), "{}", remedy(20));
    assert!(remedy(20).contains("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"));
    assert!(remedy(30).contains("--memory size=512M,shared=on"));
    assert!(remedy(40).contains("vhost-user"));
    assert!(remedy(50).contains("size=384M,"), "{}", remedy(50));
    let text = report.text();
    assert!(text.contains("VM db1 (pid 20, QEMU by libvirt, 2 vCPUs)"), "{text}");
}

#[test]
fn an_old_kernel_is_told_what_it_lacks() {
    let tree = Tree::host("6.1.0-41-amd64", &["created_vcpus"]);
    let report = tree.examine(None);
    let missing: Vec<_> =
        report.findings.iter().filter(|finding| finding.status == Status::Missing).map(|f| f.id).collect();
    assert_eq!(missing, ["kernel.sched-ext", "host.uptr"]);
    assert_eq!(report.exit_status(), 1);
    let uptr = report.find("host.uptr", None).expect("looked at");
    assert!(uptr.found.contains("6.1.0-41-amd64") && uptr.remedy[0].contains("6.13"), "{uptr:?}");
}

#[test]
fn who_stands_in_the_way_is_named() {
    let tree = Tree::host("6.14.0", &MODERN)
        .file("proc/self/status", "CapEff:\t0000000000000000\n")
        .file("sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
        .file("sys/kernel/sched_ext/state", "enabled\n")
        .file("sys/kernel/sched_ext/root/ops", "lavd_1.0\n");
    let report = tree.examine(None);
    let of = |id| report.find(id, None).expect("looked at");
    assert_eq!(of("capabilities").status, Status::Missing);
    assert_eq!(of("kernel.lockdown").status, Status::Missing);
    assert!(of("scheduler").found.contains("lavd_1.0"));
}

/// Seen in a pod of Kubernetes, whose daemon watched two VMs meanwhile.
#[test]
fn a_host_without_the_device_in_this_container_is_one() {
    let tree = Tree::host("6.14.0", &MODERN).file("sys/class/misc/kvm/dev", "10:232\n");
    fs::remove_file(tree.0.path().join("dev/kvm")).expect("made above");
    let report = tree.examine(None);
    assert_eq!(report.roles, ["host"]);
    assert_eq!(report.find("host.kvm", None).expect("looked at").status, Status::Ok, "{}", report.text());
}

#[test]
fn a_guest_is_examined_as_one() {
    let tree = Tree::host("6.14.0", &["sched_ext_ops"])
        .file("proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
        .file("proc/self/mounts", "bpf /sys/fs/bpf bpf rw 0 0\n")
        .file("sys/class/dmi/id/sys_vendor", "QEMU\n")
        .file("sys/devices/system/clocksource/clocksource0/available_clocksource", "kvm-clock tsc\n");
    fs::remove_file(tree.0.path().join("dev/kvm")).expect("made above");
    let report = tree.examine(None);
    assert_eq!(report.roles, ["guest"]);
    assert_eq!(report.exit_status(), 0, "{}", report.text());
    assert!(report.find("host.kvm", None).is_none());
    assert_eq!(report.find("guest.agent", None).expect("looked at").status, Status::Warn);
    let as_host = tree.examine(Some(Role::Host));
    assert_eq!(as_host.find("host.kvm", None).expect("looked at").status, Status::Missing);
}

#[test]
fn a_bare_metal_machine_of_ec2_is_no_guest() {
    let roles = |product: &str| {
        Tree::host("6.14.0", &MODERN)
            .file("sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
            .file("sys/class/dmi/id/product_name", format!("{product}\n"))
            .examine(None)
            .roles
    };
    assert_eq!(roles("c7g.metal"), ["host"]);
    assert_eq!(roles("m7i.metal-24xl"), ["host"]);
    assert_eq!(roles("c7g.large"), ["host", "guest"]);
}

#[test]
fn a_guest_with_an_old_kernel_takes_part() {
    let tree = Tree::host("6.1.0-41-amd64", &[])
        .file("proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
        .file("sys/devices/system/clocksource/clocksource0/available_clocksource", "kvm-clock tsc\n");
    let report = tree.examine(Some(Role::Guest));
    assert_eq!(report.find("kernel.sched-ext", None).expect("looked at").status, Status::Warn);
    assert_eq!(report.exit_status(), 0, "{}", report.text());
}

#[test]
fn a_folder_that_is_no_machine_is_an_error() {
    let empty = tempfile::tempdir().expect("temporary folder");
    let error = examine(&Machine::at(empty.path()), None, None).expect_err("nothing there");
    assert!(error.contains("proc/sys/kernel/osrelease"), "{error}");
}

#[test]
fn each_purpose_has_an_exit_status_of_its_own() {
    let qemu = "qemu\0-name\0guest=web1\0";
    let statuses = |tree: &Tree| {
        [Purpose::Watch, Purpose::Pair, Purpose::Schedule, Purpose::Rt, Purpose::Trial]
            .map(|purpose| tree.for_purpose(purpose).exit_status())
    };
    let old = Tree::host("6.1.0-41-amd64", &["created_vcpus"]).qemu(7, "/usr/bin/qemu-system-x86_64", qemu, SHARED);
    assert_eq!(statuses(&old), [0, 1, 1, 1, 1]);
    let private = Tree::host("7.3.0", &MODERN).qemu(7, "/usr/bin/qemu-system-x86_64", qemu, PRIVATE);
    assert_eq!(statuses(&private), [0, 1, 0, 1, 0], "private RAM hinders pairing alone");
    let idle = Tree::host("7.3.0", &MODERN).file("sys/devices/system/cpu/isolated", "2-3\n");
    assert_eq!(statuses(&idle), [0, 0, 0, 0, 1], "a trial needs VMs");
    let text = idle.for_purpose(Purpose::Rt).text();
    assert!(text.contains(", for rt\n") && text.contains("isolated 2-3") && !text.contains("host.kvm"), "{text}");
}

#[test]
fn managers_have_lines_of_their_own() {
    let key = "-object\0secret,id=masterKey0\0";
    let nova = format!("qemu\0-name\0guest=instance-1a\0{key}-smbios\0type=1,product=OpenStack Nova\0");
    let proxmox = "kvm\0-id\x00100\0-name\0web\0-pidfile\0/var/run/qemu-server/100.pid\0-m\x00512\0";
    let kubevirt = format!("qemu-kvm\0-name\0guest=shop_db\0{key}-smbios\0type=1,manufacturer=KubeVirt\0");
    let tree = Tree::host("7.3.0", &MODERN)
        .qemu(10, "/usr/bin/qemu-system-x86_64", &nova, PRIVATE)
        .qemu(20, "/usr/bin/qemu-system-x86_64", proxmox, PRIVATE)
        .qemu(30, "/usr/libexec/qemu-kvm", &kubevirt, PRIVATE);
    let report = tree.examine(None);
    let remedy = |pid| report.find("vm.memory", Some(pid)).expect("looked at").remedy.join("\n");
    assert!(remedy(10).contains("file_backed_memory") && remedy(10).contains("reboot --hard"), "{}", remedy(10));
    assert!(
        remedy(20).starts_with("qm set 100 --args '-object memory-backend-memfd,id=mem,size=512M"),
        "{}",
        remedy(20)
    );
    assert!(remedy(30).contains("virtiofs") && remedy(30).contains("passt"), "{}", remedy(30));
}

#[test]
fn json_has_a_fixed_form() {
    let report = Tree::host("6.1.0", &[]).examine(None);
    let json = serde_json::to_value(&report).expect("serializes");
    assert_eq!(json["schema"], 1);
    let uptr = json["findings"].as_array().expect("a list").iter().find(|one| one["id"] == "host.uptr").expect("there");
    assert_eq!(uptr["status"], "missing");
    assert!(uptr["needed_for"].is_string() && uptr["found"].is_string() && uptr["remedy"].is_array());
}
