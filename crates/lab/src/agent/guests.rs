//! Guests of the host machine: their QEMUs, consoles and ports.
use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crossbeam_channel::Sender;

use super::{
    Event,
    frame::{Decoder, Frame, PIECE},
    serve::Outbox,
};
use crate::machine::qemu::{self, Program, Qemu};

/// QEMU answers at once where it runs, unless the development machine is overloaded.
const QMP_LIMIT: Duration = Duration::from_secs(50);
/// A QEMU that starts loads dozens of libraries on emulated CPUs: seconds, but on a host machine that is starved itself
/// it took more than 30 s. The lab's own boot deadline ends the wait earlier if need be.
const START_LIMIT: Duration = Duration::from_secs(900);

/// The guests by index.
#[derive(Clone, Debug, Default)]
pub(super) struct Guests(Arc<Mutex<HashMap<usize, Guest>>>);

#[derive(Debug)]
struct Guest {
    qemu: Arc<Qemu>,
    qmp: Arc<Mutex<UnixStream>>,
    port: Sender<Vec<u8>>,
}

impl Guests {
    /// Starts a guest's QEMU.
    pub(super) fn start(&self, guest: usize, argv: &[String], huge_pages: u32, out: &Outbox) -> io::Result<()> {
        let party = u8::try_from(guest + 1).map_err(|_| io::Error::other("too many guests"))?;
        if huge_pages > 0 {
            reserve(huge_pages)?;
        }
        let (name, args) = argv.split_first().ok_or_else(|| io::Error::other("no QEMU given"))?;
        let (qemu, ports) = Qemu::start(&Program { argv: vec![name.into()] }, args.to_vec())?;
        let qemu = Arc::new(qemu);
        let (port, frames) = crossbeam_channel::unbounded::<Vec<u8>>();
        let mut to_guest = ports.agent.try_clone()?;
        thread::spawn(move || frames.iter().all(|bytes| to_guest.write_all(&bytes).is_ok()));
        let (mut from_guest, relay) = (ports.agent, out.clone());
        thread::spawn(move || {
            let mut decoder = Decoder::default();
            while let Ok(Some(frame)) = decoder.read(&mut from_guest) {
                relay.relay(&Frame { party, body: frame.body });
            }
        });
        qemu::qmp(&ports.qmp, &[r#"{"execute":"qmp_capabilities"}"#.into()], START_LIMIT)?;
        let entry = Guest { qemu: Arc::clone(&qemu), qmp: Arc::new(Mutex::new(ports.qmp)), port };
        self.0.lock().expect("no panic under it").insert(guest, entry);
        let (mut console, guests, out) = (ports.console, self.clone(), out.clone());
        thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while let Ok(n @ 1..) = console.read(&mut piece) {
                out.send(&Event::Console { guest, bytes: piece[..n].to_vec() });
            }
            // The console ends with QEMU.
            qemu.wait(Duration::from_secs(10));
            let how = qemu.ended().map_or("in an unknown way".to_owned(), |status| status.to_string());
            guests.0.lock().expect("no panic under it").remove(&guest);
            out.send(&Event::Gone { guest, how });
        });
        Ok(())
    }

    /// Kills a guest's QEMU; [`Event::Gone`] follows.
    pub(super) fn stop(&self, guest: usize) {
        if let Some(guest) = self.0.lock().expect("no panic under it").get(&guest) {
            guest.qemu.kill();
        }
    }

    /// Runs QMP commands.
    pub(super) fn qmp(&self, guest: usize, commands: &[String]) -> io::Result<String> {
        let qmp = self.0.lock().expect("no panic under it").get(&guest).map(|g| Arc::clone(&g.qmp));
        let qmp = qmp.ok_or_else(|| io::Error::other("this guest is not running"))?;
        let stream = qmp.lock().expect("no panic under it");
        qemu::qmp(&stream, commands, QMP_LIMIT)
    }

    /// Hands a frame on to its guest. A guest that is gone gets nothing: the lab hears of its end by itself.
    pub(super) fn forward(&self, frame: Frame) {
        let guest = usize::from(frame.party) - 1;
        if let Some(guest) = self.0.lock().expect("no panic under it").get(&guest) {
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
