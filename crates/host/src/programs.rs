//! The loaded BPF programs and maps.

#[cfg(feature = "fake")]
pub(crate) mod fake;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use entrain_bpf::{ArrayView, Error, Features, Step};
use entrain_channel::hosting::{self, Kernel, Op};
use entrain_channel::page::feature;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject, ProgramInput, ProgramMut};

use crate::complexity::{self, Complexity};
use crate::figures::ProgramStatus;
use crate::interface::{HOST_VCPUS, HOST_VMS, LinkArgs, Pcpu, TickArgs, TrackArgs, Vcpu, Vm, Wait, WaitKey};
use crate::interface::{LINK_CLOSE, LINK_PAIR, LINK_RELEASE, Pairing, SelftestArgs, from_bytes};
use crate::program_info;
use crate::skeleton::observe;
use crate::ticker::Ticker;

/// Everything of `bpf/observe.bpf.c` that is loaded into the kernel. Nothing is pinned in a file system: when the process ends, in whatever
/// way, the kernel detaches the programs and frees the maps, and with them every pin of guest memory.
pub(crate) struct Programs {
    kernel: Kind,
    links: Vec<Link>,
    /// The tracepoint of arm64 that tells of vCPUs which wait.
    has_wfx: bool,
    /// Entries of vCPUs.
    pub(crate) vcpus: ArrayView<Vcpu>,
    /// Entries of VMs.
    pub(crate) vms: ArrayView<Vm>,
    /// Entries of pCPUs.
    pub(crate) pcpus: ArrayView<Pcpu>,
}

/// Where they run.
enum Kind {
    /// In the kernel.
    Loaded(Box<observe::ObserveSkel<'static>>, Ticker),
    /// In this process: the part of them that writes to pages, for the fuzz targets.
    #[cfg(feature = "fake")]
    Fake(fake::Fake),
}

/// Memory for an open object. It lives as long as the process, as the object does.
fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

/// Where a vCPU and its pairing are found: its entry, and its thread.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) index: u32,
    pub(crate) tid: i32,
    pub(crate) pidfd: OwnedFd,
}

/// `LinkArgs::error`, as bpf/observe/calls.bpf.h has it.
const STALE: i32 = -116;

impl Programs {
    /// Loads everything and attaches nothing. `pcpus` is the number of possible pCPUs, `extra` the
    /// features that the page announces beside those of observing.
    pub(crate) fn load(features: &Features, pcpus: u32, extra: u64) -> Result<Self, Error> {
        let mut open =
            observe::ObserveSkelBuilder::default().open(storage()).map_err(Error::at(Step::Open, "observe"))?;
        open.progs.observe_hypercall.set_autoload(features.kvm_hypercall);
        open.progs.observe_wfx.set_autoload(features.kvm_wfx);
        open.progs.levels.set_autoload(features.freq_scale);
        open.maps.pcpus.set_max_entries(pcpus).map_err(Error::at(Step::Open, "observe"))?;
        open.maps.domains.set_max_entries(pcpus).map_err(Error::at(Step::Open, "observe"))?;
        open.maps.rodata_data.as_deref_mut().expect("observe has read-only data").extra_features = extra;
        let observe = open.load().map_err(Error::at(Step::Load, "observe"))?;

        let view = |error: rustix::io::Errno| Error {
            step: Step::Run,
            name: "observe".into(),
            source: libbpf_rs::Error::from(std::io::Error::from(error)),
        };
        // SAFETY: the types are the skeleton's of the values of these maps, which are plain numbers.
        let (vcpus, vms, pcpus) = unsafe {
            (
                ArrayView::new(observe.maps.vcpus.as_fd(), HOST_VCPUS).map_err(view)?,
                ArrayView::new(observe.maps.vms.as_fd(), HOST_VMS).map_err(view)?,
                ArrayView::new(observe.maps.pcpus.as_fd(), pcpus as usize).map_err(view)?,
            )
        };
        let levels = features.freq_scale.then(|| (&observe.progs.levels, pcpus.entries() as u32));
        let ticker = Ticker::new(&observe.progs.tick, levels);
        let ticker = ticker.map_err(|error| Error::at(Step::Run, "tick")(libbpf_rs::Error::from(error)))?;
        let kernel = Kind::Loaded(Box::new(observe), ticker);
        Ok(Self { has_wfx: features.kvm_wfx, links: Vec::new(), kernel, vcpus, vms, pcpus })
    }

    fn observe(&self) -> &observe::ObserveSkel<'static> {
        match &self.kernel {
            Kind::Loaded(observe, _) => observe,
            #[cfg(feature = "fake")]
            Kind::Fake(_) => unreachable!("only what the fleet calls is there"),
        }
    }

    fn data(&mut self) -> Option<&mut observe::types::bss> {
        match &mut self.kernel {
            Kind::Loaded(observe, _) => observe.maps.bss_data.as_deref_mut(),
            #[cfg(feature = "fake")]
            Kind::Fake(_) => None,
        }
    }

    /// The maps of bpf/channel.h, for the scheduler's programs to share. One that can't be copied is left out: the
    /// scheduler then knows less of its guests.
    pub(crate) fn channel_maps(&self) -> Vec<(&'static str, OwnedFd)> {
        let maps = &self.observe().maps;
        [
            ("vcpu_refs", maps.vcpu_refs.as_fd()),
            ("pairings", maps.pairings.as_fd()),
            ("vcpus", maps.vcpus.as_fd()),
            ("vms", maps.vms.as_fd()),
            ("vcpu_threads", maps.vcpu_threads.as_fd()),
        ]
        .into_iter()
        .filter_map(|(name, fd)| Some((name, fd.try_clone_to_owned().ok()?)))
        .collect()
    }

    /// Starts watching.
    pub(crate) fn attach(&mut self, features: &Features) -> Result<(), Error> {
        let Kind::Loaded(observe, _) = &self.kernel else { return Ok(()) };
        let progs = &observe.progs;
        let mut wanted: Vec<(&str, &ProgramMut<'_>)> = vec![
            ("observe_switch", &progs.observe_switch),
            ("observe_wakeup", &progs.observe_wakeup),
            ("observe_exit", &progs.observe_exit),
        ];
        if features.kvm_hypercall {
            wanted.push(("observe_hypercall", &progs.observe_hypercall));
        }
        if features.kvm_wfx {
            wanted.push(("observe_wfx", &progs.observe_wfx));
        }
        for (name, prog) in wanted {
            self.links.push(prog.attach().map_err(Error::at(Step::Attach, name))?);
        }
        Ok(())
    }

    /// The map of rare events.
    pub(crate) fn events(&self) -> Result<MapHandle, Error> {
        MapHandle::try_from(&self.observe().maps.events).map_err(Error::at(Step::Run, "events"))
    }

    /// Events that found no room since the programs were loaded.
    pub(crate) fn dropped_events(&self) -> u64 {
        // SAFETY: an aligned word of the mapped data, which BPF adds to atomically.
        self.observe()
            .maps
            .bss_data
            .as_deref()
            .map_or(0, |data| unsafe { (&raw const data.dropped_events).read_volatile() })
    }

    /// Whether the kernel tells of vCPUs that spin.
    pub(crate) fn sees_spins(&self) -> bool {
        self.has_wfx
    }

    /// Tells the programs, and with the next heartbeat the guests, whether Entrain's scheduler has the host's tasks.
    pub(crate) fn tell_schedules(&mut self, schedules: bool) {
        let features = if schedules { feature::HOST_SCHED } else { 0 };
        if let Some(data) = self.data() {
            // SAFETY: an aligned word of the mapped data that BPF only reads.
            unsafe { (&raw mut data.mode_features).write_volatile(features) };
        }
    }

    /// The verifier's work for the observing programs.
    pub(crate) fn complexity(&self) -> Vec<Complexity> {
        complexity::of(self.observe().object())
    }

    /// Whether to keep who ran while vCPUs waited.
    pub(crate) fn watch_waits(&mut self, on: bool) {
        if let Some(data) = self.data() {
            // SAFETY: an aligned word of the mapped data that BPF only reads.
            unsafe { (&raw mut data.watch_waits).write_volatile(u32::from(on)) };
        }
    }

    /// Who ran while vCPUs waited, since the first client asked; 8192 entries at most, the least used go first.
    pub(crate) fn waits(&self) -> Vec<(WaitKey, Wait)> {
        let map = &self.observe().maps.waits;
        let read = |key: Vec<u8>| {
            let wait = map.lookup(&key, MapFlags::ANY).ok()??;
            Some((from_bytes(&key)?, from_bytes(&wait)?))
        };
        map.keys().filter_map(read).collect()
    }

    /// The kernel's figures of the programs.
    pub(crate) fn figures(&self) -> Vec<ProgramStatus> {
        program_info::programs(self.observe().object())
    }

    /// Watches the thread of entry `index`, which is filled. False: the thread has ended meanwhile.
    pub(crate) fn track(&self, index: u32, tid: i32) -> Result<bool, Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            return Ok(fake.track(&self.vcpus, index, tid));
        }
        let mut args = TrackArgs { index, tid, error: 0 };
        run(&self.observe().progs.track, "track", &mut args)?;
        Ok(args.error == 0)
    }

    /// The entry that BPF finds from a thread; `None` when it finds none.
    pub(crate) fn index_of(&self, pidfd: i32) -> Option<u32> {
        from_bytes(&self.observe().maps.vcpu_refs.lookup(&pidfd.to_ne_bytes(), MapFlags::ANY).ok()??)
    }

    /// Forgets entry `index`, its thread and its pairing.
    pub(crate) fn untrack(&self, index: u32) -> Result<(), Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            fake.untrack(&self.vcpus, index);
            return Ok(());
        }
        run(&self.observe().progs.untrack, "untrack", &mut TrackArgs { index, tid: 0, error: 0 })
    }

    /// Checks pairings, reads guests, publishes what changes slowly; `entries` is the highest used index + 1.
    pub(crate) fn tick(&self, entries: u32) -> Result<TickArgs, Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            return Ok(fake.tick(&self.vcpus, entries));
        }
        let ticked = self.ticker().tick(entries);
        ticked.map_err(|error| Error::at(Step::Run, "tick")(libbpf_rs::Error::from(error)))
    }

    /// The tick alone, for another thread.
    pub(crate) fn ticker(&self) -> Ticker {
        match &self.kernel {
            Kind::Loaded(_, ticker) => ticker.clone(),
            #[cfg(feature = "fake")]
            Kind::Fake(_) => unreachable!("only what the fleet calls is there"),
        }
    }

    /// The part of the tick that is about pages, of the vCPUs alone that speak for their guests.
    pub(crate) fn tick_speakers(&self, entries: u32) -> Result<(), Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            fake.tick(&self.vcpus, entries);
            return Ok(());
        }
        let done = self.ticker().speakers(entries).map(drop);
        done.map_err(|error| Error::at(Step::Run, "tick")(libbpf_rs::Error::from(error)))
    }

    /// The self-test of the channel: answers guests that hammer their pages, for so long. Never in normal service.
    pub(crate) fn selftest(&self, entries: u32, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        let mut args = SelftestArgs { entries, loops: 20_000, ..SelftestArgs::default() };
        while Instant::now() < end {
            run(&self.observe().progs.selftest, "selftest", &mut args)?;
            if args.added == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Attaches a pairing to a vCPU's thread. Its pointers must be valid now; the kernel pins what they point to.
    pub(crate) fn attach_pairing(&self, place: &Place, pairing: &Pairing) -> Result<(), libbpf_rs::Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            return fake.attach(place, pairing).map_err(libbpf_rs::Error::from);
        }
        // SAFETY: the skeleton's type has fields where C pads, so every byte of it is set; the kernel only reads them.
        let value =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(pairing).cast::<u8>(), size_of::<Pairing>()) };
        self.observe().maps.pairings.update(&place.pidfd.as_raw_fd().to_ne_bytes(), value, MapFlags::NO_EXIST)
    }
}

impl Kernel for Programs {
    type Place = Place;
    type Error = Error;

    fn step(&self, place: &Place, op: Op, expected: u64, wanted: u64) -> Result<hosting::Step, Error> {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            return Ok(fake.step(place, op, expected, wanted));
        }
        let op = match op {
            Op::Pair => LINK_PAIR,
            Op::Close => LINK_CLOSE,
            Op::Release => LINK_RELEASE,
        };
        let mut args = LinkArgs { index: place.index, op, expected, wanted, ..LinkArgs::default() };
        run(&self.observe().progs.link_step, "link_step", &mut args)?;
        Ok(match args.error {
            0 => hosting::Step::Was(args.was),
            STALE => hosting::Step::Stale,
            _ => hosting::Step::Nothing,
        })
    }

    fn detach(&self, place: &Place) {
        #[cfg(feature = "fake")]
        if let Kind::Fake(fake) = &self.kernel {
            return fake.detach(place);
        }
        // Fails only when there is none, or the thread has ended and taken it along.
        let _ = self.observe().maps.pairings.delete(&place.pidfd.as_raw_fd().to_ne_bytes());
    }

    /// BPF programs run inside RCU read sections, and this membarrier is the user's way to wait for those.
    fn grace_period(&self) {
        grace_period();
    }
}

fn run<T: bytemuck::Pod>(prog: &ProgramMut<'_>, name: &str, args: &mut T) -> Result<(), Error> {
    let input = ProgramInput { context_in: Some(bytemuck::bytes_of_mut(args)), ..ProgramInput::default() };
    prog.test_run(input).map(drop).map_err(Error::at(Step::Run, name))
}

fn grace_period() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // Not available with nohz_full CPUs; an RCU grace period ends within this time on any working kernel.
        std::thread::sleep(Duration::from_millis(50));
    }
}
