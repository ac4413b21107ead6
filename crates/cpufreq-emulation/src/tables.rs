//! Published operating points of real processors.
//!
//! Frequency, voltage, capacity and power coefficient are those of the device trees in Linux 7.3 (`arch/arm64/boot/dts`),
//! where the processors' makers and their users put them. Each table names its file. No device tree has a server's; its
//! figures are its maker's, from a paper.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One operating point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Frequency in MHz.
    pub mhz: u32,
    /// Voltage in mV.
    pub mv: u32,
}

/// Frequencies are multiples of the emulated crystal's, MHz: the emulated hardware's tables hold 8-bit multiples.
pub const CRYSTAL_MHZ: u32 = 12;

impl Point {
    /// The frequency as a multiple of [`CRYSTAL_MHZ`]: exact for the Chromebook, within 6 MHz for the others.
    pub fn multiple(self) -> u32 {
        (self.mhz + CRYSTAL_MHZ / 2) / CRYSTAL_MHZ
    }

    /// The frequency as the kernel sees it, kHz.
    pub fn khz(self) -> u32 {
        self.multiple() * CRYSTAL_MHZ * 1000
    }
}

/// CPUs of one kind, which share a clock and a voltage.
#[derive(Debug, PartialEq, Eq)]
pub struct Cluster {
    /// What it is called in experiment files.
    pub name: &'static str,
    /// The core's name.
    pub core: &'static str,
    /// Work per MHz, relative to the table's others (`capacity-dmips-mhz`).
    pub dmips_per_mhz: u32,
    /// Power coefficient in µW / (MHz · V²) (`dynamic-power-coefficient`).
    pub coefficient: u32,
    /// From slow to fast.
    pub points: &'static [Point],
}

/// The clusters of one processor.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// What it is called in experiment files.
    pub name: &'static str,
    /// The processor, and where the figures stand.
    pub source: &'static str,
    /// Time from a request until the new frequency is in force, µs (`clock-latency-ns`).
    pub delay_us: u32,
    /// Its clusters.
    pub clusters: &'static [Cluster],
}

macro_rules! points {
    ($($mhz:literal @ $mv:literal),* $(,)?) => { &[$(Point { mhz: $mhz, mv: $mv }),*] };
}

/// All tables. Voltages are rounded to whole mV.
pub static TABLES: &[Table] = &[
    Table {
        name: "chromebook",
        source: "Rockchip RK3399 \"OP1\" of Chromebooks: rockchip/rk3399-op1.dtsi, rk3399-base.dtsi",
        delay_us: 40,
        clusters: &[
            Cluster {
                name: "little",
                core: "Cortex-A53",
                dmips_per_mhz: 485,
                coefficient: 100,
                points: points![408 @ 800, 600 @ 825, 816 @ 850, 1008 @ 900, 1200 @ 975, 1416 @ 1100, 1512 @ 1150],
            },
            Cluster {
                name: "big",
                core: "Cortex-A72",
                dmips_per_mhz: 1024,
                coefficient: 436,
                points: points![
                    408 @ 800, 600 @ 800, 816 @ 825, 1008 @ 850, 1200 @ 900, 1416 @ 975, 1608 @ 1050, 1800 @ 1150,
                    2016 @ 1250,
                ],
            },
        ],
    },
    Table {
        name: "phone",
        source: "Google Tensor GS101 of the Pixel 6: exynos/google/gs101.dtsi",
        delay_us: 500,
        clusters: &[
            Cluster {
                name: "little",
                core: "Cortex-A55",
                dmips_per_mhz: 250,
                coefficient: 70,
                points: points![
                    300 @ 538, 574 @ 600, 738 @ 619, 930 @ 669, 1098 @ 713, 1197 @ 731, 1328 @ 763, 1401 @ 781,
                    1598 @ 831, 1704 @ 863, 1803 @ 906,
                ],
            },
            Cluster {
                name: "middle",
                core: "Cortex-A76",
                dmips_per_mhz: 620,
                coefficient: 284,
                points: points![
                    400 @ 506, 553 @ 538, 696 @ 563, 799 @ 581, 910 @ 606, 1024 @ 625, 1197 @ 663, 1328 @ 688,
                    1491 @ 731, 1663 @ 775, 1836 @ 819, 1999 @ 869, 2130 @ 919, 2253 @ 969,
                ],
            },
            Cluster {
                name: "big",
                core: "Cortex-X1",
                dmips_per_mhz: 1024,
                coefficient: 650,
                points: points![
                    500 @ 500, 851 @ 556, 984 @ 575, 1106 @ 606, 1277 @ 631, 1426 @ 663, 1582 @ 694, 1745 @ 731,
                    1826 @ 750, 2048 @ 794, 2188 @ 831, 2252 @ 850, 2401 @ 888, 2507 @ 925, 2630 @ 969, 2704 @ 1000,
                    2802 @ 1056,
                ],
            },
        ],
    },
    Table {
        name: "server",
        // The same core as the Opteron's of that time; the paper is on that one's power management. The coefficient is
        // the mean of what its four powers give, less 2.2 W for I/O (15.7 to 17.5 mW); the delay is our assumption: a
        // voltage is given some 100 µs to settle.
        source: "AMD K8 (ADA3200AEP4AX): Proceedings of the Linux Symposium 2004, volume one, page 169",
        delay_us: 100,
        clusters: &[Cluster {
            name: "core",
            core: "K8",
            dmips_per_mhz: 1024,
            coefficient: 16_660,
            points: points![1000 @ 1100, 1800 @ 1300, 2000 @ 1400, 2200 @ 1500],
        }],
    },
];

/// The table of that name.
pub fn table(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name)
}

impl Table {
    /// The cluster of that name.
    pub fn cluster(&self, name: &str) -> Option<&'static Cluster> {
        table(self.name)?.clusters.iter().find(|cluster| cluster.name == name)
    }

    /// The cluster whose fastest point that is, in kHz: how a running kernel's CPUs are told apart.
    pub fn cluster_of_khz(&self, khz: u32) -> Option<&'static Cluster> {
        table(self.name)?.clusters.iter().find(|cluster| cluster.fastest().khz() == khz)
    }
}

impl Cluster {
    /// The fastest point.
    pub fn fastest(&self) -> Point {
        *self.points.last().expect("no cluster is without points")
    }
}

/// Which CPUs a machine has: `TABLE:CLUSTER,CLUSTER,…`, one cluster's name for each CPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Name of a [`Table`].
    pub table: String,
    /// The cluster of each CPU.
    pub cores: Vec<String>,
}

/// A choice of CPUs that there are not.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChoiceError {
    /// No such table.
    #[error("no frequency table '{0}'; there are: {names}", names = names())]
    Table(String),
    /// No such cluster.
    #[error("the frequency table '{0}' has no cluster '{1}'; it has: {known}", known = clusters(.0))]
    Cluster(String, String),
    /// Not one cluster a CPU.
    #[error("{0} CPUs, but clusters for {1}: name one for each, as chromebook:big,little")]
    Count(usize, usize),
}

fn names() -> String {
    TABLES.iter().map(|table| table.name).collect::<Vec<_>>().join(", ")
}

fn clusters(name: &str) -> String {
    let all = table(name).map(|table| table.clusters.iter().map(|cluster| cluster.name).collect::<Vec<_>>());
    all.unwrap_or_default().join(", ")
}

impl Choice {
    /// Table and cluster of each of `cpus` CPUs.
    pub fn resolve(&self, cpus: usize) -> Result<(&'static Table, Vec<&'static Cluster>), ChoiceError> {
        let table = table(&self.table).ok_or_else(|| ChoiceError::Table(self.table.clone()))?;
        if self.cores.len() != cpus {
            return Err(ChoiceError::Count(cpus, self.cores.len()));
        }
        let cluster =
            |name: &String| table.cluster(name).ok_or_else(|| ChoiceError::Cluster(self.table.clone(), name.clone()));
        Ok((table, self.cores.iter().map(cluster).collect::<Result<_, _>>()?))
    }
}

impl FromStr for Choice {
    type Err = ChoiceError;
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let (table, cores) = text.split_once(':').unwrap_or((text, ""));
        let cores: Vec<String> = cores.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let choice = Self { table: table.to_owned(), cores };
        choice.resolve(choice.cores.len()).map(|_| choice)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.table, self.cores.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_rise_and_are_told_apart_by_their_fastest_point() {
        for table in TABLES {
            for cluster in table.clusters {
                let rises = |w: &[Point]| w[0].khz() < w[1].khz() && w[0].mv <= w[1].mv;
                assert!(cluster.points.windows(2).all(rises), "{} {}", table.name, cluster.name);
                assert!(cluster.fastest().multiple() <= 255);
                assert_eq!(table.cluster_of_khz(cluster.fastest().khz()), Some(cluster));
            }
        }
    }

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        let choice: Choice = "chromebook:big,little".parse().unwrap();
        assert_eq!(choice.to_string(), "chromebook:big,little");
        let (table, cores) = choice.resolve(2).unwrap();
        assert_eq!((table.name, cores[1].core), ("chromebook", "Cortex-A53"));
        assert_eq!(choice.resolve(3), Err(ChoiceError::Count(3, 2)));
        assert!("toaster:big".parse::<Choice>().unwrap_err().to_string().contains("chromebook, phone"));
        assert!("chromebook:huge".parse::<Choice>().unwrap_err().to_string().contains("little, big"));
    }
}
