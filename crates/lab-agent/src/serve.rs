//! The agent's main loop: frames from the port, answers to it.
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    frame::{Decoder, PIECE},
    guests::Guests,
    jobs::Jobs,
    message::{Event, HEARTBEAT, PORT, Request, VERSION},
    outbox::Outbox,
};

/// Pause between looks at a port that nobody has opened on the other side.
const PAUSE: Duration = Duration::from_millis(20);
/// Frames that may wait for the port; then programs that write wait too.
const BACKLOG: usize = 256;

/// Serves the lab until it says that the machine shall end.
pub fn serve() -> io::Result<()> {
    let path = find_port()?;
    let port = File::options().read(true).write(true).open(&path)?;
    let (send, frames) = crossbeam_channel::bounded::<Vec<u8>>(BACKLOG);
    let out = Outbox::new(send);
    let mut to_lab = port.try_clone()?;
    thread::spawn(move || {
        for bytes in frames {
            if let Err(e) = to_lab.write_all(&bytes) {
                eprintln!("entrain agent: the port failed: {e}");
            }
        }
    });
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    out.send(&Event::Ready { version: VERSION, release, uptime_ms: uptime_ms()? });
    let beat = out.clone();
    let every_ms = Arc::new(AtomicU64::new(HEARTBEAT.as_millis() as u64));
    let interval = Arc::clone(&every_ms);
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(interval.load(Ordering::Relaxed)));
            beat.send(&Event::Heartbeat { uptime_ms: uptime_ms().unwrap_or(0) });
        }
    });
    Server { jobs: Jobs::default(), guests: Guests::default(), out, every_ms }.run(port)
}

struct Server {
    jobs: Jobs,
    guests: Guests,
    out: Outbox,
    /// Interval of heartbeats, ms.
    every_ms: Arc<AtomicU64>,
}

impl Server {
    fn run(&self, mut port: File) -> io::Result<()> {
        let mut decoder = Decoder::default();
        loop {
            let Some(frame) = decoder.read(&mut port)? else {
                // Nobody has the other side open (yet).
                thread::sleep(PAUSE);
                continue;
            };
            if frame.party != 0 {
                self.guests.forward(frame);
                continue;
            }
            match postcard::from_bytes(&frame.body) {
                Ok(Request::PowerOff) => return power_off(),
                Ok(request) => self.handle(request),
                Err(e) => eprintln!("entrain agent: a message that I don't understand: {e}"),
            }
        }
    }

    fn handle(&self, request: Request) {
        let (id, done) = match request {
            Request::Spawn { id, argv, env, deadline_ms, terminal } => {
                let deadline = Duration::from_millis(deadline_ms);
                // Success is told by what the program writes and by its end.
                match self.jobs.spawn(id, &argv, &env, deadline, terminal, &self.out) {
                    Ok(()) => return,
                    Err(e) => (id, Err(e)),
                }
            }
            Request::Input { id, bytes } => return self.jobs.input(id, bytes),
            Request::Resize { id, size } => return self.jobs.resize(id, size),
            Request::Signal { id, signal } => return self.jobs.signal(id, signal),
            Request::Put { id, path, mode, first, bytes } => (id, put(&path, mode, first, &bytes)),
            Request::Get { id, path } => (id, self.get(id, &path)),
            Request::StartGuest { id, guest, argv, huge_pages, scope } => {
                let out = self.out.clone();
                let start = move |guests: &Guests| guests.start(guest, &argv, huge_pages, scope.as_deref(), &out);
                return self.aside(id, move |guests| start(guests).map(|()| String::new()));
            }
            Request::StopGuest { id, guest } => {
                self.guests.stop(guest);
                (id, Ok(String::new()))
            }
            Request::Qmp { id, guest, commands } => return self.aside(id, move |guests| guests.qmp(guest, &commands)),
            Request::StartTarget { id, guest, argv, commands, scope } => {
                let start = move |guests: &Guests| guests.start_target(guest, &argv, &commands, scope.as_deref());
                return self.aside(id, move |guests| start(guests).map(|()| String::new()));
            }
            Request::EndMigration { id, guest, moved } => {
                let out = self.out.clone();
                return self.aside(id, move |guests| guests.end_migration(guest, moved, &out).map(|()| String::new()));
            }
            Request::Beat { every_ms } => return self.every_ms.store(every_ms.max(1), Ordering::Relaxed),
            Request::PowerOff => return,
        };
        answer(&self.out, id, done);
    }

    /// Does what waits for a guest's QEMU without keeping the others waiting.
    fn aside(&self, id: u32, work: impl FnOnce(&Guests) -> io::Result<String> + Send + 'static) {
        let (guests, out) = (self.guests.clone(), self.out.clone());
        thread::spawn(move || answer(&out, id, work(&guests)));
    }

    fn get(&self, id: u32, path: &str) -> io::Result<String> {
        let mut file = File::open(path).map_err(|e| at(path, e))?;
        let mut piece = vec![0; PIECE];
        loop {
            let n = file.read(&mut piece).map_err(|e| at(path, e))?;
            if n == 0 {
                return Ok(String::new());
            }
            self.out.send(&Event::Data { id, bytes: piece[..n].to_vec() });
        }
    }
}

fn answer(out: &Outbox, id: u32, done: io::Result<String>) {
    out.send(&match done {
        Ok(text) => Event::Done { id, text },
        Err(e) => Event::Failed { id, message: e.to_string() },
    });
}

fn put(path: &str, mode: u32, first: bool, bytes: &[u8]) -> io::Result<String> {
    let mut options = File::options();
    options.mode(mode).append(!first).write(true).create(first).truncate(first);
    let mut file = options.open(path).map_err(|e| at(path, e))?;
    file.write_all(bytes).map_err(|e| at(path, e))?;
    if first {
        // The mode at creation went through the umask, and the file may be an old one.
        file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|e| at(path, e))?;
    }
    Ok(String::new())
}

fn at(path: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{path}: {e}"))
}

/// How long the kernel may take to name the port: its driver learns the name by a message that on a starved machine
/// comes after init has started the agent.
const PORT_LIMIT: Duration = Duration::from_secs(30);

/// Without udev the port's name is found in /sys.
fn find_port() -> io::Result<PathBuf> {
    let class = "/sys/class/virtio-ports";
    let start = Instant::now();
    loop {
        for item in fs::read_dir(class).map_err(|e| at(class, e))? {
            let item = item?;
            if fs::read_to_string(item.path().join("name")).is_ok_and(|name| name.trim() == PORT) {
                return Ok(PathBuf::from("/dev").join(item.file_name()));
            }
        }
        if start.elapsed() > PORT_LIMIT {
            return Err(io::Error::other(format!("no virtio-serial port is named {PORT}")));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn uptime_ms() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds: f64 = text.split(' ').next().unwrap_or_default().parse().map_err(io::Error::other)?;
    Ok((seconds * 1000.0) as u64)
}

fn power_off() -> io::Result<()> {
    // busybox: at once, without asking init. -no-reboot makes the lab's QEMU end at a reboot too, which also works
    // on machines without power management (microvm).
    let status = Command::new("reboot").arg("-f").status()?;
    Err(io::Error::other(format!("reboot failed: {status}")))
}
