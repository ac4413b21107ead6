//! The process that serves metrics, and its supervisor in the daemon.
//!
//! The network's bytes are parsed in a process of its own: this same program, started anew, without capabilities, with
//! bounded memory and a filter of system calls, and with two descriptors: the listening socket and a channel to the
//! daemon. Over the channel it asks with one byte and gets the status, as the status socket gives it. When it ends, for
//! whatever reason, the next one is started; the daemon and its pairings don't notice.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use tracing::{info, warn};

use crate::privilege;
use crate::seccomp::{Part, confine_or_say};
use crate::status::{Answer, Asker, Question};

/// The option that makes this program that process.
pub(crate) const OPTION: &str = "serve-metrics";

/// What it asks for: the status for a scrape, or only whether the daemon answers.
const SCRAPE: u8 = b's';
const HEALTH: u8 = b'h';
/// The daemon answers within two seconds, or says that it doesn't.
const PATIENCE: Duration = Duration::from_secs(4);
/// An answer: a host full of vCPUs takes some MiB.
const LONGEST: u32 = 64 << 20;
/// Memory of the process: such an answer as text, as values and as metrics.
const MEMORY: u64 = 512 << 20;
/// Descriptors: clients, the runtime's, the two it was given.
const DESCRIPTORS: u64 = 64;
/// Pauses between two starts: at first, at most, and after how long a life it is the first again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const LONG_LIFE: Duration = Duration::from_secs(600);
/// A daemon that was killed may have left such a process for a moment, which has the port.
const BINDING: Duration = Duration::from_secs(2);

/// Listens, and has the process serve for as long as the daemon runs. Returns where.
pub(crate) fn start(address: SocketAddr, asker: Asker) -> io::Result<SocketAddr> {
    let listener = bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        if let Err(error) = privilege::drop_all() {
            warn!("the thread of the metrics cannot give up its capabilities: {error}");
        }
        supervise(&listener, &asker);
    })?;
    info!("metrics at http://{address}/metrics");
    if !address.ip().is_loopback() {
        warn!(
            "whoever reaches {address} reads the names of VMs and what they do: a firewall or a proxy should stand before it"
        );
    }
    Ok(address)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let begin = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < BINDING => {
                sleep(BINDING / 20);
            }
            bound => return bound,
        }
    }
}

fn supervise(listener: &TcpListener, asker: &Asker) -> ! {
    let mut pause = PAUSE.0;
    loop {
        let begin = Instant::now();
        let ended = match one_life(listener, asker) {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        if begin.elapsed() >= LONG_LIFE {
            pause = PAUSE.0;
        }
        warn!("the process that serves metrics has ended ({ended}); the next one starts in {} s", pause.as_secs());
        sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// Starts the process and answers it until it ends.
fn one_life(listener: &TcpListener, asker: &Asker) -> io::Result<ExitStatus> {
    let (own, theirs) = UnixStream::pair()?;
    own.set_write_timeout(Some(PATIENCE))?;
    let mut child = Command::new("/proc/self/exe")
        .args(["host", &format!("--{OPTION}")])
        .env_remove("NOTIFY_SOCKET")
        .stdin(OwnedFd::from(listener.try_clone()?))
        .stdout(OwnedFd::from(theirs))
        .spawn()?;
    let _ = answer(&own, asker);
    // It has closed its end, or says what it should not: either way it is over.
    let _ = child.kill();
    child.wait()
}

/// Answers until the channel's other end is closed. One byte is all that is read at a time.
fn answer(mut channel: &UnixStream, asker: &Asker) -> io::Result<()> {
    loop {
        let mut byte = [0];
        channel.read_exact(&mut byte)?;
        let status = match byte[0] {
            SCRAPE => asker.scrape(),
            HEALTH => asker.status(),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let text = match status {
            Some(status) => serde_json::to_vec(&Answer::Status(status)),
            None => serde_json::to_vec(&Answer::Error { error: "the daemon is ending or busy".into() }),
        };
        let text = text.map_err(io::Error::other)?;
        channel.write_all(&(text.len() as u32).to_le_bytes())?;
        channel.write_all(&text)?;
    }
}

/// That process. It ends with the thread that started it, or when the daemon does not answer.
///
/// # Errors
/// It was started by hand, without what a daemon gives it.
pub(crate) fn serve() -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The service manager or a terminal tells the daemon as well, which ends this one last.
    let told = Arc::<AtomicBool>::default();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::flag::register(signal, told.clone())?;
    }
    privilege::drop_all()?;
    for (resource, most) in [(Resource::As, MEMORY), (Resource::Nofile, DESCRIPTORS)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let channel = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    anyhow::ensure!(
        listener.local_addr().is_ok() && channel.peer_addr().is_ok(),
        "--{OPTION} is for the daemon's own use (--metrics)"
    );
    channel.set_read_timeout(Some(PATIENCE))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    confine_or_say(Part::Metrics);
    runtime.block_on(super::accept(listener, Arc::new(by(channel))))?;
    Ok(())
}

/// Asks the daemon. Out of step with it, or without it, this process is of no use.
fn by(channel: UnixStream) -> Asker {
    let channel = Mutex::new(channel);
    Asker::new(move |question: Question| {
        let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
        match ask(&mut channel, if question.metrics { SCRAPE } else { HEALTH }) {
            Ok(answer) => question.reply.send(answer).is_ok(),
            Err(_) => std::process::exit(1),
        }
    })
}

fn ask(channel: &mut UnixStream, what: u8) -> io::Result<Answer> {
    channel.write_all(&[what])?;
    let mut length = [0; 4];
    channel.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    channel.read_exact(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::empty;

    fn asker(answers: usize) -> Asker {
        let left = Mutex::new(answers);
        Asker::new(move |question: Question| {
            let mut left = left.lock().expect("a number");
            if *left == 0 {
                return false;
            }
            *left -= 1;
            question.reply.send(Answer::Status(Box::new(empty()))).is_ok()
        })
    }

    #[test]
    fn one_byte_is_answered_with_the_status_and_any_other_ends_the_process() {
        let (daemon, mut process) = UnixStream::pair().expect("a pair");
        let answers = std::thread::spawn(move || answer(&daemon, &asker(2)).expect_err("in the end"));
        for what in [SCRAPE, HEALTH] {
            assert!(matches!(ask(&mut process, what), Ok(Answer::Status(status)) if status.now_ns == 5));
        }
        assert!(matches!(ask(&mut process, SCRAPE), Ok(Answer::Error { .. })), "the daemon is ending");
        assert!(ask(&mut process, b'?').is_err());
        assert_eq!(answers.join().expect("it ends").kind(), io::ErrorKind::InvalidData);
    }
}
