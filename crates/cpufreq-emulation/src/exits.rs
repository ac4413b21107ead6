//! `exits`, in a guest: what telling the host would cost without a shared page.
//!
//! The published works tell their host by a hypercall or by MMIO, both of which leave the guest. Here a guest with
//! Entrain's agent reads a device's register at each change of its words, which costs about as much: one of the interrupt
//! controller, which KVM answers in the kernel, for a hypercall; one of the serial port, which the VMM answers, for MMIO.
//! What the host learns it learns from the page, in all of them: the difference between the arms is the exit.

use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use entrain_bpf::{Error, Step};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

/// The skeleton that the build script makes of the BPF program.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/exits.skel.rs"));
}

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct Arguments {
    /// What the exit stands for
    #[arg(long = "as", value_enum)]
    kind: Kind,
    /// The agent's pages, pinned
    #[arg(long, default_value = "/sys/fs/bpf/entrain/pages", value_name = "FILE")]
    pages: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// An exit to KVM
    Hypercall,
    /// An exit to the VMM
    Mmio,
}

impl Kind {
    /// Guest-physical address of the device on QEMU's machine `virt`, and of the register in it: GICD_TYPER of the
    /// interrupt controller, the flags of the PL011.
    fn register(self) -> (u64, u64) {
        match self {
            Self::Hypercall => (0x0800_0000, 0x04),
            Self::Mmio => (0x0900_0000, 0x18),
        }
    }
}

/// Reads until a signal.
pub(crate) fn run(args: &Arguments, stop: &Arc<AtomicBool>) -> Result<()> {
    let (device, register) = args.kind.register();
    // Addresses are shown to whoever may see the kernel's log, and to nobody by default.
    fs::write("/proc/sys/kernel/kptr_restrict", "1").context("/proc/sys/kernel/kptr_restrict")?;
    let maps = fs::read_to_string("/proc/vmallocinfo").context("/proc/vmallocinfo")?;
    let base = mapping(&maps, device).with_context(|| format!("this kernel maps no device at {device:#x}"))?;
    // The object lives as long as the process.
    let storage = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = skeleton::ExitsSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "exits"))?;
    open.maps.rodata_data.as_deref_mut().context("the BPF program has no read-only data")?.address = base + register;
    let pages = open.maps.entrain_pages.reuse_pinned_map(&args.pages);
    pages.with_context(|| format!("{}: does the agent run?", args.pages.display()))?;
    let mut skel = open.load().map_err(Error::at(Step::Load, "exits"))?;
    skel.attach().map_err(Error::at(Step::Attach, "exits"))?;
    println!("ready");
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    let told = skel.maps.bss_data.as_deref().map_or(0, |bss| bss.exits);
    println!("{told} exits");
    Ok(())
}

/// Where the kernel has mapped a device, by /proc/vmallocinfo.
fn mapping(maps: &str, device: u64) -> Option<u64> {
    let physical = format!("phys={device:#018x}");
    let line = maps.lines().find(|line| line.contains(&physical) && line.ends_with("ioremap"))?;
    u64::from_str_radix(line.strip_prefix("0x")?.split('-').next()?, 16).ok().filter(|&base| base != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_physical_address() {
        let maps = "\
0xffff800080000000-0xffff8000812e0000 19791872 paging_init+0x3c4/0x478 phys=0x0000000040200000 vmap
0xffff800083260000-0xffff800083271000   69632 __ioremap_prot+0x70/0x100 phys=0x0000000008000000 ioremap
0x0000000000000000-0x0000000000000000   69632 __ioremap_prot+0x70/0x100 phys=0x0000000009000000 ioremap
";
        assert_eq!(mapping(maps, Kind::Hypercall.register().0), Some(0xffff_8000_8326_0000));
        assert_eq!(mapping(maps, 0x4020_0000), None, "no device");
        assert_eq!(mapping(maps, Kind::Mmio.register().0), None, "hidden");
    }
}
