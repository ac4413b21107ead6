//! `isolated pages`: of how many of the pages that `isolated hold` reported has the kernel put where a drain puts them?

use crate::output::Output;
use anyhow::{Context, Result};
use entrain_workloads::catalog::{Better, Metric};
use entrain_workloads::wire::Report;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Of how many of the pages that `hold` reported the LRU flag is set
#[derive(clap::Args)]
pub(super) struct Args {
    /// What `isolated hold --report` wrote
    report: PathBuf,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Bits of /proc/kpageflags (include/uapi/linux/kernel-page-flags.h).
const LRU: u64 = 1 << 5;
const UNEVICTABLE: u64 = 1 << 18;

static PLAIN: Metric =
    Metric { name: "plain_on_lru", unit: "pages", better: Better::Neither, about: "plain pages on an LRU list" };
static LOCKED: Metric = Metric {
    name: "locked_on_lru",
    unit: "pages",
    better: Better::Neither,
    about: "locked pages on the list of unevictable ones",
};

pub(super) fn run(args: &Args) -> Result<()> {
    let text = fs::read(&args.report).with_context(|| args.report.display().to_string())?;
    let report: Report = serde_json::from_slice(&text).with_context(|| args.report.display().to_string())?;
    let file = File::open("/proc/kpageflags").context("/proc/kpageflags")?;
    let count = |frames: &[u64], wanted: u64| -> Result<f64> {
        let mut found = 0;
        for frame in frames {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, frame * 8).context("/proc/kpageflags")?;
            found += u32::from(u64::from_ne_bytes(word) & wanted == wanted);
        }
        Ok(f64::from(found))
    };
    let out = Output::new(args.json);
    out.metric(&PLAIN, count(&report.plain, LRU)?)?;
    out.metric(&LOCKED, count(&report.locked, LRU | UNEVICTABLE)?)?;
    Ok(())
}
