//! The VMs of a cell.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::MatrixArgs;
use super::cells::{Cell, Spin};
use super::console::{MARK, numbers};
use crate::rounds::Stop;

/// What a VM of a cell is made of.
pub(super) struct Guest<'a> {
    pub(super) args: &'a MatrixArgs,
    pub(super) cell: &'a Cell,
}

impl Guest<'_> {
    /// The kernel's command line: its shell is the first process.
    fn line(&self) -> String {
        let console = if cfg!(target_arch = "x86_64") { "ttyS0" } else { "ttyAMA0" };
        let spin = if self.cell.pvspin == Spin::Off { " nopvspin" } else { "" };
        // What is quoted reaches the shell as one argument; the kernel knows no other quotes.
        let work = format!(
            "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp; \
             mount -t debugfs debug /sys/kernel/debug; \
             while :; do echo {MARK} $({} 2>&1 | tail -n 1); done",
            self.args.guest_command
        );
        format!("console={console} quiet panic=-1{spin} rdinit=/bin/sh -- -c \"{work}\"")
    }

    fn qemu(&self, number: u32) -> Command {
        let (args, cell) = (self.args, self.cell);
        let machine = if cfg!(target_arch = "x86_64") { "q35" } else { "virt,gic-version=host" };
        let mut qemu = Command::new(&args.qemu);
        qemu.args([
            "-accel",
            "kvm",
            "-cpu",
            "host",
            "-M",
            machine,
            "-name",
            &format!("guest=matrix{number},debug-threads=on"),
        ]);
        qemu.args(["-smp", &cell.vcpus.to_string(), "-m", &args.memory.to_string()]);
        // Shared, so that an agent in the guest could be paired.
        qemu.arg("-object").arg(format!("memory-backend-memfd,id=ram,size={}M,share=on", args.memory));
        qemu.args([
            "-machine",
            "memory-backend=ram",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
        ]);
        qemu.arg("-kernel").arg(&args.kernel).arg("-initrd").arg(&args.initrd);
        qemu.arg("-append").arg(self.line());
        qemu.args(args.qemu_args.split_whitespace());
        qemu
    }
}

/// VMs that run; dropped, they are killed.
pub(super) struct Vms {
    folder: tempfile::TempDir,
    running: Vec<(PathBuf, Child)>,
}

impl Vms {
    /// Starts them and waits until each has printed its first number.
    pub(super) fn start(guest: &Guest<'_>, stop: &Stop) -> anyhow::Result<Self> {
        ensure!(!guest.args.guest_command.contains('"'), "--guest-command must hold no double quotes");
        let folder = tempfile::Builder::new().prefix("entrain-matrix-").tempdir().context("a folder for consoles")?;
        let mut vms = Self { folder, running: Vec::new() };
        for number in 0..guest.cell.vms {
            let console = vms.folder.path().join(format!("{number}.console"));
            let mut qemu = guest.qemu(number);
            qemu.stdin(Stdio::null())
                .stdout(File::create(&console)?)
                .stderr(File::create(console.with_extension("log"))?);
            // Ctrl-C is for this process; the VMs end with it, in whatever way it ends.
            qemu.process_group(0);
            let parent = std::process::id();
            // SAFETY: prctl and getppid are async-signal-safe; nothing else is done between fork and exec.
            unsafe {
                qemu.pre_exec(move || {
                    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                    if std::os::unix::process::parent_id() == parent {
                        Ok(())
                    } else {
                        Err(std::io::ErrorKind::NotFound.into())
                    }
                });
            }
            let child = qemu.spawn().with_context(|| format!("cannot start {}", guest.args.qemu.display()))?;
            vms.running.push((console, child));
        }
        let limit = Instant::now() + Duration::from_secs(guest.args.boot);
        while !vms.all_print()? {
            stop.check()?;
            if Instant::now() > limit {
                bail!("not all VMs have printed a number within {} s (--boot); {}", guest.args.boot, vms.last_words());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        vms.check()?;
        Ok(vms)
    }

    fn all_print(&mut self) -> anyhow::Result<bool> {
        for (console, child) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                let said = fs::read_to_string(console.with_extension("log")).unwrap_or_default();
                bail!("QEMU ended ({status}): {}", said.trim());
            }
            if numbers(&String::from_utf8_lossy(&fs::read(&*console)?)).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The command whose number is the figure of a window.
    pub(super) fn figure(&self, window: Duration) -> String {
        let own = std::process::id();
        format!("exec /proc/{own}/exe trial console '{}' {}", self.folder.path().display(), window.as_secs())
    }

    /// None has ended.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (console, child) in &self.running {
            let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
            let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            ensure!(!matches!(state, None | Some('Z' | 'X')), "a VM has ended: {}", self.words_of(console));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        self.running.iter().map(|(console, _)| self.words_of(console)).collect::<Vec<_>>().join("; ")
    }

    fn words_of(&self, console: &std::path::Path) -> String {
        let text = fs::read(console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
        format!("{}: {}", console.file_name().unwrap_or_default().to_string_lossy(), last.trim())
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            // Fails only where it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
