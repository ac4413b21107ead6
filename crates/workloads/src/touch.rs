//! `touch`: what makes a guest that has just booted one that has been up for long, as far as its memory goes.

use crate::memcheck::free_mib;
use crate::pages::Pages;
use anyhow::{Context, Result};
use std::process::ExitCode;

/// Writes once to the memory that is free: a guest's first access to each of its pages is an exit of its own, which the
/// host's kernel answers with a page, and no load should be the one that pays for it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Memory to write to, in MiB; by default nine tenths of what is free
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20), value_name = "MIB")]
    mib: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mib = match args.mib {
        Some(mib) => mib,
        None => free_mib().context("cannot read /proc/meminfo; give --mib")? * 9 / 10,
    };
    let page_size = Pages::new(1)?.page_size();
    Pages::new((mib as usize * (1 << 20) / page_size).max(1))?.touch_all();
    Ok(ExitCode::SUCCESS)
}
