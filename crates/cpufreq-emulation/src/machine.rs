//! The CPUs of the machine that the emulation runs in, as its kernel shows them in sysfs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use entrain_cpufreq_emulation::tables::{Cluster, TABLES, Table};

/// One CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) number: u32,
    pub(crate) cluster: &'static Cluster,
    /// Of 1024 for the machine's fastest CPU.
    pub(crate) capacity: u32,
    /// Frequency now, kHz.
    pub(crate) khz: u32,
}

impl Cpu {
    /// Speed at a frequency, of 1024 for the machine's fastest CPU at its fastest point.
    pub(crate) fn level(&self, khz: u32) -> u32 {
        let level = u64::from(self.capacity) * u64::from(khz) / u64::from(self.cluster.fastest().khz());
        (level as u32).clamp(1, 1024)
    }

    /// Index of the point in force.
    pub(crate) fn point(&self) -> u32 {
        let place = self.cluster.points.iter().position(|point| point.khz() == self.khz);
        place.unwrap_or(self.cluster.points.len() - 1) as u32
    }
}

/// All CPUs below `root` (`/`), and the table that they are of.
pub(crate) fn cpus(root: &Path) -> Result<(&'static Table, Vec<Cpu>)> {
    let folder = root.join("sys/devices/system/cpu");
    let mut cpus = Vec::new();
    let mut used = None;
    for number in 0.. {
        let cpu = folder.join(format!("cpu{number}"));
        if !cpu.exists() {
            break;
        }
        let fastest = read(&cpu.join("cpufreq/cpuinfo_max_freq")).context(
            "this CPU's frequency can't be scaled: boot the host machine with the lab's emulated frequency hardware \
             (--frequency chromebook:big,big, or machine.frequency in an experiment)",
        )?;
        let found = TABLES.iter().find_map(|table| Some((table, table.cluster_of_khz(fastest)?)));
        let Some((table, cluster)) = found else {
            bail!("CPU {number} goes up to {fastest} kHz: of no table that the emulation knows");
        };
        if used.is_some_and(|other: &Table| other.name != table.name) {
            bail!("CPU {number} is of another table than CPU 0");
        }
        used = Some(table);
        let capacity = read(&cpu.join("cpu_capacity"))?;
        cpus.push(Cpu { number, cluster, capacity, khz: read(&cpu.join("cpufreq/scaling_cur_freq"))? });
    }
    Ok((used.context("this machine shows no CPU in sysfs")?, cpus))
}

fn read(path: &Path) -> Result<u32> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} holds no number: {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(cpus: &[(u32, u32, u32)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, (max, cur, capacity)) in cpus.iter().enumerate() {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{number}"));
            fs::create_dir_all(folder.join("cpufreq")).unwrap();
            fs::write(folder.join("cpufreq/cpuinfo_max_freq"), format!("{max}\n")).unwrap();
            fs::write(folder.join("cpufreq/scaling_cur_freq"), format!("{cur}\n")).unwrap();
            fs::write(folder.join("cpu_capacity"), format!("{capacity}\n")).unwrap();
        }
        root
    }

    #[test]
    fn clusters_and_levels_come_from_sysfs() {
        let root = fake(&[(2_016_000, 1_008_000, 1024), (1_512_000, 1_512_000, 363)]);
        let (table, cpus) = super::cpus(root.path()).unwrap();
        assert_eq!((table.name, cpus[0].cluster.name, cpus[1].cluster.name), ("chromebook", "big", "little"));
        assert_eq!((cpus[0].level(1_008_000), cpus[1].level(1_512_000)), (512, 363));
        assert_eq!(cpus[0].point(), 3);
    }

    #[test]
    fn other_hardware_is_refused() {
        let root = fake(&[(3_000_000, 3_000_000, 1024)]);
        assert!(super::cpus(root.path()).unwrap_err().to_string().contains("of no table"));
        let empty = tempfile::tempdir().unwrap();
        fs::create_dir_all(empty.path().join("sys/devices/system/cpu/cpu0")).unwrap();
        assert!(super::cpus(empty.path()).unwrap_err().to_string().contains("--frequency"));
    }
}
