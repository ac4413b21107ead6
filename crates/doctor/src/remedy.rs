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
                format!("virsh edit {}, below <domain>:", vm.name),
                format!("<memoryBacking>{pages}<source type='memfd'/><access mode='shared'/></memoryBacking>"),
            ]
        }
        // virt-launcher writes <memoryBacking> itself; it shares the RAM of VMs that have a file system on virtiofs.
        Vmm::Kubevirt => vec![
            "KubeVirt: give the VM a file system on virtiofs (spec.domain.devices.filesystems: [{name: DISK, virtiofs: {}}])"
                .to_owned(),
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
