//! The command line: `build`, `load`, `status`, `unload`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use crate::check::check;
use crate::kernel::{Kernel, Signing, running_release, signing};
use crate::known::series;
use crate::status::Status;
use crate::{live, make, source};

/// Arguments of `entrain isolate qpw`.
#[derive(Clone, Debug, Args)]
pub struct QpwArgs {
    #[command(subcommand)]
    command: QpwCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum QpwCommand {
    /// Check a kernel and build the module for it; refuses a kernel that it was not written for
    Build(BuildArgs),
    /// Load the built module (best at boot, before any real-time load)
    Load(LoadArgs),
    /// Tell whether it is in force, what it did, and what still disturbs isolated CPUs
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give the kernel its own functions back and remove the module
    Unload {
        /// Seconds to wait for the transition
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
}

#[derive(Clone, Debug, Args)]
struct BuildArgs {
    /// The kernel's release [default: the running one]
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Its headers [default: /lib/modules/RELEASE/build]
    #[arg(long, value_name = "DIR")]
    headers: Option<PathBuf>,
    /// A file with its BTF, raw or ELF [default: the running kernel's, or vmlinux in the headers]
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Its symbols, as /proc/kallsyms lists them [default: the running kernel's]
    #[arg(long, value_name = "FILE")]
    kallsyms: Option<PathBuf>,
    /// Where to build [default: /var/lib/entrain/qpw/RELEASE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only check the kernel
    #[arg(long)]
    check: bool,
    /// Only write a DKMS source folder (with a systemd unit) below this one
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "/usr/src", conflicts_with = "check")]
    dkms: Option<PathBuf>,
    /// Sign with this key (Secure Boot)
    #[arg(long, value_name = "FILE", requires = "sign_cert")]
    sign_key: Option<PathBuf>,
    /// The key's certificate
    #[arg(long, value_name = "FILE", requires = "sign_key")]
    sign_cert: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
struct LoadArgs {
    /// The module's file [default: the one that was built for the running kernel]
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
    /// Replace at once, where a real-time task already spins; can not be unloaded
    #[arg(long)]
    hot: bool,
    /// CPUs to drain from elsewhere, the others as without QPW: all, isolated, or a list as 2-5,8
    #[arg(long, default_value = "all", value_name = "CPUS", value_parser = cpus)]
    cpus: String,
    /// Let vm.stat_refresh leave isolated CPUs out: its figures are then short of theirs
    #[arg(long)]
    skip_stats: bool,
    /// Seconds to wait for the transition
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

/// Runs `entrain isolate qpw …`.
///
/// # Errors
/// What was refused or failed, and what to do.
pub fn run(args: QpwArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        QpwCommand::Build(args) => build(&args),
        QpwCommand::Load(args) => load(&args),
        QpwCommand::Status { json } => {
            let status = Status::read(Path::new("/"), running_release()?);
            if json {
                println!("{}", serde_json::to_string_pretty(&status)?);
            } else {
                print!("{status}");
            }
            Ok(ExitCode::SUCCESS)
        }
        QpwCommand::Unload { timeout } => {
            let behind = live::unload(Duration::from_secs(timeout))?;
            Ok(outcome(&behind, "unloaded", "the module stays until they have left it; give the command again"))
        }
    }
}

fn build(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &args.dkms {
        // The unit runs the program that wrote it, wherever that is installed.
        let program = std::env::current_exe().context("/proc/self/exe")?;
        let made = source::write_dkms(dir, &program).with_context(|| dir.display().to_string())?;
        println!("DKMS source: {}", made.display());
        println!("next: dkms install {}", made.display());
        println!("      cp {}/entrain-qpw.service /etc/systemd/system/", made.display());
        println!("      systemctl enable entrain-qpw.service");
        return Ok(ExitCode::SUCCESS);
    }
    let kernel =
        Kernel::find(args.release.as_deref(), args.headers.as_deref(), args.btf.as_deref(), args.kallsyms.as_deref())?;
    let checked = check(&kernel)?;
    if checked.symbols {
        println!("{}: configuration, types and symbols are the known ones", kernel.release);
    } else {
        println!(
            "{}: configuration and types are the known ones; its symbols are checked when the module is loaded",
            kernel.release
        );
    }
    if !checked.livepatch {
        println!(
            "it has no livepatch (CONFIG_LIVEPATCH): the module can be loaded with --hot alone, until the next reboot"
        );
    }
    if args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let dir = args.out.clone().unwrap_or_else(|| make::default_dir(&kernel.release));
    let module = make::build(&kernel, &dir)?;
    println!("built {}", module.display());
    if let (Some(key), Some(certificate)) = (&args.sign_key, &args.sign_cert) {
        make::sign(&kernel, &make::Key { key: key.clone(), certificate: certificate.clone() }, &module)?;
        println!("signed");
    } else if signing(Path::new("/")) == Signing::Needed {
        println!("{}", make::signing_advice(&kernel));
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let release = running_release()?;
    let Some(module) = args.module.clone().or_else(|| live::find(&release)) else {
        bail!("no module for {release} was built yet: entrain isolate qpw build");
    };
    // The types are compared again: the file may be of an older kernel with the same release.
    check_running(&release)?;
    if !args.hot && !Path::new("/sys/kernel/livepatch").exists() {
        bail!(
            "{release} has no livepatch (CONFIG_LIVEPATCH). What there is instead: --hot replaces the functions at once, by \
             ftrace; then they stay replaced until the next reboot"
        );
    }
    let options = live::Options { hot: args.hot, skip_stats: args.skip_stats, cpus: args.cpus.clone() };
    let behind = live::load(&module, &release, &options, Duration::from_secs(args.timeout))?;
    Ok(outcome(&behind, "loaded", "the replacements hold for all other tasks already"))
}

/// A list of CPUs, or a word for some.
fn cpus(text: &str) -> Result<String, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((from, to)) => number(from).zip(number(to)).is_some_and(|(from, to)| from <= to),
        None => number(part).is_some(),
    };
    if ["all", "isolated"].contains(&text) || text.split(',').all(range) {
        Ok(text.to_owned())
    } else {
        Err("neither all, isolated, nor a list of CPUs like 2-5,8".to_owned())
    }
}

/// Types and symbols only: headers need not be there on the machine that loads.
fn check_running(release: &str) -> anyhow::Result<()> {
    let Some(series) = series(release) else {
        let reasons = vec!["its version is not among those whose code was read".to_owned()];
        return Err(crate::check::Refusal::Unknown { release: release.to_owned(), reasons }.into());
    };
    let mut reasons = crate::shape::differences(Path::new("/sys/kernel/btf/vmlinux"), series)
        .context("reading the kernel's BTF in /sys/kernel/btf/vmlinux")?;
    reasons.extend(crate::symbols::problems(&std::fs::read_to_string("/proc/kallsyms")?, series));
    if !reasons.is_empty() {
        return Err(crate::check::Refusal::Unknown { release: release.to_owned(), reasons }.into());
    }
    Ok(())
}

fn outcome(behind: &[String], done: &str, note: &str) -> ExitCode {
    if behind.is_empty() {
        println!("{done}");
        return ExitCode::SUCCESS;
    }
    println!("the transition has not ended yet; behind are: {}", behind.join(", "));
    println!("{note}");
    ExitCode::from(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_a_list_or_a_word() {
        for good in ["all", "isolated", "3", "2-5,8"] {
            assert_eq!(cpus(good).as_deref(), Ok(good));
        }
        for bad in ["", "none", "5-2", "2-", "1,,2", "-1", "2 3"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
