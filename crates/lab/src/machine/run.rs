//! The running machine.
use super::{Command, CpuClock, GuestSpec, MachineSpec, Outcome, Target};
use crate::{Cache, LabError, Progress, Result};

/// One booted host machine with its guests. Dropping it kills its QEMU.
#[derive(Debug)]
pub struct Machine {}

/// A command that runs in a machine.
#[derive(Debug)]
pub struct Running {}

fn later<T>() -> Result<T> {
    Err(LabError::Invalid("the machine is not built yet".into()))
}

impl Machine {
    /// Boots a host machine and all its guests.
    pub fn boot(_cache: &Cache, _spec: &MachineSpec, _progress: &dyn Progress) -> Result<Self> {
        later()
    }
    /// Starts a command.
    pub fn start(&self, _target: Target, _command: Command) -> Result<Running> {
        later()
    }
    /// Runs a command to its end.
    pub fn run(&self, target: Target, command: Command) -> Result<Outcome> {
        self.start(target, command)?.wait()
    }
    /// Writes a file of that mode.
    pub fn put(&self, _target: Target, _path: &str, _bytes: &[u8], _mode: u32) -> Result<()> {
        later()
    }
    /// Reads a file.
    pub fn get(&self, _target: Target, _path: &str) -> Result<Vec<u8>> {
        later()
    }
    /// Starts one more guest; returns its index.
    pub fn start_guest(&self, _spec: &GuestSpec) -> Result<usize> {
        later()
    }
    /// Ends a guest's QEMU. Its index is not given to another.
    pub fn stop_guest(&self, _guest: usize) -> Result<()> {
        later()
    }
    /// Resets a guest (as a hardware reset does) and waits until it is up again.
    pub fn reset_guest(&self, _guest: usize) -> Result<()> {
        later()
    }
    /// Pauses a guest's vCPUs (QMP `stop`).
    pub fn pause_guest(&self, _guest: usize) -> Result<()> {
        later()
    }
    /// Lets a paused guest go on (QMP `cont`).
    pub fn resume_guest(&self, _guest: usize) -> Result<()> {
        later()
    }
    /// CPU time of the emulator's vCPU threads until now.
    pub fn cpu_clock(&self) -> CpuClock {
        CpuClock::default()
    }
    /// Ends guests and host machine.
    pub fn shutdown(self) -> Result<()> {
        later()
    }
}

impl Running {
    /// Waits for its end.
    pub fn wait(self) -> Result<Outcome> {
        later()
    }
    /// Sends it a signal.
    pub fn kill(&self, _signal: i32) -> Result<()> {
        later()
    }
    /// The lines of its stdout as they come; ends with the command.
    pub fn lines(&mut self) -> impl Iterator<Item = Result<String>> + '_ {
        std::iter::empty()
    }
}
