//! The loaded BPF programs and what they gather.

use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::path::Path;

use entrain_bpf::{BtfNames, Error, Step, copy_of};
use entrain_system::CpuSet;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, RingBufferBuilder};

use super::interface::{Event, Key, Lost, Total};
use super::skeleton::{WatchSkel, WatchSkelBuilder};

/// What the programs must know before they are loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// The CPUs to watch.
    pub(crate) cpus: CpuSet,
    /// Threads that these CPUs are for; may be empty.
    pub(crate) owners: BTreeSet<u32>,
    /// Number of possible CPUs.
    pub(crate) possible: u32,
    /// Unbound work may run on the watched CPUs.
    pub(crate) unbound: bool,
    /// Address of the kernel's tick handler, 0 when it is unknown.
    pub(crate) tick_handler: u64,
}

/// Everything that is loaded into the kernel; nothing is pinned, so it goes with the process.
pub(crate) struct Programs {
    skel: WatchSkel<'static>,
    /// Held for their effect.
    _links: Vec<Link>,
    /// Tracepoints that this kernel does not have.
    pub(crate) skipped: Vec<String>,
}

impl Programs {
    /// Loads and attaches everything that the kernel has a tracepoint for, then starts counting.
    pub(crate) fn start(setup: &Setup) -> Result<Self, Error> {
        // The object lives as long as the process.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = WatchSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "watch"))?;
        let names = BtfNames::read(Path::new("/sys/kernel/btf"), &[]).unwrap_or_default();
        let mut skipped = Vec::new();
        for mut prog in open.open_object_mut().progs_mut() {
            let section = prog.section().to_string_lossy().into_owned();
            let tracepoint = section.rsplit('/').next().unwrap_or_default();
            if !names.has(&format!("btf_trace_{tracepoint}")) {
                prog.set_autoload(false);
                skipped.push(tracepoint.to_owned());
            }
        }
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the programs have read-only data");
        let words = rodata.cpus.len();
        for cpu in setup.cpus.iter() {
            rodata.cpus[cpu as usize / 64 % words] |= 1 << (cpu % 64);
        }
        rodata.nr_cpus = setup.possible;
        rodata.unbound = u32::from(setup.unbound);
        rodata.has_owners = u32::from(!setup.owners.is_empty());
        rodata.tick_handler = setup.tick_handler;
        let mut skel = open.load().map_err(Error::at(Step::Load, "watch"))?;
        for owner in &setup.owners {
            let result = skel.maps.owners.update(&owner.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY);
            result.map_err(Error::at(Step::Run, "owners"))?;
        }
        let mut links = Vec::new();
        for prog in skel.object().progs_mut().filter(|prog| prog.autoload()) {
            let name = prog.name().to_string_lossy().into_owned();
            links.push(prog.attach().map_err(Error::at(Step::Attach, &name))?);
        }
        // Attaching patches code on all CPUs; what that interrupted does not count.
        skel.maps.bss_data.as_deref_mut().expect("the programs have data").enabled = 1;
        Ok(Self { skel, _links: links, skipped })
    }

    /// Ends the counting, so that what ending the programs interrupts does not count.
    pub(crate) fn stop(&mut self) {
        self.skel.maps.bss_data.as_deref_mut().expect("the programs have data").enabled = 0;
    }

    /// All causes so far.
    pub(crate) fn totals(&self) -> HashMap<Key, Total> {
        let map = &self.skel.maps.totals;
        let read = |key: Vec<u8>| {
            let total = map.lookup(&key, MapFlags::ANY).ok()??;
            Some((bytemuck::try_pod_read_unaligned(&key).ok()?, bytemuck::try_pod_read_unaligned(&total).ok()?))
        };
        map.keys().filter_map(read).collect()
    }

    /// The interruptions since the last call, oldest first; what the programs could not keep is in [`Programs::lost`].
    pub(crate) fn events(&self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        {
            let mut builder = RingBufferBuilder::new();
            let take = |bytes: &[u8]| {
                events.extend(bytemuck::try_pod_read_unaligned::<Event>(bytes));
                0
            };
            builder.add(&self.skel.maps.events, take).map_err(Error::at(Step::Run, "events"))?;
            let ring = builder.build().map_err(Error::at(Step::Run, "events"))?;
            ring.consume().map_err(Error::at(Step::Run, "events"))?;
        }
        Ok(events)
    }

    /// What was lost so far.
    pub(crate) fn lost(&self) -> Lost {
        copy_of(&self.skel.maps.bss_data.as_deref().expect("the programs have data").lost)
    }

    /// Addresses of a sender's stack, innermost first; empty when it is gone.
    pub(crate) fn stack(&self, id: i32) -> Vec<u64> {
        let Ok(id) = u32::try_from(id) else { return Vec::new() };
        let found = self.skel.maps.stacks.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        let addresses = found.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned);
        addresses.take_while(|address| *address != 0).collect()
    }
}
