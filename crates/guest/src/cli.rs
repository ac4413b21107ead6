//! `entrain guest`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::agent::{self, RegisterOnly};
use crate::error::GuestError;
use crate::forge::{self, Lie};
use crate::kicks;
use crate::loads::Loads;
use crate::lock::Lock;
use crate::pages::Pages;
use crate::schedule::{CALM_S, Schedule};
use crate::selftest::Selftest;
use crate::status;
use crate::system::System;
use crate::vcpud::Vcpud;
use crate::vcpud::backend::{self, Backend};

/// Tells the host about this guest, and this guest about its host
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// What the agent does; it runs until a signal ends it
    #[arg(long, value_enum, default_value_t = Mode::Register, conflicts_with_all = ["release", "status"])]
    mode: Mode,

    /// With --mode register: tell the host, too, what each vCPU needs, for hosts that scale frequencies or have big and small
    /// CPUs; BPF programs follow the guest's own scheduler for it
    #[arg(long)]
    loads: bool,

    /// With --mode schedule: keep all vCPUs in use, whatever the host entitles this guest to
    #[arg(long)]
    no_park: bool,

    /// With --mode schedule: schedule also while the host has a CPU for every vCPU, instead of standing by
    #[arg(long)]
    always: bool,

    /// With --mode schedule: stand by after so many seconds in which there was nothing to gain
    #[arg(long, value_name = "SECONDS", default_value_t = CALM_S, conflicts_with = "always",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    stand_by_after: u32,

    /// With --mode vcpud: how; cpuset where the system has it, else hotplug
    #[arg(long, value_enum)]
    park_by: Option<Backend>,

    /// End the agent that runs, or take back what one that was killed left behind
    #[arg(long, conflicts_with = "status")]
    release: bool,

    /// Show what is registered and what the host publishes
    #[arg(long)]
    status: bool,

    /// With --status: exit status 1 unless a host publishes in the page of every vCPU
    #[arg(long, requires = "status")]
    paired: bool,

    /// With --status: JSON
    #[arg(long, requires = "status")]
    json: bool,

    /// Register on a machine that is no guest, for tests
    #[arg(long, hide = true)]
    anywhere: bool,

    /// Hammer the page for so many seconds once a host takes part, print what came out, and end
    #[arg(long, hide = true, value_name = "SECONDS", conflicts_with_all = ["release", "status"])]
    selftest: Option<u64>,

    /// The vCPU that the self-test hammers
    #[arg(long, hide = true, default_value_t = 0)]
    selftest_vcpu: u32,

    /// Write lies into the pages of the agent that runs, to see that the host bears them
    #[arg(long, hide = true, value_enum, conflicts_with_all = ["release", "status"])]
    forge: Option<Lie>,

    /// For so long
    #[arg(long, hide = true, default_value_t = 5.0, value_name = "SECONDS")]
    forge_seconds: f64,

    /// Kick halted vCPUs so many times and compare the host's hint with what happens, beside the agent that runs
    #[arg(long, hide = true, value_name = "N", conflicts_with_all = ["release", "status"])]
    kicks: Option<usize>,
}

/// What the agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Only tell the host where this kernel keeps its preempt counts and load; the guest's scheduler stays as it is
    Register,
    /// Schedule this guest's tasks by what the host publishes (sched_ext), and park vCPUs that the host has no CPU for
    Schedule,
    /// Leave the guest's scheduler as it is, and take vCPUs out of use that the host has no CPU for
    Vcpud,
}

/// Runs the command.
pub fn run(args: GuestArgs) -> anyhow::Result<ExitCode> {
    // libbpf's own messages are for whoever looks for a fault: RUST_LOG=debug.
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
    let system = System::live();
    if args.status {
        return show(&system, args.json, args.paired);
    }
    if args.release {
        return release(&system);
    }
    if let Some(lie) = args.forge {
        let pages = Pages::open(&system.bpffs(), true)?.ok_or(GuestError::NothingRegistered)?;
        forge::forge(&pages, lie, Duration::try_from_secs_f64(args.forge_seconds)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(count) = args.kicks {
        kicks::run(&Pages::open(&system.bpffs(), false)?.ok_or(GuestError::NothingRegistered)?, count)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(seconds) = args.selftest {
        let mut test = Selftest::new(args.selftest_vcpu, Duration::from_secs(seconds), Duration::from_secs(30));
        agent::run(&system, args.anywhere, &mut test)?;
        println!("{}", serde_json::to_string(test.outcome())?);
        return Ok(if test.outcome().host { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    match args.mode {
        Mode::Register if args.loads => agent::run(&system, args.anywhere, &mut Loads::default())?,
        Mode::Register => agent::run(&system, args.anywhere, &mut RegisterOnly)?,
        Mode::Schedule => {
            let calm = (!args.always).then_some(args.stand_by_after);
            agent::run(&system, args.anywhere, &mut Schedule::new(&system, !args.no_park, calm)?)?;
        }
        Mode::Vcpud => agent::run(&system, args.anywhere, &mut Vcpud::new(&system, args.park_by))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(system: &System, json: bool, paired: bool) -> anyhow::Result<ExitCode> {
    let status = status::status(&system.bpffs(), &system.run_folder()?)?;
    if let Some(pid) = status.starting() {
        return Err(GuestError::Starting { pid }.into());
    }
    if json {
        println!("{}", serde_json::to_string(&status)?);
    } else {
        print!("{}", status.text());
    }
    let lacks = paired && status.paired < status.vcpus.len();
    Ok(if lacks { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn release(system: &System) -> anyhow::Result<ExitCode> {
    let bpffs = system.bpffs();
    let folder = system.run_folder()?;
    let ran = Lock::holder(&folder)?;
    let _lock = Lock::take_over(&folder)?;
    backend::take_back(&folder)?;
    match (Pages::open(&bpffs, true)?, ran) {
        (Some(pages), _) => {
            let count = pages.count();
            agent::release(pages)?;
            println!("{count} pages taken back from an agent that was killed");
        }
        (None, Some(pid)) => println!("the agent (process {pid}) has ended"),
        (None, None) => return Err(GuestError::NothingRegistered.into()),
    }
    Ok(ExitCode::SUCCESS)
}
