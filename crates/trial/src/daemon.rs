//! A side's daemon, for one window.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use entrain_host::classes::Classes;
use entrain_host::status::{self, Status};
use rustix::process::{Pid, Signal, kill_process};

/// A daemon loads, finds the VMs and tells its status within a second or two; an emulated host that shares its computer has
/// taken a minute and a half. One that has failed has ended, and Ctrl-C ends the wait.
const START: Duration = Duration::from_secs(300);
/// It gives its guests' pages back within this; the service has as long.
const END: Duration = Duration::from_secs(20);

/// One of the two ways to run the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// `entrain host --mode observe`.
    Observe,
    /// `entrain host --mode schedule`.
    Schedule,
    /// `entrain host --config FILE`, and whether that says mode `schedule`.
    File(PathBuf, bool),
}

impl Side {
    /// By what stands on the command line. An error for a file that is none of classes.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "observe" => Self::Observe,
            "schedule" => Self::Schedule,
            file => {
                let file = PathBuf::from(file);
                let schedules = Classes::load(&file)?.schedules();
                Self::File(file, schedules)
            }
        })
    }

    /// Whether Entrain's scheduler is to run.
    pub(crate) fn schedules(&self) -> bool {
        matches!(self, Self::Schedule | Self::File(_, true))
    }

    fn options(&self) -> Vec<PathBuf> {
        match self {
            Self::Observe => vec!["--mode".into(), "observe".into()],
            Self::Schedule => vec!["--mode".into(), "schedule".into()],
            Self::File(file, _) => vec!["--config".into(), file.clone()],
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Observe => f.write_str("observe"),
            Self::Schedule => f.write_str("schedule"),
            Self::File(file, _) => write!(f, "{}", file.display()),
        }
    }
}

/// A daemon that runs; dropped, it is ended and what it may have left is put back.
pub(crate) struct Daemon {
    child: Child,
    run_dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts one and waits until it does what the side says.
    pub(crate) fn start(side: &Side, stopped: impl Fn() -> bool) -> anyhow::Result<Self> {
        let run_dir =
            tempfile::Builder::new().prefix("entrain-trial-").tempdir_in("/run").context("a folder in /run")?;
        let mut child = Command::new("/proc/self/exe");
        child.arg("host").args(side.options()).arg("--run-dir").arg(run_dir.path());
        // It ends with this process, however that ends: a host that is out of reach gets its own scheduler back.
        child.arg("--end-with").arg(std::process::id().to_string());
        // The interrupt of a terminal goes to all of its group: the daemon ends by our word alone.
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let child = child.stdin(Stdio::null()).stdout(Stdio::null()).env("RUST_LOG", "warn").spawn();
        let mut daemon = Self { child: child.context("cannot start entrain host")?, run_dir };
        let limit = Instant::now() + START;
        loop {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("entrain host ({side}) ended at once: {status}");
            }
            if let Ok(status) = daemon.ask() {
                if let Some(fallback) = status.fallback {
                    bail!("entrain host ({side}) only observes: {}", fallback.why);
                }
                return Ok(daemon);
            }
            if stopped() {
                bail!("interrupted while entrain host ({side}) was starting");
            }
            if Instant::now() > limit {
                bail!("entrain host ({side}) was not ready within {} s", START.as_secs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its status, with who ran while vCPUs waited.
    pub(crate) fn ask(&self) -> std::io::Result<Status> {
        status::ask_with(&self.run_dir.path().join("host.sock"), true)
    }

    fn end(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        let _ = kill_process(pid, Signal::TERM);
        let limit = Instant::now() + END;
        while Instant::now() < limit {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("entrain trial: the daemon does not end; killed");
        let _ = self.child.kill();
        let _ = self.child.wait();
        restore(self.run_dir.path());
    }
}

/// Puts back what a killed daemon has left.
fn restore(run_dir: &Path) {
    let restore = Command::new("/proc/self/exe").args(["host", "--restore", "--run-dir"]).arg(run_dir).status();
    if !restore.is_ok_and(|status| status.success()) {
        eprintln!(
            "entrain trial: what the daemon had set could not be put back; see weights.json in {}",
            run_dir.display()
        );
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}
