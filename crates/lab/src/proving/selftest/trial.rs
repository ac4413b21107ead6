//! One run of the lab as a child process, in a world of its own, and what it leaves behind.
//!
//! Every process that the lab starts inherits a variable with the trial's name, so that one that stays is found
//! whatever it calls itself. Its folder for temporary files and its working folder are the trial's own and must be
//! empty at the end. The cache must hold no half-built entry, and the system no new mount.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use entrain_lab_machine::{Cache, cancel};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal, test_kill_process};
use tempfile::TempDir;

/// Processes may take this long to be gone after the lab itself: they are killed with it, but at the kernel's pace.
const GRACE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(20);
/// The variable that marks a trial's processes.
const MARK: &str = "ENTRAIN_SELFTEST";

/// What the lab finds around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum World {
    /// The user's own cache and network.
    Users,
    /// An empty cache.
    EmptyCache,
    /// An empty cache and no network.
    WithoutNetwork,
    /// An empty cache on a file system of that size.
    SmallCache { mib: u32 },
}

/// A running trial. Dropping it kills all that is left of it.
pub(super) struct Trial {
    child: Child,
    mark: String,
    world: World,
    folder: TempDir,
    mounts: BTreeSet<String>,
    out: Arc<Mutex<String>>,
    out_reader: Option<JoinHandle<()>>,
    err: Arc<Mutex<String>>,
    err_reader: Option<JoinHandle<()>>,
    begun: Instant,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Exit status; None if a signal ended it.
    pub(super) status: Option<i32>,
    pub(super) stderr: String,
    /// What it left behind.
    pub(super) left: Vec<String>,
    /// How long the end took.
    pub(super) took: Duration,
}

impl Trial {
    /// Starts this very program with other arguments.
    pub(super) fn start(args: &[String], world: World) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the trial")?;
        for sub in ["tmp", "work", "cache"] {
            fs::create_dir(folder.path().join(sub))?;
        }
        let mark = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let mut argv = world.wrap(&folder.path().join("cache"));
        argv.push(own.into());
        argv.extend(args.iter().map(OsString::from));
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).env(MARK, &mark).env("TMPDIR", folder.path().join("tmp"));
        command.current_dir(folder.path().join("work"));
        if world != World::Users {
            command.env("XDG_CACHE_HOME", folder.path().join("cache"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: one async-signal-safe system call between fork and exec. A selftest that is killed takes the lab along.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::INT))?)) };
        let mounts = mounts()?;
        let mut child = command.spawn().with_context(|| format!("cannot start {}", argv[0].to_string_lossy()))?;
        let (out, out_reader) = gather(child.stdout.take().expect("piped"));
        let (err, err_reader) = gather(child.stderr.take().expect("piped"));
        let (out_reader, err_reader) = (Some(out_reader), Some(err_reader));
        let begun = Instant::now();
        Ok(Self { child, mark, world, folder, mounts, out, out_reader, err, err_reader, begun })
    }

    /// Waits until the lab prints that line; how long that took since the start.
    pub(super) fn wait_for(&self, line: &str, limit: Duration) -> Result<Duration> {
        while self.begun.elapsed() < limit {
            cancel::check()?;
            if self.out.lock().expect("no panic under it").contains(line) {
                return Ok(self.begun.elapsed());
            }
            if self.out_reader.as_ref().is_some_and(JoinHandle::is_finished) {
                // What it said last may still be on its way.
                thread::sleep(Duration::from_millis(500));
                bail!(
                    "the lab ended before the machine was up: {}",
                    self.err.lock().expect("no panic under it").trim()
                );
            }
            thread::sleep(GLANCE);
        }
        bail!("the machine was not up within {} s", limit.as_secs())
    }

    /// The process of this trial whose command line holds `word`.
    pub(super) fn process(&self, word: &str) -> Option<i32> {
        let own = self.child.id() as i32;
        marked(&self.mark).into_iter().filter(|pid| *pid != own).find(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
        })
    }

    /// Ctrl-C, as a terminal sends it: to the lab and all that is in its process group.
    pub(super) fn interrupt(&self) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::INT);
    }

    /// Waits for the end, and looks for what stayed.
    pub(super) fn end(mut self, limit: Duration) -> Result<Ended> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            cancel::check()?;
            if start.elapsed() > limit {
                bail!("the lab did not end within {} s", limit.as_secs());
            }
            thread::sleep(GLANCE);
        };
        let took = start.elapsed();
        let mut left = self.left();
        while !left.is_empty() && start.elapsed() < took + GRACE {
            thread::sleep(GLANCE);
            left = self.left();
        }
        kill_all(&self.mark);
        if let Some(reader) = self.err_reader.take() {
            let _ = reader.join();
        }
        let stderr = self.err.lock().expect("no panic under it").clone();
        Ok(Ended { status: status.signal().map_or(status.code(), |_| None), stderr, left, took })
    }

    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = marked(&self.mark).into_iter().map(describe).collect();
        for sub in ["tmp", "work"] {
            left.extend(files(&self.folder.path().join(sub)).map(|path| format!("file {}", path.display())));
        }
        let cache = match self.world {
            World::Users => Cache::open().map(|cache| cache.root().to_owned()).ok(),
            _ => Some(self.folder.path().join("cache/entrain/lab")),
        };
        left.extend(cache.iter().flat_map(|cache| half_built(cache)).map(|path| format!("file {}", path.display())));
        left.extend(mounts().unwrap_or_default().difference(&self.mounts).map(|mount| format!("mount {mount}")));
        left
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        kill_all(&self.mark);
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.out_reader.take() {
            let _ = reader.join();
        }
    }
}

/// Gathers what comes out of a pipe, line by line, until its end.
fn gather(from: impl Read + Send + 'static) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let text = Arc::new(Mutex::new(String::new()));
    let to = Arc::clone(&text);
    let reader = thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut text = to.lock().expect("no panic under it");
            text.push_str(&line);
            text.push('\n');
        }
    });
    (text, reader)
}

impl World {
    /// The command that makes this world, to stand before the lab's own. All of it vanishes with the process.
    fn wrap(self, cache: &Path) -> Vec<OsString> {
        let mut argv: Vec<OsString> = vec!["unshare".into()];
        if !rustix::process::geteuid().is_root() {
            argv.push("--map-root-user".into());
        }
        match self {
            Self::Users | Self::EmptyCache => return Vec::new(),
            Self::WithoutNetwork => argv.push("--net".into()),
            Self::SmallCache { mib } => {
                argv.push("--mount".into());
                let mount = format!("mount -t tmpfs -o size={mib}m none \"$0\" && exec \"$@\"");
                argv.extend(["sh".into(), "-c".into(), mount.into(), cache.into()]);
            }
        }
        argv
    }
}

/// All living processes with that mark.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        // Of a process that has ended there is nothing to read.
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|vars| vars.split(|byte| *byte == 0).any(|var| var == wanted.as_bytes()))
        })
        .collect()
}

fn describe(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> =
        line.split(|byte| *byte == 0).take(4).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    format!("process {pid} ({})", words.join(" ").trim())
}

fn kill_all(mark: &str) {
    for pid in marked(mark) {
        kill(pid, Signal::KILL);
    }
}

pub(super) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

pub(super) fn alive(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// All files and folders right below one.
fn files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// What an entry of the cache is called while it is built, and folders for scratch.
fn half_built(cache: &Path) -> Vec<PathBuf> {
    let suspect = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name.ends_with(".part") && !being_built(path)) || name.starts_with(".tmp")
    };
    files(cache).chain(files(cache).flat_map(|kind| files(&kind))).filter(suspect).collect()
}

/// Whether another lab builds this entry now: it holds the entry's lock.
fn being_built(part: &Path) -> bool {
    File::open(part.with_extension("lock"))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Where something is mounted.
fn mounts() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(text.lines().filter_map(|line| Some(line.split(' ').nth(4)?.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_built_entries_are_seen() {
        let cache = tempfile::tempdir().unwrap();
        fs::create_dir_all(cache.path().join("images/.key.part")).unwrap();
        fs::create_dir_all(cache.path().join("images/key")).unwrap();
        fs::write(cache.path().join("images/.key.lock"), "").unwrap();
        // Another lab at work.
        fs::create_dir_all(cache.path().join("images/.other.part")).unwrap();
        let lock = File::create(cache.path().join("images/.other.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        fs::create_dir(cache.path().join(".tmpXYZ")).unwrap();
        let mut found: Vec<_> =
            half_built(cache.path()).iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
        found.sort();
        assert_eq!(found, [".key.part", ".tmpXYZ"]);
    }

    #[test]
    fn a_process_with_the_mark_is_found_and_killed() {
        let mark = format!("unit-{}", std::process::id());
        let mut child = Command::new("sleep").arg("1000").env(MARK, &mark).spawn().unwrap();
        let pid = child.id() as i32;
        // Between fork and exec it still has our own environment.
        let until = Instant::now() + Duration::from_secs(10);
        while marked(&mark).is_empty() && Instant::now() < until {
            thread::sleep(GLANCE);
        }
        assert_eq!(marked(&mark), [pid]);
        assert!(describe(pid).contains("sleep 1000"));
        kill_all(&mark);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(marked(&mark).is_empty());
    }
}
