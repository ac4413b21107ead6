//! What the lab and the agents say to each other.
use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port.
pub const PORT: &str = "entrain.agent";
/// Version of the messages below; lab and agent are built together, so it guards against a stale program only.
pub const VERSION: u32 = 2;
/// Interval of heartbeats, unless [`Request::Beat`] said another.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(1);

/// What the lab asks of an agent. `id` names the exchange in the answers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Request {
    /// Run a program.
    Spawn {
        /// Exchange.
        id: u32,
        /// Program and arguments.
        argv: Vec<String>,
        /// Variables beside the agent's own.
        env: Vec<(String, String)>,
        /// Killed after this long.
        deadline_ms: u64,
        /// On a terminal of this many rows and columns instead of pipes.
        terminal: Option<(u16, u16)>,
    },
    /// Input for a program; an empty piece closes it.
    Input {
        /// Exchange.
        id: u32,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// New size of a program's terminal.
    Resize {
        /// Exchange.
        id: u32,
        /// Rows and columns.
        size: (u16, u16),
    },
    /// Signal a program's process group.
    Signal {
        /// Exchange.
        id: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Write a piece of a file; the first piece creates it anew.
    Put {
        /// Exchange.
        id: u32,
        /// The file.
        path: String,
        /// Its mode.
        mode: u32,
        /// This is the first piece.
        first: bool,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// Read a file.
    Get {
        /// Exchange.
        id: u32,
        /// The file.
        path: String,
    },
    /// Start a guest (host machine only).
    StartGuest {
        /// Exchange.
        id: u32,
        /// Its index.
        guest: usize,
        /// Its QEMU: program and arguments.
        argv: Vec<String>,
        /// Huge pages (2 MiB) that must be free for it.
        huge_pages: u32,
        /// Its name, where it gets the cgroups that libvirt would give it.
        scope: Option<String>,
    },
    /// Kill a guest's QEMU (host machine only).
    StopGuest {
        /// Exchange.
        id: u32,
        /// Its index.
        guest: usize,
    },
    /// Commands for a guest's QEMU, one after the other (host machine only).
    Qmp {
        /// Exchange.
        id: u32,
        /// Its index.
        guest: usize,
        /// JSON, one command each.
        commands: Vec<String>,
    },
    /// Start a second QEMU for a guest, which waits for the state of the first (host machine only).
    StartTarget {
        /// Exchange.
        id: u32,
        /// The guest's index.
        guest: usize,
        /// The second QEMU: program and arguments.
        argv: Vec<String>,
        /// JSON commands for it, one after the other.
        commands: Vec<String>,
        /// As in [`Self::StartGuest`].
        scope: Option<String>,
    },
    /// Keep one of a guest's two QEMUs and kill the other (host machine only).
    EndMigration {
        /// Exchange.
        id: u32,
        /// The guest's index.
        guest: usize,
        /// The guest runs in the second one now.
        moved: bool,
    },
    /// From now on a heartbeat comes after so many ms of the machine's time.
    Beat {
        /// The interval, ms.
        every_ms: u64,
    },
    /// End the machine.
    PowerOff,
}

/// What an agent says.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Event {
    /// The agent is up.
    Ready {
        /// Its version of the messages.
        version: u32,
        /// `uname -r`.
        release: String,
        /// Time since the kernel's start, ms.
        uptime_ms: u64,
    },
    /// Again and again, by default once a second.
    Heartbeat {
        /// Time since the kernel's start, ms.
        uptime_ms: u64,
    },
    /// A program wrote.
    Output {
        /// Exchange.
        id: u32,
        /// To stderr, not stdout.
        err: bool,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// A program ended; all its output has been sent.
    Exited {
        /// Exchange.
        id: u32,
        /// Exit status, 128 + signal.
        status: i32,
        /// It was killed because its deadline passed.
        late: bool,
    },
    /// A piece of a file.
    Data {
        /// Exchange.
        id: u32,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// The request is done.
    Done {
        /// Exchange.
        id: u32,
        /// Its result, for example QMP's last answer.
        text: String,
    },
    /// The request failed.
    Failed {
        /// Exchange.
        id: u32,
        /// Why.
        message: String,
    },
    /// A guest's console wrote.
    Console {
        /// Its index.
        guest: usize,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// A guest's QEMU ended.
    Gone {
        /// Its index.
        guest: usize,
        /// How, in words.
        how: String,
    },
}

impl Event {
    /// The exchange that it belongs to.
    pub fn id(&self) -> Option<u32> {
        match self {
            Self::Output { id, .. }
            | Self::Exited { id, .. }
            | Self::Data { id, .. }
            | Self::Done { id, .. }
            | Self::Failed { id, .. } => Some(*id),
            Self::Ready { .. } | Self::Heartbeat { .. } | Self::Console { .. } | Self::Gone { .. } => None,
        }
    }
}
