//! Guests of the host machine: their QEMUs, consoles and ports.
use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::Sender;

use crate::{
    cgroups::{self, Scope},
    frame::{Decoder, Frame, PIECE},
    message::Event,
    outbox::Outbox,
    qemu::{Monitor, Ports, Program, Qemu},
};

/// QEMU answers at once where it runs, unless the development machine is overloaded.
const QMP_LIMIT: Duration = Duration::from_secs(50);
/// A QEMU that starts loads dozens of libraries on emulated CPUs: seconds, but on a host machine that is starved itself
/// it took more than 30 s. The lab's own boot deadline ends the wait earlier if need be.
const START_LIMIT: Duration = Duration::from_secs(900);

/// The guests by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests {
    running: Arc<Mutex<HashMap<usize, Guest>>>,
    /// Second QEMUs, into which guests are migrated.
    targets: Arc<Mutex<HashMap<usize, Started>>>,
    /// QEMUs started so far: two of one guest run at the same time while it is migrated.
    started: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Guest {
    qemu: Arc<Qemu>,
    qmp: Arc<Mutex<Monitor>>,
    port: Sender<Vec<u8>>,
    /// Hands frames on until the port closes; what is left then is the beginning of a frame.
    reader: JoinHandle<Decoder>,
    /// Another QEMU goes on with the guest: the end of this one is not the guest's.
    moved: Arc<AtomicBool>,
}

/// A QEMU whose monitor answers, and which nobody listens to yet.
#[derive(Debug)]
struct Started {
    qemu: Arc<Qemu>,
    ports: Ports,
    /// Its cgroups. They come after `qemu`: a cgroup can be removed once nothing is in it.
    scope: Option<Scope>,
}

impl Started {
    fn new(argv: &[String], scope: Option<&str>, number: u32) -> io::Result<Self> {
        let (name, args) = argv.split_first().ok_or_else(|| io::Error::other("no QEMU given"))?;
        let (qemu, ports) = Qemu::start(&Program { argv: vec![name.into()], ..Program::default() }, args.to_vec())?;
        let pid = qemu.pid().as_raw_nonzero().get();
        let scope = scope.map(|name| Scope::new(Path::new(cgroups::ROOT), number, name, pid)).transpose()?;
        let mut this = Self { qemu: Arc::new(qemu), ports, scope };
        // What answers has its vCPUs' threads.
        let commands = ["qmp_capabilities", "query-cpus-fast"].map(|name| format!(r#"{{"execute":"{name}"}}"#));
        let vcpus = this.ports.qmp.run(&commands, START_LIMIT)?;
        this.scope.as_ref().map_or(Ok(()), |scope| scope.take_vcpus(&vcpus))?;
        Ok(this)
    }
}

impl Guests {
    /// Starts a guest's QEMU.
    pub(crate) fn start(
        &self,
        guest: usize,
        argv: &[String],
        huge_pages: u32,
        scope: Option<&str>,
        out: &Outbox,
    ) -> io::Result<()> {
        if huge_pages > 0 {
            reserve(huge_pages)?;
        }
        self.listen(guest, self.begin(argv, scope)?, Decoder::default(), out)
    }

    fn begin(&self, argv: &[String], scope: Option<&str>) -> io::Result<Started> {
        // libvirt counts its domains from 1, too.
        Started::new(argv, scope, self.started.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Connects a guest with its QEMU; `decoder` has the beginning of the next frame.
    fn listen(&self, guest: usize, started: Started, mut decoder: Decoder, out: &Outbox) -> io::Result<()> {
        let party = u8::try_from(guest + 1).map_err(|_| io::Error::other("too many guests"))?;
        let Started { qemu, ports, scope } = started;
        let (port, frames) = crossbeam_channel::unbounded::<Vec<u8>>();
        let mut to_guest = ports.agent.try_clone()?;
        thread::spawn(move || frames.iter().all(|bytes| to_guest.write_all(&bytes).is_ok()));
        let (mut from_guest, relay) = (ports.agent, out.clone());
        let reader = thread::spawn(move || {
            while let Ok(Some(frame)) = decoder.read(&mut from_guest) {
                relay.relay(&Frame { party, body: frame.body });
            }
            decoder
        });
        let moved = Arc::new(AtomicBool::new(false));
        let entry = Guest {
            qemu: Arc::clone(&qemu),
            qmp: Arc::new(Mutex::new(ports.qmp)),
            port,
            reader,
            moved: Arc::clone(&moved),
        };
        self.running.lock().expect("no panic under it").insert(guest, entry);
        let (mut console, guests, out) = (ports.console, self.clone(), out.clone());
        thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while let Ok(n @ 1..) = console.read(&mut piece) {
                out.send(&Event::Console { guest, bytes: piece[..n].to_vec() });
            }
            // The console ends with QEMU.
            qemu.wait(Duration::from_secs(10));
            drop(scope);
            if moved.load(Ordering::Acquire) {
                return;
            }
            let how = qemu.ended().map_or("in an unknown way".to_owned(), |status| status.to_string());
            guests.running.lock().expect("no panic under it").remove(&guest);
            out.send(&Event::Gone { guest, how });
        });
        Ok(())
    }

    /// Starts a second QEMU for a guest and gives it commands. Nobody listens to its ports until the migration has ended:
    /// what the guest says meanwhile waits in them.
    pub(crate) fn start_target(
        &self,
        guest: usize,
        argv: &[String],
        commands: &[String],
        scope: Option<&str>,
    ) -> io::Result<()> {
        let mut target = self.begin(argv, scope)?;
        target.ports.qmp.run(commands, QMP_LIMIT)?;
        self.targets.lock().expect("no panic under it").insert(guest, target);
        Ok(())
    }

    /// Keeps a guest's second QEMU if the guest has `moved` into it, else its first; kills the other one.
    pub(crate) fn end_migration(&self, guest: usize, moved: bool, out: &Outbox) -> io::Result<()> {
        let target = self.targets.lock().expect("no panic under it").remove(&guest);
        let target = target.ok_or_else(|| io::Error::other("no migration of this guest was begun"))?;
        if !moved {
            // Dropping it kills it.
            return Ok(());
        }
        let source = self.running.lock().expect("no panic under it").remove(&guest);
        let source = source.ok_or_else(|| io::Error::other("this guest is not running"))?;
        source.moved.store(true, Ordering::Release);
        source.qemu.kill();
        source.qemu.wait(Duration::from_secs(10));
        let decoder = source.reader.join().map_err(|_| io::Error::other("the reader of the guest's port failed"))?;
        self.listen(guest, target, decoder, out)
    }

    /// Kills a guest's QEMU; [`Event::Gone`] follows.
    pub(crate) fn stop(&self, guest: usize) {
        if let Some(guest) = self.running.lock().expect("no panic under it").get(&guest) {
            guest.qemu.kill();
        }
    }

    /// Runs QMP commands.
    pub(crate) fn qmp(&self, guest: usize, commands: &[String]) -> io::Result<String> {
        let qmp = self.running.lock().expect("no panic under it").get(&guest).map(|g| Arc::clone(&g.qmp));
        let qmp = qmp.ok_or_else(|| io::Error::other("this guest is not running"))?;
        qmp.lock().expect("no panic under it").run(commands, QMP_LIMIT)
    }

    /// Hands a frame on to its guest. A guest that is gone gets nothing: the lab hears of its end by itself.
    pub(crate) fn forward(&self, frame: Frame) {
        let guest = usize::from(frame.party) - 1;
        if let Some(guest) = self.running.lock().expect("no panic under it").get(&guest) {
            let _ = guest.port.send(Frame { party: 0, ..frame }.encode());
        }
    }
}

/// Adds to the kernel's pool of 2 MiB pages and checks that it got them.
fn reserve(pages: u32) -> io::Result<()> {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let have = || -> io::Result<u32> { fs::read_to_string(path)?.trim().parse().map_err(io::Error::other) };
    let want = have()? + pages;
    fs::write(path, want.to_string())?;
    let got = have()?;
    if got < want {
        return Err(io::Error::other(format!("only {got} of {want} huge pages of 2 MiB could be had")));
    }
    Ok(())
}
