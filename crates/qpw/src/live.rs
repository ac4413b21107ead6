//! Loads and unloads the module in the running kernel.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::make::{MODULE, default_dir, vermagic};
use crate::wait;

/// Of `finit_module(2)`: the kernel is to unpack the file itself.
const COMPRESSED: i32 = 4;

/// How the module is to be loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Replace at once, by ftrace: the module then stays until the machine is booted anew.
    pub hot: bool,
    /// `vm.stat_refresh` leaves isolated CPUs out.
    pub skip_stats: bool,
    /// The CPUs that are drained from elsewhere: `all`, `isolated`, or a list of them. The others get work items.
    pub cpus: String,
}

/// The module's file for a kernel: built by `build`, or by DKMS.
pub fn find(release: &str) -> Option<PathBuf> {
    let dkms = Path::new("/lib/modules").join(release).join("updates/dkms");
    let dkms = ["", ".xz", ".zst", ".gz"].map(|end| dkms.join(format!("{MODULE}.ko{end}")));
    [default_dir(release).join(format!("{MODULE}.ko"))].into_iter().chain(dkms).find(|p| p.is_file())
}

/// Loads the module and waits for the transition. Returns the tasks that are behind, if it did not end in time; the
/// replacements hold for all others all the same.
///
/// # Errors
/// The kernel refuses the module, with its own words if it wrote any.
pub fn load(module: &Path, release: &str, options: &Options, timeout: Duration) -> anyhow::Result<Vec<String>> {
    if loaded(Path::new("/")) {
        bail!("the module is loaded already (entrain isolate qpw status)");
    }
    let compressed = module.extension().is_some_and(|e| e != "ko");
    if !compressed {
        let built = vermagic(module)?;
        if built != release {
            bail!("{} was built for {built}, but {release} runs: build it anew", module.display());
        }
    }
    let (hot, skip_stats) = (u8::from(options.hot), u8::from(options.skip_stats));
    let parameters = format!("hot={hot} skip_stats={skip_stats} cpus={}", options.cpus);
    let parameters = CString::new(parameters).context("parameters")?;
    let file = File::open(module).with_context(|| module.display().to_string())?;
    let flags = if compressed { COMPRESSED } else { 0 };
    rustix::system::finit_module(&file, &parameters, flags).map_err(|error| {
        let why = match error {
            rustix::io::Errno::PERM => "only root may load modules",
            rustix::io::Errno::KEYREJECTED | rustix::io::Errno::NOKEY => {
                "it is not signed by a key that this machine trusts (build --sign-key)"
            }
            _ => "the kernel's log says why (dmesg | grep -e entrain_qpw -e livepatch)",
        };
        anyhow::Error::new(io::Error::from(error)).context(format!("the kernel did not take the module: {why}"))
    })?;
    let root = Path::new("/");
    Ok(if wait::ended(root, timeout) { Vec::new() } else { still_behind(root, true) })
}

/// Unloads the module. Returns the tasks that are behind, if the transition did not end in time: then the module is
/// still there, and the command may be given again.
///
/// # Errors
/// The module is not loaded, or was loaded hot.
pub fn unload(timeout: Duration) -> anyhow::Result<Vec<String>> {
    let root = Path::new("/");
    if !loaded(root) {
        bail!("the module is not loaded");
    }
    let dir = wait::patch_dir(root);
    if dir.exists() {
        // The kernel refuses what was asked for before, while that transition still goes on.
        if fs::read_to_string(dir.join("enabled")).is_ok_and(|text| text.trim() == "1") {
            fs::write(dir.join("enabled"), "0").context("switching the livepatch off")?;
        }
        if !wait::ended(root, timeout) {
            return Ok(still_behind(root, false));
        }
    } else if parameter(root, "hot").as_deref() == Some("Y") {
        bail!("the module was loaded hot: nobody knows when the last task has left it, so it stays until a reboot");
    }
    let name = CString::new(MODULE).context("name")?;
    // The last reference goes a moment after the transition has ended.
    for _ in 0..50 {
        match rustix::system::delete_module(&name, 0) {
            Ok(()) => return Ok(Vec::new()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(100)),
            Err(error) => return Err(io::Error::from(error)).context("removing the module"),
        }
    }
    bail!("the module is still in use; give the command again later")
}

fn still_behind(root: &Path, patched: bool) -> Vec<String> {
    let tasks = wait::behind(root, patched);
    if tasks.is_empty() { vec!["a work item on each CPU (a real-time task is in its way)".into()] } else { tasks }
}

/// Whether the module is in the kernel of `root`.
pub fn loaded(root: &Path) -> bool {
    root.join("sys/module").join(MODULE).is_dir()
}

/// A parameter or counter of the loaded module.
pub fn parameter(root: &Path, name: &str) -> Option<String> {
    let path = root.join("sys/module").join(MODULE).join("parameters").join(name);
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
