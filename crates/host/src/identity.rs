//! Who a VM is: its name, its UUID, whose it is and what that manager calls it.

use std::fs::File;
use std::io::Read;

use entrain_system::{Root, is_plain};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cgroup;

/// Bytes of a command line that are looked at: the kernel lets a user's be hundreds of megabytes long, and a VMM has all
/// that is looked for among the first words.
const LINE: u64 = 64 << 10;
/// Characters of a name: libvirt and the file systems that hold its files take no longer one.
pub(crate) const NAME: usize = 255;

/// A program that runs VMs for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// libvirt, by itself.
    Libvirt,
    /// Proxmox VE.
    Proxmox,
    /// KubeVirt, whose virt-launcher uses libvirt.
    Kubevirt,
    /// OpenStack's Nova, which uses libvirt.
    Openstack,
}

impl Manager {
    /// As it stands in labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::Proxmox => "proxmox",
            Self::Kubevirt => "kubevirt",
            Self::Openstack => "openstack",
        }
    }
}

/// Who a VM is, by its VMM's command line. That is the choice of whoever started the VMM and goes to logs, terminals and
/// labels: [`NAME`] characters at most, all of them [`is_plain`]. No access is granted by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// For people: what the VMM was given as `-name`, `--name` or `--id`, else the program's name.
    pub name: String,
    /// Given as `-uuid`, in `-smbios type=1` or in `--platform`: in lower case, with hyphens.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Who runs it; `None` where nothing tells.
    #[serde(default)]
    pub manager: Option<Manager>,
    /// What its manager's commands call it: libvirt's domain (`virsh dominfo`), Proxmox's number (`qm status`), KubeVirt's
    /// `NAMESPACE/NAME` (`kubectl get vmi`), Nova's instance (`OS-EXT-SRV-ATTR:instance_name`). Empty without a manager.
    #[serde(default)]
    pub managed_as: String,
}

impl Identity {
    /// Of the VM that this process runs.
    pub fn of(root: &Root, pid: i32) -> Self {
        let comm = root.text(format!("proc/{pid}/comm")).unwrap_or_default();
        let mut line = Vec::new();
        if let Ok(file) = File::open(root.path(format!("proc/{pid}/cmdline"))) {
            // What was read until an error is what there is.
            let _ = file.take(LINE).read_to_end(&mut line);
        }
        let cgroup = cgroup::cgroup_of(root, pid).unwrap_or_default();
        Self::chosen(&comm, &line, &cgroup).unwrap_or_else(|| Self::unknown(pid))
    }

    /// Of a process that tells nothing of itself.
    pub(crate) fn unknown(pid: i32) -> Self {
        Self { name: format!("pid {pid}"), ..Self::default() }
    }

    /// By a process's `comm`, `cmdline` and cgroup. `None` where no name is left.
    pub(crate) fn chosen(comm: &str, line: &[u8], cgroup: &str) -> Option<Self> {
        let words: Vec<String> =
            line.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let named = values(&words, &["name", "id"]).find_map(|(option, value)| match option {
            "name" => first(value, "guest"),
            // Proxmox gives its number as -id and the name besides.
            _ => (!words.iter().any(|word| word == "-name")).then(|| value.to_owned()),
        });
        let name = plain(&named.filter(|name| !name.is_empty()).unwrap_or_else(|| comm.trim().to_owned()));
        let manager = manager(&words, cgroup);
        let managed_as = match manager {
            None => String::new(),
            Some(Manager::Proxmox) => plain(values(&words, &["id"]).next().map_or("", |(_, id)| id)),
            // Neither may have an underscore: both are labels of DNS.
            Some(Manager::Kubevirt) => name.replacen('_', "/", 1),
            Some(Manager::Libvirt | Manager::Openstack) => name.clone(),
        };
        (!name.is_empty()).then(|| Self { name, uuid: uuid(&words), manager, managed_as })
    }
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| is_plain(*c)).take(NAME).collect()
}

/// Values of these options, written with one hyphen or two, with the option's name.
fn values<'a>(words: &'a [String], options: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    words.windows(2).filter_map(move |pair| {
        let option = pair[0].strip_prefix('-')?;
        let option = option.strip_prefix('-').unwrap_or(option);
        options.contains(&option).then_some((option, pair[1].as_str()))
    })
}

/// The parts of a value of QEMU's, where a comma that belongs to a part is doubled.
fn parts(value: &str) -> Vec<String> {
    value.replace(",,", "\0").split(',').map(|part| part.replace('\0', ",")).collect()
}

/// What such a value has for `key`.
fn part(value: &str, key: &str) -> Option<String> {
    parts(value).iter().find_map(|part| Some(part.split_once('=').filter(|(name, _)| *name == key)?.1.to_owned()))
}

/// The same where the key of the first part may be left out.
fn first(value: &str, key: &str) -> Option<String> {
    part(value, key).or_else(|| parts(value).into_iter().next().filter(|part| !part.contains('=')))
}

/// What the guest's firmware is told of the machine.
fn smbios<'a>(words: &'a [String], key: &'a str) -> impl Iterator<Item = String> + 'a {
    let system = values(words, &["smbios"]).filter(|(_, value)| part(value, "type").as_deref() == Some("1"));
    system.filter_map(move |(_, value)| part(value, key))
}

fn uuid(words: &[String]) -> Option<String> {
    let given = values(words, &["uuid"]).map(|(_, value)| value.to_owned());
    let platform = values(words, &["platform"]).filter_map(|(_, value)| part(value, "uuid"));
    let all = given.chain(smbios(words, "uuid")).chain(platform);
    let mut known = all.filter_map(|text| Uuid::try_parse(&text).ok()).filter(|uuid| !uuid.is_nil());
    known.next().map(|uuid| uuid.hyphenated().to_string())
}

fn manager(words: &[String], cgroup: &str) -> Option<Manager> {
    let has = |text: &str| words.iter().any(|word| word.contains(text));
    let made = |key, wanted: &str| smbios(words, key).any(|value| value.starts_with(wanted));
    // libvirt hands every QEMU its master key and keeps its sockets in a folder of its own.
    let libvirt = has("masterKey0") || has("/libvirt/");
    if libvirt && (made("manufacturer", "KubeVirt") || cgroup.contains("kubepods")) {
        Some(Manager::Kubevirt)
    } else if libvirt && made("product", "OpenStack ") {
        Some(Manager::Openstack)
    } else if libvirt {
        Some(Manager::Libvirt)
    } else if has("/qemu-server/") {
        Some(Manager::Proxmox)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    const U: &str = "a1b2c3d4-0000-4000-8000-0123456789ab";

    fn of(line: &str, cgroup: &str) -> Identity {
        Identity::chosen("qemu", line.replace(' ', "\0").as_bytes(), cgroup).expect("has a name")
    }

    #[test]
    fn names_come_from_the_command_line_and_carry_no_control_characters() {
        let machine = Machine::default();
        let put = |pid: i32, comm: &str, line: &[u8]| {
            machine.put(&format!("proc/{pid}/comm"), comm);
            machine.put(&format!("proc/{pid}/cmdline"), line);
        };
        put(1, "qemu-system-x86\n", b"qemu\0-name\0guest=web1,debug-threads=on\0-m\x00512\0");
        put(2, "firecracker\n", b"firecracker\0--id\0a\x1b[31mb\0");
        put(5, "qemu\n", "qemu\0-name\0db\u{202e}1-\u{2066}bew\u{200b}\0".as_bytes());
        put(6, "qemu\n", &[b"qemu\0".as_slice(), &vec![b'x'; 1 << 20], b"\0-name\0far\0"].concat());
        put(3, "crosvm\n", b"crosvm\0run\0");
        let name = |pid| Identity::of(&machine.root(), pid).name;
        assert_eq!(name(1), "web1");
        assert_eq!(name(2), "a[31mb");
        assert_eq!(name(3), "crosvm");
        assert_eq!(name(4), "pid 4");
        assert_eq!(name(5), "db1-bew", "nothing reads from the right");
        assert_eq!(name(6), "qemu", "what stands behind a megabyte is not looked for");
    }

    #[test]
    fn names_are_whole_and_commas_in_them_are_theirs() {
        let long = "a-name-that-is-longer-than-forty-characters-as-clouds-make-them";
        assert_eq!(of(&format!("qemu -name guest={long},debug-threads=on"), "/").name, long);
        assert_eq!(of(&format!("qemu -name {}", "x".repeat(1000)), "/").name.len(), NAME);
        assert_eq!(of("qemu -name a,,b,process=c", "/").name, "a,b");
        assert_eq!(of("qemu -name process=c", "/").name, "qemu");
    }

    /// The lines are those of libvirt 10, Proxmox VE 8, KubeVirt 1.3 and Nova 29, with what matters not left out.
    #[test]
    fn managers_are_known_by_their_lines() {
        let key = "-object {\"qom-type\":\"secret\",\"id\":\"masterKey0\"}";
        let libvirt = of(&format!("qemu -name guest=db,debug-threads=on {key} -uuid {}", U.to_uppercase()), "/m.slice");
        assert_eq!((libvirt.manager, libvirt.managed_as.as_str()), (Some(Manager::Libvirt), "db"));
        assert_eq!(libvirt.uuid.as_deref(), Some(U));
        let proxmox = of(
            &format!(
                "/usr/bin/kvm -id 100 -name web,debug-threads=on -pidfile /var/run/qemu-server/100.pid -smbios type=1,uuid={U}"
            ),
            "/qemu.slice/100.scope",
        );
        assert_eq!((proxmox.name.as_str(), proxmox.managed_as.as_str()), ("web", "100"));
        assert_eq!((proxmox.manager, proxmox.uuid.as_deref()), (Some(Manager::Proxmox), Some(U)));
        let pod = "/kubepods.slice/pod1/x";
        let smbios = format!("-smbios type=1,manufacturer=KubeVirt,product=None,uuid={U},family=KubeVirt");
        let kubevirt = of(&format!("qemu-kvm -name guest=shop_db-0 {key} {smbios}"), pod);
        assert_eq!((kubevirt.manager, kubevirt.managed_as.as_str()), (Some(Manager::Kubevirt), "shop/db-0"));
        assert_eq!(of(&format!("qemu-kvm -name guest=a_b {key}"), pod).manager, Some(Manager::Kubevirt));
        // Words of a value may have spaces.
        let nova = [
            b"qemu\0-name\0guest=instance-0000001a\0-object\0secret,id=masterKey0\0-smbios\0".as_slice(),
            b"type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova,serial=x,family=Virtual Machine\0",
        ]
        .concat();
        let nova = Identity::chosen("qemu", &nova, "/machine.slice").expect("a name");
        assert_eq!((nova.manager, nova.managed_as.as_str()), (Some(Manager::Openstack), "instance-0000001a"));
        assert_eq!(of("qemu -name a", pod).manager, None, "a pod may run QEMU by itself");
    }

    #[test]
    fn a_uuid_is_one_or_none() {
        let uuid = |line: &str| of(line, "/").uuid;
        assert_eq!(uuid(&format!("cloud-hypervisor --platform num_pci_segments=1,uuid={U}")).as_deref(), Some(U));
        assert_eq!(uuid("qemu -uuid nonsense"), None);
        assert_eq!(uuid("qemu -uuid 00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(uuid(&format!("qemu -smbios type=2,uuid={U}")), None, "that is the board's");
        assert_eq!(uuid(&format!("qemu -uuid nonsense -smbios type=1,uuid={U}")).as_deref(), Some(U));
        assert_eq!(uuid("qemu -uuid"), None);
    }
}
