//! What the runner and the scenarios need of a booted machine: [`Machine`] in life, a fake in tests.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, CpuClock, GuestSpec, Machine, Outcome, Running, Target, pace::Pace};
use entrain_lab_machine::{LabError, Result, cancel};

/// A booted host machine with its guests.
pub trait Rig {
    /// Starts a command.
    fn start(&self, target: Target, command: Command) -> Result<Box<dyn Job>>;
    /// Runs a command to its end.
    fn run(&self, target: Target, command: Command) -> Result<Outcome> {
        self.start(target, command)?.wait()
    }
    /// Writes a file of that mode.
    fn put(&self, target: Target, path: &str, bytes: &[u8], mode: u32) -> Result<()>;
    /// Reads a file.
    fn get(&self, target: Target, path: &str) -> Result<Vec<u8>>;
    /// Starts one more guest; returns its index.
    fn start_guest(&self, spec: &GuestSpec) -> Result<usize>;
    /// Starts more guests at once; returns their indices when all are up.
    fn start_guests(&self, specs: &[GuestSpec]) -> Result<Vec<usize>> {
        specs.iter().map(|spec| self.start_guest(spec)).collect()
    }
    /// Runs a shell line in a guest that ends it (a panic), and waits until its QEMU is gone.
    fn end_guest_by(&self, guest: usize, line: &str) -> Result<()>;
    /// Ends a guest's QEMU.
    fn stop_guest(&self, guest: usize) -> Result<()>;
    /// Resets a guest and waits until it is up again.
    fn reset_guest(&self, guest: usize) -> Result<()>;
    /// Pauses a guest's vCPUs.
    fn pause_guest(&self, guest: usize) -> Result<()>;
    /// Lets a paused guest go on.
    fn resume_guest(&self, guest: usize) -> Result<()>;
    /// Runs a shell line in a guest that makes it boot anew (a kexec), and waits until it is up again.
    fn restart_guest_by(&self, _guest: usize, _line: &str) -> Result<()> {
        Err(unable())
    }
    /// Gives commands to a guest's QEMU; the last answer (JSON).
    fn qmp(&self, _guest: usize, _commands: &[&str]) -> Result<String> {
        Err(unable())
    }
    /// Starts a second QEMU for a guest with the same arguments, which waits for a migration, and gives it `commands`.
    fn begin_migration(&self, _guest: usize, _commands: &[&str]) -> Result<()> {
        Err(unable())
    }
    /// Ends a migration: the guest is where it was, or has `moved`; the other QEMU is killed.
    fn end_migration(&self, _guest: usize, _moved: bool) -> Result<()> {
        Err(unable())
    }
    /// An error if host machine or guests have broken down, or seem to and do not recover in a moment.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// Puts in order what a load that failed may have left: guests beyond the first `own`, the socket of a daemon that was
    /// killed.
    fn tidy(&self, _own: usize) -> Result<()> {
        Ok(())
    }
    /// Whether the host machine is emulated, not virtualized.
    fn emulated(&self) -> bool;
    /// CPU time of the emulator's vCPU threads until now.
    fn cpu_clock(&self) -> CpuClock;
    /// How fast this computer is now, in steps of a fixed work per µs. Takes some milliseconds of the computer's time.
    fn speed(&self) -> f64 {
        crate::speed::look()
    }
    /// The factor that a pace stands for on this machine, which has to be up and at rest.
    fn factor_of(&self, pace: Pace) -> Result<f64> {
        match pace {
            Pace::Times(factor) => Ok(factor),
            Pace::Auto => Ok(1.0),
        }
    }
    /// From now on its time passes so many times slower than the computer's.
    fn set_pace(&self, _factor: f64) -> Result<()> {
        Ok(())
    }
    /// The computer's time that a span of the machine's takes now.
    fn wall(&self, machine: Duration) -> Duration {
        machine
    }
    /// The machine's monotonic clock.
    fn now(&self) -> Duration;
    /// Waits for a span of the machine's time.
    fn sleep(&self, machine: Duration) -> Result<()> {
        cancel::sleep(self.wall(machine))
    }
    /// Ends guests and host machine.
    fn shutdown(self: Box<Self>) -> Result<()>;
}

/// Removes the daemon's socket once the kernel knows of nobody behind it: one that was killed may take a moment to die. An
/// arm's own daemon lives on, and keeps it.
const REMOVE_DEAD_SOCKET: &str = "s=/run/entrain/host.sock; \
    for n in $(seq 10); do [ -S $s ] || break; grep -q $s /proc/net/unix || rm $s; sleep 0.2; done";

/// For rigs without QEMUs.
fn unable() -> LabError {
    LabError::Invalid("this rig has no QEMU of a guest to talk to".into())
}

/// A command that runs in a machine.
pub trait Job {
    /// Waits for its end.
    fn wait(self: Box<Self>) -> Result<Outcome>;
    /// Sends it a signal.
    fn kill(&self, signal: i32) -> Result<()>;
}

impl Rig for Machine {
    fn start(&self, target: Target, command: Command) -> Result<Box<dyn Job>> {
        Ok(Box::new(Self::start(self, target, command)?))
    }
    fn put(&self, target: Target, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
        Self::put(self, target, path, bytes, mode)
    }
    fn get(&self, target: Target, path: &str) -> Result<Vec<u8>> {
        Self::get(self, target, path)
    }
    fn start_guest(&self, spec: &GuestSpec) -> Result<usize> {
        Self::start_guest(self, spec)
    }
    fn start_guests(&self, specs: &[GuestSpec]) -> Result<Vec<usize>> {
        Self::start_guests(self, specs)
    }
    fn end_guest_by(&self, guest: usize, line: &str) -> Result<()> {
        Self::end_guest_by(self, guest, line)
    }
    fn stop_guest(&self, guest: usize) -> Result<()> {
        Self::stop_guest(self, guest)
    }
    fn reset_guest(&self, guest: usize) -> Result<()> {
        Self::reset_guest(self, guest)
    }
    fn pause_guest(&self, guest: usize) -> Result<()> {
        Self::pause_guest(self, guest)
    }
    fn resume_guest(&self, guest: usize) -> Result<()> {
        Self::resume_guest(self, guest)
    }
    fn restart_guest_by(&self, guest: usize, line: &str) -> Result<()> {
        Self::restart_guest_by(self, guest, line)
    }
    fn qmp(&self, guest: usize, commands: &[&str]) -> Result<String> {
        Self::qmp(self, guest, commands)
    }
    fn begin_migration(&self, guest: usize, commands: &[&str]) -> Result<()> {
        Self::begin_migration(self, guest, commands)
    }
    fn end_migration(&self, guest: usize, moved: bool) -> Result<()> {
        Self::end_migration(self, guest, moved)
    }
    fn settle(&self) -> Result<()> {
        Self::settle(self)
    }
    fn tidy(&self, own: usize) -> Result<()> {
        (own..self.guests()).try_for_each(|guest| Self::stop_guest(self, guest))?;
        Self::run(self, Target::Host, Command::shell(REMOVE_DEAD_SOCKET)).map(drop)
    }
    fn emulated(&self) -> bool {
        Self::emulated(self)
    }
    fn cpu_clock(&self) -> CpuClock {
        Self::cpu_clock(self)
    }
    fn factor_of(&self, pace: Pace) -> Result<f64> {
        Self::factor_of(self, pace)
    }
    fn set_pace(&self, factor: f64) -> Result<()> {
        Self::set_pace(self, factor)
    }
    fn wall(&self, machine: Duration) -> Duration {
        Self::wall(self, machine)
    }
    fn now(&self) -> Duration {
        Self::now(self)
    }
    fn shutdown(self: Box<Self>) -> Result<()> {
        Self::shutdown(*self)
    }
}

impl Job for Running {
    fn wait(self: Box<Self>) -> Result<Outcome> {
        Self::wait(*self)
    }
    fn kill(&self, signal: i32) -> Result<()> {
        Self::kill(self, signal)
    }
}
