//! One VM that the daemon knows.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::discover::FoundVm;
use crate::entitlement::Group;
use crate::pair::Paired;
use crate::scan::Scan;

/// How a VM's guest and the host are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// No agent has been found in the guest: the host's own figures are all there is.
    Silent,
    /// Some vCPUs are paired, others not (yet).
    Partial,
    /// Every page that the guest registered is paired.
    Paired,
    /// The guest's RAM is private to the VMM: its preempt count is read, but nothing can be published to it.
    ReadOnly,
    /// The VM is being migrated or copied: the pairing was given up and comes back when that ends.
    Migrating,
    /// The guest offers what this host does not accept; the log says why.
    Refused,
}

impl Channel {
    /// A word of at most 9 letters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Partial => "partial",
            Self::Paired => "paired",
            Self::ReadOnly => "read-only",
            Self::Migrating => "migrating",
            Self::Refused => "refused",
        }
    }
}

/// What a guest has registered: the pages of one cookie.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// Guest-physical address of each page, by the guest's number of the vCPU.
    pub(crate) pages: Vec<u64>,
    /// The page of vCPU 0, as verified.
    pub(crate) first: entrain_channel::validate::ValidatedHeader,
}

/// A vCPU that is watched.
#[derive(Debug)]
pub(crate) struct Vcpu {
    /// Its entry in BPF's tables.
    pub(crate) index: u32,
    pub(crate) tid: i32,
    pub(crate) kvm_vcpu: u64,
    pub(crate) paired: Option<Paired>,
}

/// A VM that is watched.
#[derive(Debug)]
pub(crate) struct Vm {
    /// Its entry in BPF's tables.
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) found: FoundVm,
    /// By KVM's vcpu_id.
    pub(crate) vcpus: BTreeMap<u32, Vcpu>,
    pub(crate) scan: Scan,
    pub(crate) registration: Option<Registration>,
    pub(crate) channel: Channel,
    /// The agent's heartbeat and when it last changed.
    pub(crate) beat: (u64, Instant),
    /// Switches of its vCPUs at that time.
    pub(crate) ran: u64,
    pub(crate) entitlement: u32,
    /// Its cgroup.
    pub(crate) group: Group,
    /// By the configuration.
    pub(crate) class: Option<String>,
    said: HashSet<String>,
}

impl Vm {
    pub(crate) fn new(number: u32, name: String, found: FoundVm) -> Self {
        Self {
            number,
            name,
            found,
            vcpus: BTreeMap::new(),
            scan: Scan::new(),
            registration: None,
            channel: Channel::Silent,
            beat: (0, Instant::now()),
            ran: 0,
            entitlement: 0,
            group: Group::default(),
            class: None,
            said: HashSet::new(),
        }
    }

    /// True the first time that this is to be said of this VM.
    pub(crate) fn first_time(&mut self, text: &str) -> bool {
        // A guest that makes up ever new mistakes fills neither the log nor the memory.
        self.said.len() < 32 && self.said.insert(text.to_owned())
    }

    /// Its pages are given up: the search begins anew, where the first of them was.
    pub(crate) fn start_over(&mut self, channel: Channel) {
        self.channel = channel;
        self.scan.restart(self.registration.take().and_then(|was| was.pages.first().copied()));
    }

    /// vCPUs that are paired.
    pub(crate) fn paired(&self) -> usize {
        self.vcpus.values().filter(|vcpu| vcpu.paired.is_some()).count()
    }
}

/// A name for people: what the VMM was given as `-name`, `--name` or `--id`, else the program's name; with the pid.
pub fn name(proc: &Path, pid: i32) -> String {
    let folder = proc.join(pid.to_string());
    let comm = fs::read_to_string(folder.join("comm")).unwrap_or_default();
    let line = fs::read(folder.join("cmdline")).unwrap_or_default();
    chosen_name(&comm, &line).unwrap_or_else(|| format!("pid {pid}"))
}

/// The name in a process's `comm` and `cmdline`, which are the VMM's and its user's choice and go to logs, terminals and
/// labels: at most 40 characters, none of them a control character. `None` where nothing is left.
pub(crate) fn chosen_name(comm: &str, line: &[u8]) -> Option<String> {
    let words: Vec<String> = line.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let named = words.windows(2).find(|pair| matches!(pair[0].as_str(), "-name" | "--name" | "--id"));
    let named = named.map(|pair| {
        let value = pair[1].split(',').next().unwrap_or_default();
        value.strip_prefix("guest=").unwrap_or(value).to_owned()
    });
    let text = named.filter(|name| !name.is_empty()).unwrap_or_else(|| comm.trim().to_owned());
    let clean: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
    (!clean.is_empty()).then_some(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_command_line_and_carry_no_control_characters() {
        let dir = tempfile::tempdir().unwrap();
        let put = |pid: i32, comm: &str, line: &[u8]| {
            let folder = dir.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), comm).unwrap();
            fs::write(folder.join("cmdline"), line).unwrap();
        };
        put(1, "qemu-system-x86\n", b"qemu\0-name\0guest=web1,debug-threads=on\0-m\x00512\0");
        put(2, "firecracker\n", b"firecracker\0--id\0a\x1b[31mb\0");
        put(3, "crosvm\n", b"crosvm\0run\0");
        assert_eq!(name(dir.path(), 1), "web1");
        assert_eq!(name(dir.path(), 2), "a[31mb");
        assert_eq!(name(dir.path(), 3), "crosvm");
        assert_eq!(name(dir.path(), 4), "pid 4");
    }

    #[test]
    fn a_fact_is_said_once() {
        let mut vm = Vm::new(0, "vm".into(), FoundVm::default());
        assert!(vm.first_time("its RAM is private"));
        assert!(!vm.first_time("its RAM is private"));
        let new = (0..100).filter(|i| vm.first_time(&i.to_string())).count();
        assert_eq!(new, 31);
    }
}
