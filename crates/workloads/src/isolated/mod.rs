//! `isolated`: what the lab does to isolated CPUs. A task that holds one, operations that drain per-CPU caches, the state of
//! what is to be drained, and interruptions made on purpose.

mod drain;
mod hold;
mod inject;
mod pages;

use anyhow::{Context, Result};
use std::ffi::CString;
use std::process::ExitCode;

/// Tools for isolated CPUs: a task that holds one, operations that drain its caches, interruptions made on purpose
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand)]
enum Tool {
    Hold(hold::Args),
    Drain(drain::Args),
    Pages(pages::Args),
    Inject(inject::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.tool {
        Tool::Hold(args) => hold::run(args),
        Tool::Drain(args) => drain::run(args),
        Tool::Pages(args) => pages::run(args),
        Tool::Inject(args) => inject::run(args),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Gives the calling thread a name by which `entrain isolate watch` shows it (15 bytes at most).
fn name_thread(name: &str) -> Result<()> {
    let text = CString::new(name).context("a thread's name holds no NUL")?;
    // SAFETY: the string ends with NUL and outlives the call.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) }.into(), "naming a thread").map(drop)
}

/// Makes the calling thread a real-time one (SCHED_FIFO).
fn become_fifo(priority: i32) -> Result<()> {
    // SAFETY: all zeroes is a value of this struct of numbers.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: the struct outlives the call; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) }.into(), "sched_setscheduler").map(drop)
}

/// The result of a system call, or its error with what was tried.
fn check(result: i64, what: &str) -> Result<i64> {
    if result >= 0 { Ok(result) } else { Err(std::io::Error::last_os_error()).with_context(|| what.to_owned()) }
}
