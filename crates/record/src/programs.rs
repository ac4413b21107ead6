//! The loaded BPF programs.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use entrain_bpf::{Error, Step, copy_of};
use entrain_host::finder::DaemonTable;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, RingBufferBuilder};

use crate::event::{EVENT_BYTES, Event};
use crate::file::Name;
use crate::skeleton::types::{record_kind, record_name, record_target};
use crate::skeleton::{RecordSkel, RecordSkelBuilder};

/// What came out of the ring buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// In the order in which they were made, which is nearly that of their times.
    pub(crate) events: Vec<Event>,
    /// Threads that were met.
    pub(crate) names: Vec<Name>,
}

/// Everything that is loaded into the kernel; nothing is pinned, so it goes with the process.
pub(crate) struct Programs {
    skel: RecordSkel<'static>,
    links: Vec<Link>,
    /// What this kernel cannot tell, in words of [`crate::file::Host::unseen`].
    pub(crate) unseen: Vec<String>,
}

/// Programs that a kernel may refuse, and what is not seen then.
const OPTIONAL: [(&str, &str); 3] =
    [("record_halt", "halts by polling"), ("record_spin", "spins"), ("record_yield", "yields")];

impl Programs {
    /// Loads the programs; where a daemon runs, they read its table. What the kernel does not have is left out.
    pub(crate) fn load(daemon: Option<&DaemonTable>) -> Result<Self, Error> {
        let all = match Self::try_load(daemon, &[]) {
            Ok(programs) => return Ok(programs),
            Err(error) => error,
        };
        // Functions to follow are looked up at load, and one that is not there fails the whole object: each alone.
        let names = OPTIONAL.map(|(name, _)| name);
        let alone = |name: &&str| {
            let others: Vec<&str> = names.iter().copied().filter(|other| other != name).collect();
            Self::try_load(daemon, &others).is_err()
        };
        let refused: Vec<&str> = names.iter().copied().filter(alone).collect();
        if refused.is_empty() {
            return Err(all);
        }
        tracing::debug!("loading again without {refused:?}: {all}");
        Self::try_load(daemon, &refused)
    }

    /// Loads what records every switch of a guest's own tasks.
    pub(crate) fn load_guest() -> Result<Self, Error> {
        // The object lives as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RecordSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "record"))?;
        for mut prog in open.open_object_mut().progs_mut() {
            let wanted = prog.name() == "record_switch";
            prog.set_autoload(wanted);
        }
        open.maps.rodata_data.as_deref_mut().expect("it has constants").all_tasks = true;
        open.maps.vcpus.set_max_entries(1).map_err(Error::at(Step::Open, "record"))?;
        let skel = open.load().map_err(Error::at(Step::Load, "record"))?;
        Ok(Self { skel, links: Vec::new(), unseen: Vec::new() })
    }

    fn try_load(daemon: Option<&DaemonTable>, without: &[&str]) -> Result<Self, Error> {
        // The object lives as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RecordSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "record"))?;
        for mut prog in open.open_object_mut().progs_mut() {
            if without.iter().any(|name| prog.name() == *name) {
                prog.set_autoload(false);
            }
        }
        match daemon {
            Some(table) => open.maps.vcpus.reuse_fd(table.map().as_fd()),
            None => open.maps.vcpus.set_max_entries(1),
        }
        .map_err(Error::at(Step::Open, "record"))?;
        let skel = open.load().map_err(Error::at(Step::Load, "record"))?;
        let unseen = OPTIONAL.iter().filter(|(name, _)| without.contains(name)).map(|(_, what)| (*what).to_owned());
        Ok(Self { skel, links: Vec::new(), unseen: unseen.collect() })
    }

    /// Begins to record.
    pub(crate) fn attach(&mut self) -> Result<(), Error> {
        for prog in self.skel.object().progs_mut().filter(|prog| prog.autoload()) {
            let name = prog.name().to_string_lossy().into_owned();
            match (prog.attach(), OPTIONAL.iter().find(|(optional, _)| *optional == name)) {
                (Ok(link), _) => self.links.push(link),
                (Err(error), Some((_, what))) => {
                    tracing::debug!("{name}: {error}");
                    self.unseen.push((*what).to_owned());
                }
                (Err(error), None) => return Err(Error::at(Step::Attach, &name)(error)),
            }
        }
        Ok(())
    }

    /// Ends the recording; what is in the ring buffer stays.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }

    /// Follows a vCPU thread. `entry` is its place in the daemon's table. False: the table is full.
    pub(crate) fn follow(&self, tid: i32, kvm_vcpu: u64, entry: Option<u32>) -> bool {
        let target = record_target { kvm_vcpu, entry: entry.map_or(0, |entry| entry + 1), ..record_target::default() };
        self.skel.maps.targets.update(&tid.to_ne_bytes(), bytemuck::bytes_of(&target), MapFlags::ANY).is_ok()
    }

    /// Forgets a thread that has ended.
    pub(crate) fn forget(&self, tid: i32) {
        // It may never have been followed.
        let _ = self.skel.maps.targets.delete(&tid.to_ne_bytes());
    }

    /// Empties the ring buffer.
    pub(crate) fn drain(&self) -> Result<Batch, Error> {
        let mut batch = Batch::default();
        {
            let mut builder = RingBufferBuilder::new();
            let take = |bytes: &[u8]| {
                // Events and names are of one size, with the kind at the same place.
                if let Some(bytes) = bytes.first_chunk::<EVENT_BYTES>() {
                    let told: record_name = bytemuck::pod_read_unaligned(bytes);
                    if told.kind == record_kind::RECORD_NAME {
                        batch.names.push(name(&told))
                    } else {
                        batch.events.extend(Event::from_bytes(bytes))
                    }
                }
                0
            };
            builder.add(&self.skel.maps.events, take).map_err(Error::at(Step::Run, "events"))?;
            let ring = builder.build().map_err(Error::at(Step::Run, "events"))?;
            ring.consume().map_err(Error::at(Step::Run, "events"))?;
        }
        Ok(batch)
    }

    /// Events that found no room in the ring buffer.
    pub(crate) fn dropped(&self) -> u64 {
        self.skel.maps.bss_data.as_deref().map_or(0, |data| copy_of(&data.dropped))
    }
}

fn name(told: &record_name) -> Name {
    let comm = told.comm.split(|byte| *byte == 0).next().unwrap_or_default();
    // Threads choose their names; terminals and pages shall not suffer.
    let comm = String::from_utf8_lossy(comm).chars().filter(|c| entrain_system::is_plain(*c)).collect();
    Name(told.tid, told.tgid as u32, comm)
}
