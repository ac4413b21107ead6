//! `isolated drain`: operations that make the kernel empty the per-CPU caches of all CPUs, and how long they take.

use super::{check, name_thread};
use crate::clock::now_ns;
use crate::output::Output;
use crate::pages::Pages;
use anyhow::{Context, Result};
use entrain_workloads::catalog::{Better, Metric};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// An operation that empties the per-CPU caches of all CPUs, and how long it takes
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    operation: Operation,
    /// The block device, slab cache, module, or MODULE/PARAMETER=VALUE that is meant, where the operation needs one
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// How often
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    times: u32,
    /// Pause after each, in milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pause: u64,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    /// Compact all memory
    CompactMemory,
    /// Drop the page cache
    DropCaches,
    /// Bind 16 pages to a node and move them there, as user 1000
    Mbind,
    /// Drop the cached pages of a block device (ioctl BLKFLSBUF), 1 MiB of which was read
    Blkflsbuf,
    /// Reclaim more than there is (memory.reclaim of the root cgroup): caches are drained before it gives up
    Reclaim,
    /// Shrink a slab cache
    SlabShrink,
    /// Remove a module
    ModuleUnload,
    /// Ask for exact memory statistics
    StatRefresh,
    /// Write to a parameter of a module, which drains caches of its own then
    Parameter,
}

static TOOK: Metric =
    Metric { name: "took", unit: "ms", better: Better::Lower, about: "time of the call, the longest of several" };

/// The name by which `entrain isolate watch` shows who drained.
const NAME: &str = "entrain-drain";
const BLKFLSBUF: u64 = 0x1261;
const MPOL_BIND: i32 = 2;
const MPOL_MF_MOVE: u32 = 2;
/// Any user that is not root.
const USER: u32 = 1000;

pub(super) fn run(args: &Args) -> Result<()> {
    name_thread(NAME)?;
    let mut longest = 0;
    for _ in 0..args.times {
        longest = longest.max(once(args)?);
        std::thread::sleep(Duration::from_millis(args.pause));
    }
    Output::new(args.json).metric(&TOOK, longest as f64 / 1e6)?;
    Ok(())
}

/// Does it once; how long it took, ns.
fn once(args: &Args) -> Result<u64> {
    let of = || args.of.clone().context("--of is needed: which one?");
    match args.operation {
        Operation::CompactMemory => write("/proc/sys/vm/compact_memory", "1"),
        Operation::DropCaches => write("/proc/sys/vm/drop_caches", "1"),
        Operation::Mbind => mbind(),
        Operation::Blkflsbuf => flush_device(&of()?),
        Operation::Reclaim => write("/sys/fs/cgroup/memory.reclaim", "512M"),
        Operation::SlabShrink => write(&format!("/sys/kernel/slab/{}/shrink", of()?), "1"),
        Operation::ModuleUnload => unload(&of()?),
        Operation::StatRefresh => write("/proc/sys/vm/stat_refresh", "1"),
        Operation::Parameter => parameter(&of()?),
    }
}

fn timed<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let start = now_ns();
    let result = act();
    (now_ns() - start, result)
}

fn write(path: &str, text: &str) -> Result<u64> {
    let mut file = OpenOptions::new().write(true).open(path).with_context(|| path.to_owned())?;
    // Reclaim may find less than it was asked for and says so; it has drained all the same.
    let (took, _) = timed(|| file.write(text.as_bytes()));
    Ok(took)
}

fn parameter(of: &str) -> Result<u64> {
    let parts = of.split_once('/').and_then(|(module, rest)| Some((module, rest.split_once('=')?)));
    let (module, (name, value)) = parts.context("--of is to be MODULE/PARAMETER=VALUE")?;
    let path = format!("/sys/module/{module}/parameters/{name}");
    let (took, result) = timed(|| fs::write(&path, value));
    result.with_context(|| path.clone())?;
    Ok(took)
}

fn mbind() -> Result<u64> {
    // SAFETY: system calls that take numbers only.
    unsafe {
        check(libc::setgid(USER).into(), "setgid")?;
        check(libc::setuid(USER).into(), "setuid")?;
    }
    let pages = Pages::new(16)?;
    pages.touch_all();
    let (start, len) = (pages.address(0), pages.len());
    let nodes: libc::c_ulong = 1;
    // SAFETY: the range is the mapping's, the mask holds the 64 bits that are named.
    let call = || unsafe { libc::syscall(libc::SYS_mbind, start, len, MPOL_BIND, &nodes, 64, MPOL_MF_MOVE) };
    let (took, result) = timed(call);
    check(result, "mbind")?;
    Ok(took)
}

fn flush_device(name: &str) -> Result<u64> {
    let path = format!("/dev/{name}");
    let mut device = File::open(&path).with_context(|| path.clone())?;
    let mut content = vec![0; 1 << 20];
    device.read_exact(&mut content).with_context(|| path.clone())?;
    // SAFETY: this request takes no argument.
    let (took, result) = timed(|| unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF as _, 0) });
    check(result.into(), "BLKFLSBUF")?;
    Ok(took)
}

fn unload(name: &str) -> Result<u64> {
    anyhow::ensure!(fs::exists(format!("/sys/module/{name}"))?, "the module {name} is not loaded");
    let text = CString::new(name)?;
    // SAFETY: the string ends with NUL and outlives the call.
    let call = || unsafe { libc::syscall(libc::SYS_delete_module, text.as_ptr(), libc::O_NONBLOCK) };
    let (took, result) = timed(call);
    check(result, "delete_module")?;
    Ok(took)
}
