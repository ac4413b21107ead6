//! The lab's emulation of CPUs whose frequency can be scaled. No part of the product: `entrain host` and `entrain guest`
//! see an ordinary kernel with an ordinary cpufreq driver.
//!
//! Two halves make the hardware. Outside of the host machine, [`hardware`] adds CPU clusters to its device tree and fills
//! a page of registers for each, in the form that a stock driver of Debian's kernel (`qcom-cpufreq-hw`) expects: a table
//! of operating points to read and one word to write. So frequency selection, frequency-invariant load tracking, CPU
//! capacities, uclamp, the energy model and `scx_bpf_cpuperf_set` are all the stock kernel's own. Inside, the program
//! `entrain-cpufreq-emulation` does what the silicon would: it makes each CPU as slow as its operating point says, and
//! counts the energy. `docs/frequency-lab.md` says how, and what it can't show.

pub mod energy;
pub mod hardware;
pub mod placement;
pub mod snapshot;
pub mod tables;
