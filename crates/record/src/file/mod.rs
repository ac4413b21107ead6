//! The file of a recording; `docs/record.md` describes it.
//!
//! A header block, blocks of tables (who the VMs and threads are), and a ring of blocks of events. Every block has a
//! number and a checksum of its own, so a file that was cut off, or whose recorder was killed, gives what it holds.

mod parse;
mod write;

use serde::{Deserialize, Serialize};

pub use parse::{ParseError, Recording, parse};
pub use write::write;
pub(crate) use write::{Writer, block, header};

/// First bytes of every recording.
pub const MAGIC: [u8; 8] = *b"ENTRNREC";
/// Raised when older readers would misunderstand; they refuse such a file.
pub const MAJOR: u16 = 1;
/// Raised when something is added that older readers may skip.
pub const MINOR: u16 = 0;
/// Bytes of a block; the header is one, too.
pub const BLOCK: usize = 64 << 10;
/// Bytes of a block's head.
pub const BLOCK_HEAD: usize = 32;
/// First bytes of a block.
pub const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"EBLK");
/// Kind of a block: JSON, one [`Fragment`].
pub const KIND_TABLE: u32 = 1;
/// Kind of a block: events.
pub const KIND_EVENTS: u32 = 2;
/// Blocks of tables that a file has room for.
pub const TABLES: usize = 16;
/// Smallest and biggest file, MiB. Reports hold a file in memory.
pub const SIZES_MIB: std::ops::RangeInclusive<u64> = 2..=4096;

/// One block of tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fragment {
    /// About the whole recording.
    Host(Host),
    /// VMs of the host.
    Vms(Vec<RecordedVm>),
    /// Threads that were met.
    Names(Vec<Name>),
}

/// About the whole recording. Times are ns of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Of the recorder.
    pub version: String,
    /// The host's kernel.
    pub kernel: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// pCPUs that were online.
    pub pcpus: u32,
    /// When it began.
    pub began_ns: u64,
    /// When it ended, or when this was written.
    pub ended_ns: u64,
    /// Wall clock of the begin, seconds since 1970.
    pub began_unix: u64,
    /// It was ended in good order.
    pub complete: bool,
    /// Events that were lost since the recorder could not follow.
    pub dropped: u64,
    /// Older events that newer ones have overwritten.
    pub overwritten: u64,
    /// Names of threads that found no room.
    pub unnamed: u64,
    /// What this kernel could not tell: words like `spins`.
    pub unseen: Vec<String>,
    /// A daemon ran, so critical sections of paired guests are known.
    pub daemon: bool,
    /// It was recorded in a guest: every switch of its tasks, on its CPUs.
    pub guest: bool,
    /// The clocks, at the begin and at the end: ties a guest's recording to its host's.
    pub clocks: Vec<Clock>,
}

/// One moment by three clocks: the CPU's counter, CLOCK_MONOTONIC and CLOCK_BOOTTIME, the latter two in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock(pub u64, pub u64, pub u64);

impl Clock {
    /// Now.
    pub(crate) fn now() -> Self {
        let now = entrain_system::moment();
        Self(now.counter, now.monotonic_ns, now.boottime_ns)
    }
}

/// A VM of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedVm {
    /// For people.
    pub name: String,
    /// The VMM's process.
    pub pid: i32,
    /// It was to be recorded; others are known by name only.
    pub chosen: bool,
    /// KVM's vcpu_id and thread of each vCPU.
    pub vcpus: Vec<(u32, u32)>,
    /// By how much its vCPUs' counters are ahead of the host's; `None` where the kernel does not tell, or they differ.
    pub counter: Option<i64>,
}

/// A thread that was met: its number, its process, its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Name(pub u32, pub u32, pub String);

/// Checksum of a block: its head but for the last word, and what it holds.
pub(crate) fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..BLOCK_HEAD - 4]);
    crc.update(payload);
    crc.finalize()
}
