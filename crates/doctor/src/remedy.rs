//! The line that shares a VM's memory, in the words of each VMM. All of them need the VM to be started anew: what backs a
//! running VM's memory cannot be changed.

use crate::running::{Backing, RunningVm};
use crate::vmm::Vmm;

/// What to add for `mib` MiB of shared RAM; huge pages stay huge.
pub(crate) fn share(vm: &RunningVm, mib: u64) -> Vec<String> {
    let huge = vm.ram.is_some_and(|ram| ram.backing == Backing::PrivateHuge);
    let lines: Vec<String> = match vm.vmm {
        Vmm::Qemu => {
            let tlb = if huge { ",hugetlb=on" } else { "" };
            vec![format!(
                "QEMU: -object memory-backend-memfd,id=mem,size={mib}M,share=on{tlb} -machine memory-backend=mem"
            )]
        }
        Vmm::Libvirt => {
            let pages = if huge { "<hugepages/>" } else { "" };
            vec![
                format!("virsh edit {}, below <domain>:", vm.identity.managed_as),
                format!("<memoryBacking>{pages}<source type='memfd'/><access mode='shared'/></memoryBacking>"),
            ]
        }
        // Proxmox makes RAM objects itself where the VM has NUMA or memory that can be plugged; these lines are for others.
        Vmm::Proxmox => {
            let (id, tlb) = (&vm.identity.managed_as, if huge { ",hugetlb=on" } else { "" });
            vec![
                format!(
                    "qm set {id} --args '-object memory-backend-memfd,id=mem,size={mib}M,share=on{tlb} \
                     -machine memory-backend=mem'"
                ),
                format!("or, since Proxmox VE 8.4, a directory on virtiofs: qm set {id} --virtiofs0 dirid=DIR"),
            ]
        }
        Vmm::Nova => vec![
            "Nova, on this compute host: file_backed_memory = MIB in [libvirt] of nova.conf (MIB: all that its instances may \
             have), ram_allocation_ratio = 1.0, no huge pages; memory_backing_dir = \"/dev/shm\" in /etc/libvirt/qemu.conf"
                .to_owned(),
            "then restart nova-compute, and: openstack server reboot --hard SERVER".to_owned(),
        ],
        // virt-launcher writes <memoryBacking> itself. It shares the RAM of VMs that have a file system on virtiofs or an
        // interface bound by passt (pkg/virt-launcher/virtwrap/converter/compute/memory_backing.go), and of no other: huge
        // pages alone are a memfd that is private.
        Vmm::Kubevirt => vec![
            "KubeVirt: give the VM a file system on virtiofs (spec.domain.devices.filesystems: [{name: DISK, virtiofs: {}}])"
                .to_owned(),
            "or an interface with passt (spec.domain.devices.interfaces: [{name: default, binding: {name: passt}}])".to_owned(),
            "or, by the onDefineDomain hook of a sidecar: <memoryBacking><source type='memfd'/><access mode='shared'/>\
             </memoryBacking>"
                .to_owned(),
        ],
        Vmm::CloudHypervisor => {
            let pages = if huge { ",hugepages=on" } else { "" };
            vec![format!("Cloud Hypervisor: --memory size={mib}M,shared=on{pages}")]
        }
        Vmm::Firecracker => vec![
            "Firecracker shares a VM's memory only when it has a vhost-user drive: PUT /drives/ID with \
             {\"drive_id\":\"ID\",\"is_root_device\":false,\"socket\":\"/path/of/backend.sock\"} before the start; \
             its snapshots do not work then"
                .to_owned(),
        ],
        // Its RAM is a memfd mapped shared whatever its options are, so this is not the RAM that it boots with by itself.
        Vmm::Crosvm => vec![
            "crosvm maps RAM shared without any option (crosvm run --mem SIZE): see that no wrapper of it does otherwise"
                .to_owned(),
        ],
        Vmm::Other => vec!["let the VMM map the guest's RAM from a memfd with MAP_SHARED".to_owned()],
    };
    lines.into_iter().chain(["then start the VM anew".to_owned()]).collect()
}
