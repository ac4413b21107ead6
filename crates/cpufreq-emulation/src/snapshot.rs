//! What the running emulation tells: one JSON object for each connection to its socket.

use std::io::Read;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

/// The emulation's socket in the host machine.
pub const SOCKET: &str = "/run/entrain-cpufreq-emulation.sock";

/// Counters at one moment. All times are sums since the emulation began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Always true: these are figures of an emulation.
    pub emulation: bool,
    /// Name of the frequency table.
    pub table: String,
    /// Monotonic clock of the host machine, ns.
    pub at_ns: u64,
    /// Every CPU.
    pub cpus: Vec<Cpu>,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// Name of its cluster in the table.
    pub cluster: String,
    /// Work per time at its fastest point, of 1024 for the machine's fastest CPU; the kernel's figure.
    pub capacity: u32,
    /// Frequency of each operating point, kHz.
    pub khz_of_points: Vec<u32>,
    /// Frequency in force, kHz.
    pub khz: u32,
    /// Speed in force, of 1024 for the machine's fastest CPU at its fastest point.
    pub level: u32,
    /// Time that a task ran, by operating point, ns; the slowed time included.
    pub busy_ns: Vec<u64>,
    /// Time without a task, by operating point, ns.
    pub idle_ns: Vec<u64>,
    /// Part of the busy time that was taken away to slow the CPU, ns.
    pub stalled_ns: u64,
    /// Changes of the frequency asked for.
    pub transitions: u64,
    /// Energy of the busy time in µJ (`energy::energy_uj`).
    pub energy_uj: f64,
}

/// Reads a snapshot from the emulation that runs on this machine.
pub fn read() -> std::io::Result<String> {
    let mut text = String::new();
    UnixStream::connect(SOCKET)?.read_to_string(&mut text)?;
    Ok(text)
}
