//! How CPUs are taken out of use without sched_ext: an isolated cpuset partition (cgroup v2), or hotplug.
//!
//! What a backend changed stands in the file system itself (the partition, the CPUs' `online`) and, for hotplug, in a
//! file of the run folder, so that the next start can undo what a killed agent left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use entrain_system::{CpuSet, Root};

use crate::error::{GuestError, Result};

/// In the run folder: the CPUs that are offline by hotplug.
const RECORD: &str = "offline";
/// The cgroup that holds the parked CPUs and no task.
const PARTITION: &str = "entrain-parked";

/// How CPUs are parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// An isolated cpuset partition: nothing is scheduled there, interrupts and per-CPU threads go on
    Cpuset,
    /// CPU hotplug: slower by orders of magnitude, but every kernel has it
    Hotplug,
}

/// Parks CPUs; its end unparks them all.
#[derive(Debug)]
pub struct Parking {
    root: Root,
    backend: Backend,
    record: PathBuf,
    parked: BTreeSet<u32>,
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| GuestError::File { path: path.to_owned(), source })
}

impl Parking {
    /// With the given backend, or the best that this system has. `run_folder` is the agent's.
    ///
    /// # Errors
    /// When a backend was asked for that this system lacks.
    pub fn new(root: &Root, run_folder: &Path, backend: Option<Backend>) -> Result<Parking> {
        let record = run_folder.join(RECORD);
        restore(root, &record)?;
        let has_cpuset = root
            .text("sys/fs/cgroup/cgroup.controllers")
            .is_some_and(|controllers| controllers.split_ascii_whitespace().any(|name| name == "cpuset"));
        let backend = match backend {
            Some(Backend::Cpuset) if !has_cpuset => return Err(GuestError::NoCpuset),
            Some(backend) => backend,
            None if has_cpuset => Backend::Cpuset,
            None => Backend::Hotplug,
        };
        let parking = Parking { root: root.clone(), backend, record, parked: BTreeSet::new() };
        if backend == Backend::Cpuset {
            write(&root.path("sys/fs/cgroup/cgroup.subtree_control"), "+cpuset")?;
            let folder = parking.partition();
            fs::create_dir_all(&folder).map_err(|source| GuestError::File { path: folder, source })?;
        }
        Ok(parking)
    }

    /// Which backend it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// CPUs that are parked now.
    pub fn parked(&self) -> &BTreeSet<u32> {
        &self.parked
    }

    fn partition(&self) -> PathBuf {
        self.root.path("sys/fs/cgroup").join(PARTITION)
    }

    /// Parks exactly these CPUs.
    ///
    /// # Errors
    /// When the kernel refuses; then what was parked before still is, as far as the kernel says.
    pub fn park(&mut self, cpus: &BTreeSet<u32>) -> Result<()> {
        if *cpus == self.parked {
            return Ok(());
        }
        match self.backend {
            Backend::Cpuset => self.park_by_cpuset(cpus)?,
            Backend::Hotplug => self.park_by_hotplug(cpus)?,
        }
        self.parked.clone_from(cpus);
        Ok(())
    }

    fn park_by_cpuset(&self, cpus: &BTreeSet<u32>) -> Result<()> {
        let folder = self.partition();
        if cpus.is_empty() {
            return write(&folder.join("cpuset.cpus.partition"), "member");
        }
        write(&folder.join("cpuset.cpus"), &list(cpus))?;
        if self.parked.is_empty() {
            write(&folder.join("cpuset.cpus.partition"), "isolated")?;
        }
        // The kernel takes any text and says afterwards whether it became a partition.
        let path = folder.join("cpuset.cpus.partition");
        let state = fs::read_to_string(&path).map_err(|source| GuestError::File { path: path.clone(), source })?;
        if state.trim() == "isolated" { Ok(()) } else { Err(GuestError::Unexpected { path, found: state }) }
    }

    fn park_by_hotplug(&self, cpus: &BTreeSet<u32>) -> Result<()> {
        // The record first: a kill between the two leaves a record too long, which does no harm.
        let both: BTreeSet<u32> = cpus.union(&self.parked).copied().collect();
        write(&self.record, &list(&both))?;
        for cpu in cpus.difference(&self.parked) {
            write(&online_file(&self.root, *cpu), "0")?;
        }
        for cpu in self.parked.difference(cpus) {
            write(&online_file(&self.root, *cpu), "1")?;
        }
        write(&self.record, &list(cpus))
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        if let Err(error) = restore(&self.root, &self.record) {
            tracing::error!("parked CPUs could not be taken into use again: {error}");
        }
    }
}

/// Takes into use what an agent that was killed had parked; `run_folder` is the agent's.
///
/// # Errors
/// The kernel refuses; what it does not refuse is taken into use all the same.
pub fn take_back(run_folder: &Path) -> Result<()> {
    restore(&Root::live(), &run_folder.join(RECORD))
}

/// Takes into use whatever is parked, by this agent or by one that was killed.
fn restore(root: &Root, record: &Path) -> Result<()> {
    let folder = root.path("sys/fs/cgroup").join(PARTITION);
    if folder.exists() {
        write(&folder.join("cpuset.cpus.partition"), "member")?;
        fs::remove_dir(&folder).map_err(|source| GuestError::File { path: folder, source })?;
    }
    let Ok(text) = fs::read_to_string(record) else { return Ok(()) };
    let cpus = CpuSet::lossy(&text);
    // All of them are tried; the record stays for the next attempt if one was refused.
    cpus.iter().map(|cpu| write(&online_file(root, cpu), "1")).fold(Ok(()), Result::and)?;
    fs::remove_file(record).map_err(|source| GuestError::File { path: record.to_owned(), source })
}

fn online_file(root: &Root, cpu: u32) -> PathBuf {
    root.path(format!("sys/devices/system/cpu/cpu{cpu}/online"))
}

/// CPUs that can be parked in this way: those of `cpus` that have a switch, where a switch is needed.
pub fn parkable(root: &Root, backend: Backend, cpus: &[u32]) -> BTreeSet<u32> {
    cpus.iter().copied().filter(|&cpu| backend == Backend::Cpuset || online_file(root, cpu).exists()).collect()
}

fn list(cpus: &BTreeSet<u32>) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    fn machine() -> Machine {
        let machine = Machine::new((1..4).map(|cpu| (format!("sys/devices/system/cpu/cpu{cpu}/online"), "1")));
        fs::create_dir_all(machine.path().join("run")).expect("a folder");
        machine
    }

    fn online(root: &Machine) -> Vec<bool> {
        (1..4).map(|cpu| root.get(&format!("sys/devices/system/cpu/cpu{cpu}/online")) == "1").collect()
    }

    #[test]
    fn hotplug_follows_the_set_and_ends_with_all_cpus() {
        let root = machine();
        let mut parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        assert_eq!(parking.backend(), Backend::Hotplug);
        parking.park(&BTreeSet::from([2, 3])).expect("parked");
        assert_eq!(online(&root), [true, false, false]);
        parking.park(&BTreeSet::from([1, 3])).expect("parked");
        assert_eq!(online(&root), [false, true, false]);
        drop(parking);
        assert_eq!(online(&root), [true, true, true]);
        assert!(!root.path().join("run/offline").exists());
    }

    #[test]
    fn the_next_start_takes_back_what_a_killed_agent_parked() {
        let root = machine();
        let run = root.path().join("run");
        let mut killed = Parking::new(&root.root(), &run, None).expect("hotplug");
        killed.park(&BTreeSet::from([1, 2])).expect("parked");
        std::mem::forget(killed);
        assert_eq!(online(&root), [false, false, true]);
        let _next = Parking::new(&root.root(), &run, None).expect("hotplug");
        assert_eq!(online(&root), [true, true, true]);
    }

    #[test]
    fn a_backend_that_is_not_there_is_an_error_and_cpu0_without_a_switch_is_not_parkable() {
        let root = machine();
        let run = root.path().join("run");
        assert!(matches!(Parking::new(&root.root(), &run, Some(Backend::Cpuset)), Err(GuestError::NoCpuset)));
        assert_eq!(parkable(&root.root(), Backend::Hotplug, &[0, 1, 2]), BTreeSet::from([1, 2]));
        assert_eq!(parkable(&root.root(), Backend::Cpuset, &[0, 1]), BTreeSet::from([0, 1]));
    }
}
