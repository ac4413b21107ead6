//! The subcommands `entrain record` and `entrain report`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::analysis::Analysis;
use crate::capture::capture;
use crate::file::{Recording, SIZES_MIB, parse};
use crate::guest::{Stay, Tie};
use crate::recorder::Wish;
use crate::report;

/// Records what the scheduler does with this host's VMs (BPF only: any KVM host with BTF, with or without the daemon).
#[derive(Clone, Debug, Args)]
pub struct RecordArgs {
    /// Record this VM; may be repeated [default: all VMs, also those that start meanwhile]
    #[arg(long, value_name = "PID|NAME")]
    pub vm: Vec<String>,
    /// End after this time; Ctrl-C ends it sooner and keeps the file
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub seconds: f64,
    /// The file grows up to this; then newer events overwrite the oldest
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(*SIZES_MIB.start()..=*SIZES_MIB.end()))]
    pub size: u64,
    /// The file
    #[arg(short, long, value_name = "FILE", default_value = "entrain.rec")]
    pub output: PathBuf,
    /// In a guest: record who runs on its CPUs, for one trace with its host's recording
    #[arg(long, conflicts_with = "vm")]
    pub guest: bool,
}

/// Shows where the time of the VMs in a recording went.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// A file of `entrain record`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write a page (one file, no network)
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Write a trace for the Perfetto UI (JSON of the Trace Event Format)
    #[arg(long, value_name = "OUT")]
    pub perfetto: Option<PathBuf>,
    /// Write a trace in Perfetto's own format, which can be appended to other traces of the same host
    #[arg(long, value_name = "OUT")]
    pub pftrace: Option<PathBuf>,
    /// With --pftrace: also what ran in that VM, by a recording that was made in it at the same time (record --guest);
    /// may be repeated
    #[arg(long = "guest", value_name = "VM=FILE", requires = "pftrace", value_parser = guest)]
    pub guests: Vec<(String, PathBuf)>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

fn guest(text: &str) -> Result<(String, PathBuf), String> {
    let (vm, file) = text.rsplit_once('=').ok_or("give VM=FILE: a name or pid, and the guest's recording")?;
    Ok((vm.to_owned(), file.into()))
}

/// Runs `entrain record`.
pub fn record(args: RecordArgs) -> anyhow::Result<ExitCode> {
    if !(0.1..=86_400.0).contains(&args.seconds) {
        bail!("--seconds {} is out of range: 0.1 to 86400", args.seconds);
    }
    let wish =
        Wish { vms: args.vm, time: Duration::from_secs_f64(args.seconds), bytes: args.size << 20, output: args.output };
    let outcome = if args.guest { crate::guest::capture(&wish)? } else { capture(&wish)? };
    let host = &outcome.host;
    let file = wish.output.display();
    println!(
        "{file}: {} events of {} vCPUs in {:.1} s; {} dropped, {} overwritten",
        outcome.events,
        outcome.vcpus,
        host.ended_ns.saturating_sub(host.began_ns) as f64 / 1e9,
        host.dropped,
        host.overwritten
    );
    if !host.unseen.is_empty() {
        println!("not seen on this kernel: {}", host.unseen.join(", "));
    }
    if args.guest {
        println!("now, on the host: entrain report HOST.rec --guest VM={file} --pftrace OUT.pftrace");
    } else {
        println!("now: entrain report {file} --html PAGE");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `entrain report`.
pub fn report(args: ReportArgs) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let bytes = fs::read(&args.file).with_context(|| format!("cannot read {name}"))?;
    let recording = parse(&bytes).with_context(|| format!("{name}"))?;
    drop(bytes);
    if recording.host.guest {
        bail!("{name} was recorded in a guest: give its host's recording, and this one with --guest VM={name}");
    }
    let analysis = Analysis::of(&recording);
    if let Some(path) = &args.html {
        fs::write(path, report::html(&analysis)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.perfetto {
        report::perfetto(&analysis, path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.pftrace {
        let guests = args.guests.iter().map(|(vm, file)| tied(&recording, vm, file)).collect::<Result<Vec<_>, _>>()?;
        let clocks = &recording.host.clocks;
        report::pftrace(&analysis, clocks, &guests, path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&analysis)?);
    } else {
        print!("{}", report::text(&analysis));
    }
    Ok(ExitCode::SUCCESS)
}

/// Who ran in a guest, in its host's time.
fn tied(host: &Recording, vm: &str, file: &Path) -> anyhow::Result<(i32, Vec<Stay>)> {
    let name = file.display();
    let bytes = fs::read(file).with_context(|| format!("cannot read {name}"))?;
    let guest = parse(&bytes).with_context(|| format!("{name}"))?;
    let tie = Tie::new(host, vm, &guest).with_context(|| format!("{name}"))?;
    Ok((tie.pid, tie.stays(&guest)))
}
