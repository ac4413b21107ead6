//! The cells of the matrix.

use std::fmt;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use super::MatrixArgs;

/// Pause-loop exiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ple {
    /// As KVM has it
    Default,
    /// Off
    Off,
}

/// Paravirtual spinlocks in the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Spin {
    /// As the guests' kernel has them
    Default,
    /// Off: nopvspin
    Off,
}

impl fmt::Display for Ple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Default { "default" } else { "off" })
    }
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Default { "default" } else { "off" })
    }
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cell {
    /// Of each VM.
    pub(super) vcpus: u32,
    /// All VMs' vCPUs for each pCPU.
    pub(super) overcommit: u32,
    /// VMs.
    pub(super) vms: u32,
    pub(super) ple: Ple,
    pub(super) pvspin: Spin,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpus, overcommit, vms, ple, pvspin } = self;
        write!(f, "{vms} VMs of {vcpus} vCPUs ({overcommit}x), PLE {ple}, pvspin {pvspin}")
    }
}

/// All cells for a host of so many pCPUs; those without PLE last.
pub(super) fn cells(args: &MatrixArgs, pcpus: u32) -> anyhow::Result<Vec<Cell>> {
    let mut all = Vec::new();
    for ple in [Ple::Default, Ple::Off].into_iter().filter(|ple| args.ple.contains(ple)) {
        for &vcpus in &args.vcpus {
            for &overcommit in &args.overcommit {
                let vms = overcommit * pcpus / vcpus;
                ensure!(
                    vms > 0 && vms * vcpus == overcommit * pcpus,
                    "VMs of {vcpus} vCPUs do not make {overcommit}x of {pcpus} pCPUs: give --vcpus that divide it"
                );
                for &pvspin in &args.pvspin {
                    all.push(Cell { vcpus, overcommit, vms, ple, pvspin });
                }
            }
        }
    }
    Ok(all)
}
