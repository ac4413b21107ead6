//! `entrain-cpufreq-emulation`: slows the CPUs of the lab's host machine to their frequency, and counts the energy.

mod exits;
mod machine;
mod record;
mod slow;

use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use entrain_cpufreq_emulation::snapshot::{SOCKET, Snapshot, read};
use entrain_cpufreq_emulation::tables::Table;
use entrain_system::monotonic_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use machine::Cpu;
use slow::{Slow, Timing};

/// Emulates frequency-scaled CPUs in the lab's host machine: slows each CPU to its operating point and counts energy
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Emulate until SIGTERM or SIGINT; prints `ready` once all CPUs are slowed
    Run(Run),
    /// Print the counters of the running emulation as one line of JSON
    Read,
    /// Follow threads (vCPUs) and tell how soon heavy ones come to a big CPU, and how long they are there
    Record(record::Arguments),
    /// In a guest with Entrain's agent: make an exit for each change of what a vCPU needs, until SIGTERM or SIGINT
    Exits(exits::Arguments),
}

#[derive(Args)]
struct Run {
    /// Time of one run and the stall after it, in µs: shorter is smoother and costs an emulated CPU more
    #[arg(long, default_value_t = 1000, value_name = "US", value_parser = clap::value_parser!(u32).range(200..=4000))]
    period: u32,
    /// What each stall costs beside its length, in µs: the timer's interrupt on an emulated CPU
    #[arg(long, default_value_t = 40, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=500))]
    overhead: u32,
    /// Time until a frequency is in force, in µs [default: the table's]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    delay: Option<u32>,
    /// Print the counters every so many seconds
    #[arg(long, value_name = "S")]
    interval: Option<f64>,
}

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Read => print(),
        Command::Record(args) => follow(&args),
        Command::Exits(args) => on_signals().and_then(|stop| exits::run(&args, &stop)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("entrain-cpufreq-emulation: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn print() -> Result<()> {
    let text = read().with_context(|| format!("no emulation answers on {SOCKET}; start it with `run`"))?;
    Ok(stdout().write_all(text.as_bytes())?)
}

fn follow(args: &record::Arguments) -> Result<()> {
    let (_, cpus) = machine::cpus(Path::new("/"))?;
    record::run(args, &cpus, &on_signals()?)
}

/// Becomes true at SIGTERM, SIGINT and SIGQUIT.
fn on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        signal_hook::flag::register(*signal, Arc::clone(&stop)).context("cannot set up signals")?;
    }
    Ok(stop)
}

fn run(args: &Run) -> Result<()> {
    let (table, cpus) = machine::cpus(Path::new("/"))?;
    let stop = on_signals()?;
    let socket = Socket::bind()?;
    let timing =
        Timing { period_us: args.period, overhead_us: args.overhead, delay_us: args.delay.unwrap_or(table.delay_us) };
    let slow = Slow::start(&cpus, timing)?;
    // The governor may have changed its mind while the programs were loaded.
    let (_, cpus) = machine::cpus(Path::new("/"))?;
    println!("ready: emulating the frequencies of {} CPUs ({}; {})", cpus.len(), table.name, table.source);
    let mut next = args.interval.map(|seconds| monotonic_ns() + (seconds * 1e9) as u64);
    while !stop.load(Ordering::Relaxed) {
        socket.serve(|| snapshot(table, &cpus, &slow))?;
        if let (Some(at), Some(seconds)) = (next, args.interval)
            && monotonic_ns() >= at
        {
            print!("{}", snapshot(table, &cpus, &slow)?);
            next = Some(at + (seconds * 1e9) as u64);
        }
    }
    Ok(())
}

/// One line of JSON.
fn snapshot(table: &Table, cpus: &[Cpu], slow: &Slow) -> Result<String> {
    let name = table.name.to_owned();
    let snapshot = Snapshot { emulation: true, table: name, at_ns: monotonic_ns(), cpus: slow.read(cpus)? };
    Ok(serde_json::to_string(&snapshot)? + "\n")
}

/// The socket; its file goes with it.
struct Socket(UnixListener);

impl Socket {
    fn bind() -> Result<Self> {
        if read().is_ok() {
            bail!("another emulation runs already; end it first");
        }
        // Left by one that was killed.
        let _ = fs::remove_file(SOCKET);
        let listener = UnixListener::bind(SOCKET).with_context(|| format!("cannot listen on {SOCKET}"))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Waits a moment for a connection, and answers it.
    fn serve(&self, answer: impl FnOnce() -> Result<String>) -> Result<()> {
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot wait for connections"),
        }
        match self.0.accept() {
            // A reader that went away is its own affair.
            Ok((mut stream, _)) => drop(stream.write_all(answer()?.as_bytes())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept a connection"),
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(SOCKET);
    }
}
