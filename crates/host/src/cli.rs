//! The subcommand `entrain host`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use entrain_bpf::Features;
use entrain_channel::page::feature;
use entrain_system::Root;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Deserialize;

use crate::classes::Classes;
use crate::daemon::{Options, restore, run as run_daemon};
use crate::mode::Observe;
use crate::programs::Programs;
use crate::schedule::{self, Perf, mode::Schedule};
use crate::uclamp::Clamps;
use crate::{complexity, cpus, metrics};

/// Where the lock and the status socket are.
pub(crate) const RUN_DIR: &str = "/run/entrain";

/// What the daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Finds VMs, pairs with their guests, publishes to them; leaves the host's scheduler alone
    Observe,
    /// The same, and schedules the host (sched_ext): all its ordinary tasks, with regard to what its vCPUs are doing
    Schedule,
}

impl Mode {
    /// As options and files have it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Schedule => "schedule",
        }
    }
}

/// What to do with the verifier's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Complexity {
    /// Compare with the stored baseline
    Compare,
    /// Print the baseline anew, with this machine's figures
    Renew,
}

/// Finds this host's VMs, pairs with their guests and publishes to them.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// What to do; without it what the file of --config says, else `observe`
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Folder of the lock and the status socket
    #[arg(long, default_value = RUN_DIR, env = "ENTRAIN_RUN_DIR")]
    pub run_dir: PathBuf,
    /// Never look through guests' memory for agents: only those that ring are found (docs/host.md)
    #[arg(long)]
    pub no_search: bool,
    /// Classes of VMs, mode and metrics (docs/classes.md); read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the file of --config, tell what it says, and end
    #[arg(long, requires = "config")]
    pub check_config: bool,
    /// Put back what a daemon has left that was killed (weights of cgroups, utilisation clamps), and end
    #[arg(long)]
    pub restore: bool,
    /// Serve metrics for Prometheus at this address; a port alone is one of 127.0.0.1, port 0 any that is free
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = metrics::parse_address)]
    pub metrics: Option<SocketAddr>,
    /// Mode `schedule`: ask pCPUs for the performance that their tasks and the guests need (docs/frequency.md)
    #[arg(long, value_enum, default_value = "auto")]
    pub perf: Perf,
    /// Mode `observe`: set what guests need as `uclamp_min` of their vCPUs' threads (docs/frequency.md)
    #[arg(long)]
    pub uclamp: bool,
    /// End when this process ends, which is the one that started this (`entrain trial`)
    #[arg(long, hide = true, value_name = "PID")]
    pub end_with: Option<u32>,
    /// Capacity of each pCPU, 0..=1024, where the lab emulates it
    #[arg(long, hide = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub capacities: Vec<u32>,
    /// Take part in the self-test of the channel (experiments `channel` and `lifecycle`)
    #[arg(long, hide = true)]
    pub selftest: bool,
    /// Be the process that serves the metrics of the daemon that has started this
    #[arg(long, hide = true)]
    pub serve_metrics: bool,
    /// Load the BPF programs, tell how much work the verifier had with them, and end
    #[arg(long, hide = true, value_enum)]
    pub complexity: Option<Complexity>,
    /// Mode `schedule`: set a tunable, for measurement (NAME=VALUE; crates/host/src/bpf/sched/tunables.bpf.h lists them)
    #[arg(long, hide = true, value_parser = tunable, value_name = "NAME=VALUE")]
    pub tune: Vec<(String, String)>,
}

fn tunable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The verifier's work for all programs of the host.
fn verifier_work(task: Complexity) -> anyhow::Result<String> {
    let features = Features::probe();
    entrain_bpf::quiet();
    let mut now = schedule::measure(&features)?;
    now.extend(Programs::load(&features, cpus::read(&Root::live()).len() as u32, 0)?.complexity());
    Ok(match task {
        Complexity::Compare => complexity::report(&now)?,
        Complexity::Renew => complexity::renewed(now)?,
    })
}

/// Has the kernel end this process as by SIGTERM when its parent ends.
fn end_with(parent: u32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before it was asked for.
    anyhow::ensure!(std::os::unix::process::parent_id() == parent, "process {parent} has ended, or is not the parent");
    Ok(())
}

/// Runs the daemon until a signal ends it.
pub fn run(args: HostArgs) -> anyhow::Result<ExitCode> {
    if args.serve_metrics {
        metrics::part::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = args.config.as_ref().filter(|_| args.check_config) {
        print!("{}", Classes::load(file)?.summary());
        return Ok(ExitCode::SUCCESS);
    }
    if args.restore {
        println!("put back {} settings", restore(&args.run_dir)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(task) = args.complexity {
        print!("{}", verifier_work(task)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(parent) = args.end_with {
        end_with(parent)?;
    }
    let classes = args.config.as_deref().map(Classes::load).transpose()?;
    let mode = args.mode.or(classes.as_ref().and_then(|file| file.mode)).unwrap_or(Mode::Observe);
    let metrics = args.metrics.or(classes.as_ref().and_then(|file| file.metrics));
    anyhow::ensure!(
        !(args.uclamp && mode == Mode::Schedule),
        "--uclamp is for --mode observe: the scheduler asks for performance by itself"
    );
    let options = Options {
        run_dir: args.run_dir,
        search: !args.no_search,
        selftest: args.selftest,
        metrics,
        classes,
        capacities: args.capacities.clone(),
    };
    let extra = if args.selftest { feature::SELFTEST } else { 0 };
    match mode {
        Mode::Observe if args.uclamp => {
            let run_dir = options.run_dir.clone();
            run_daemon(options, extra, |_| Ok(Box::new(Clamps::start(&run_dir)?)))?;
        }
        Mode::Observe => run_daemon(options, extra, |_| Ok(Box::new(Observe)))?,
        Mode::Schedule => run_daemon(options, extra, |programs| {
            let (tune, perf, capacities) = (args.tune, args.perf, args.capacities);
            let schedule = schedule::Options { tune, perf, capacities, ..Default::default() };
            Ok(Box::new(Schedule::start(schedule, programs)?))
        })?,
    }
    Ok(ExitCode::SUCCESS)
}
