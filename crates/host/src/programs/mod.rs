//! The loaded BPF programs and maps.

#[cfg(feature = "fake")]
pub(crate) mod fake;
mod load;
mod threads;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use entrain_bpf::{ArrayView, Error, Features, Step};
use entrain_channel::hosting::{self, Kernel, Op};
use entrain_channel::page::feature;
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramInput, ProgramMut, ProgramType};

use crate::complexity::{self, Complexity};
use crate::figures::ProgramStatus;
use crate::interface::{LINK_CLOSE, LINK_PAIR, LINK_RELEASE, Pairing, SelftestArgs, from_bytes};
use crate::interface::{LinkArgs, Pcpu, TickArgs, Vcpu, Vm, Wait, WaitKey};
use crate::program_info;
use crate::skeleton::{observe, watch};
use crate::ticker::Ticker;

/// Everything of `bpf/observe.bpf.c` or `bpf/watch.bpf.c` that is loaded into the kernel. Nothing is pinned in a file
/// system: when the process ends, in whatever way, the kernel detaches the programs and frees the maps, and with them
/// every pin of guest memory.
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
    /// In the kernel: `observe.bpf.c`.
    Loaded(Box<observe::ObserveSkel<'static>>, Ticker),
    /// In a kernel that cannot hold a guest's page: `watch.bpf.c`, with the same tables, programs at the scheduler's
    /// tracepoints and variables.
    Watch(Box<watch::WatchSkel<'static>>, Ticker),
    /// In this process: the part of them that writes to pages, for the fuzz targets.
    #[cfg(feature = "fake")]
    Fake(fake::Fake),
}

/// The same expression of whichever skeleton is loaded.
macro_rules! either {
    ($kind:expr, $skel:ident => $value:expr) => {
        match $kind {
            Kind::Loaded($skel, _) => $value,
            Kind::Watch($skel, _) => $value,
            #[cfg(feature = "fake")]
            Kind::Fake(_) => unreachable!("only what the fleet calls is there"),
        }
    };
}

/// Where a vCPU and its pairing are found: its entry, and its thread.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) index: u32,
    /// What stands for the kernel in the fuzz targets finds pairings by it.
    #[cfg_attr(not(feature = "fake"), allow(dead_code))]
    pub(crate) tid: i32,
    pub(crate) pidfd: OwnedFd,
}

/// `LinkArgs::error`, as bpf/observe/calls.bpf.h has it.
const STALE: i32 = -116;

impl Programs {
    /// Loads everything that this kernel takes and attaches nothing. `pcpus` is the number of possible pCPUs, `extra` the
    /// features that the page announces beside those of observing.
    pub(crate) fn load(features: &Features, pcpus: u32, extra: u64) -> Result<Self, Error> {
        if features.task_uptr {
            let skel = load::page(features, pcpus, extra)?;
            let tables = [skel.maps.vcpus.as_fd(), skel.maps.vms.as_fd(), skel.maps.pcpus.as_fd()];
            let (vcpus, vms, table) = load::views(tables, pcpus)?;
            let levels = features.freq_scale.then_some((&skel.progs.levels, pcpus));
            let ticker = Ticker::new(Some(&skel.progs.tick), levels).map_err(load::io("tick"))?;
            let kernel = Kind::Loaded(Box::new(skel), ticker);
            return Ok(Self { has_wfx: features.kvm_wfx, links: Vec::new(), kernel, vcpus, vms, pcpus: table });
        }
        let skel = load::watch(features, pcpus)?;
        let tables = [skel.maps.vcpus.as_fd(), skel.maps.vms.as_fd(), skel.maps.pcpus.as_fd()];
        let (vcpus, vms, table) = load::views(tables, pcpus)?;
        let levels = features.freq_scale.then_some((&skel.progs.levels, pcpus));
        let ticker = Ticker::new(None::<&ProgramMut<'_>>, levels).map_err(load::io("levels"))?;
        let kernel = Kind::Watch(Box::new(skel), ticker);
        Ok(Self { has_wfx: false, links: Vec::new(), kernel, vcpus, vms, pcpus: table })
    }

    /// Whether guests can be paired with: the kernel can hold their pages.
    pub(crate) fn pairs(&self) -> bool {
        !matches!(self.kernel, Kind::Watch(..))
    }

    /// The skeleton with the pages; only what pairs asks for it.
    fn observe(&self) -> Result<&observe::ObserveSkel<'static>, Error> {
        match &self.kernel {
            Kind::Loaded(observe, _) => Ok(observe),
            _ => Err(load::io("observe")(std::io::ErrorKind::Unsupported.into())),
        }
    }

    /// The maps of bpf/channel.h, for the scheduler's programs to share. One that can't be copied is left out: the
    /// scheduler then knows less of its guests.
    pub(crate) fn channel_maps(&self) -> Vec<(&'static str, OwnedFd)> {
        let Ok(skel) = self.observe() else { return Vec::new() };
        let maps = &skel.maps;
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

    fn object(&self) -> &libbpf_rs::Object {
        either!(&self.kernel, skel => skel.object())
    }

    /// Starts watching: attaches all that was loaded for a tracepoint.
    pub(crate) fn attach(&mut self) -> Result<(), Error> {
        let at_tracepoints = |prog: &ProgramMut<'_>| prog.autoload() && prog.prog_type() == ProgramType::Tracing;
        let mut links = Vec::new();
        for prog in self.object().progs_mut().filter(at_tracepoints) {
            let name = prog.name().to_string_lossy().into_owned();
            links.push(prog.attach().map_err(Error::at(Step::Attach, &name))?);
        }
        self.links = links;
        Ok(())
    }

    /// The map of rare events.
    pub(crate) fn events(&self) -> Result<MapHandle, Error> {
        either!(&self.kernel, skel => MapHandle::try_from(&skel.maps.events)).map_err(Error::at(Step::Run, "events"))
    }

    /// Events that found no room since the programs were loaded.
    pub(crate) fn dropped_events(&self) -> u64 {
        either!(&self.kernel, skel => {
            // SAFETY: an aligned word of the mapped data, which BPF adds to atomically.
            let read = |data: &u64| unsafe { (&raw const *data).read_volatile() };
            skel.maps.bss_data.as_deref().map_or(0, |data| read(&data.dropped_events))
        })
    }

    /// Whether the kernel tells of vCPUs that spin.
    pub(crate) fn sees_spins(&self) -> bool {
        self.has_wfx
    }

    /// Tells the programs, and with the next heartbeat the guests, whether Entrain's scheduler has the host's tasks.
    pub(crate) fn tell_schedules(&mut self, schedules: bool) {
        let features = if schedules { feature::HOST_SCHED } else { 0 };
        #[cfg(feature = "fake")]
        if let Kind::Fake(_) = self.kernel {
            return;
        }
        either!(&mut self.kernel, skel => {
            if let Some(data) = skel.maps.bss_data.as_deref_mut() {
                // SAFETY: an aligned word of the mapped data that BPF only reads.
                unsafe { (&raw mut data.mode_features).write_volatile(features) };
            }
        });
    }

    /// The verifier's work for the observing programs.
    pub(crate) fn complexity(&self) -> Vec<Complexity> {
        complexity::of(self.object())
    }

    /// Whether to keep who ran while vCPUs waited.
    pub(crate) fn watch_waits(&mut self, on: bool) {
        #[cfg(feature = "fake")]
        if let Kind::Fake(_) = self.kernel {
            return;
        }
        either!(&mut self.kernel, skel => {
            if let Some(data) = skel.maps.bss_data.as_deref_mut() {
                // SAFETY: an aligned word of the mapped data that BPF only reads.
                unsafe { (&raw mut data.watch_waits).write_volatile(u32::from(on)) };
            }
        });
    }

    /// Who ran while vCPUs waited, since the first client asked; 8192 entries at most, the least used go first.
    pub(crate) fn waits(&self) -> Vec<(WaitKey, Wait)> {
        either!(&self.kernel, skel => {
            let map = &skel.maps.waits;
            let read = |key: Vec<u8>| {
                let wait = map.lookup(&key, MapFlags::ANY).ok()??;
                Some((from_bytes(&key)?, from_bytes(&wait)?))
            };
            map.keys().filter_map(read).collect()
        })
    }

    /// The kernel's figures of the programs.
    pub(crate) fn figures(&self) -> Vec<ProgramStatus> {
        program_info::programs(self.object())
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
            Kind::Loaded(_, ticker) | Kind::Watch(_, ticker) => ticker.clone(),
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
        let Ok(observe) = self.observe() else { return Ok(()) };
        let end = Instant::now() + time;
        let mut args = SelftestArgs { entries, loops: 20_000, ..SelftestArgs::default() };
        while Instant::now() < end {
            run(&observe.progs.selftest, "selftest", &mut args)?;
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
        let Ok(observe) = self.observe() else {
            return Err(std::io::Error::from(std::io::ErrorKind::Unsupported).into());
        };
        observe.maps.pairings.update(&place.pidfd.as_raw_fd().to_ne_bytes(), value, MapFlags::NO_EXIST)
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
        let Ok(observe) = self.observe() else { return Ok(hosting::Step::Nothing) };
        let op = match op {
            Op::Pair => LINK_PAIR,
            Op::Close => LINK_CLOSE,
            Op::Release => LINK_RELEASE,
        };
        let mut args = LinkArgs { index: place.index, op, expected, wanted, ..LinkArgs::default() };
        run(&observe.progs.link_step, "link_step", &mut args)?;
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
        let Ok(observe) = self.observe() else { return };
        // Fails only when there is none, or the thread has ended and taken it along.
        let _ = observe.maps.pairings.delete(&place.pidfd.as_raw_fd().to_ne_bytes());
    }

    /// BPF programs run inside RCU read sections, and this membarrier is the user's way to wait for those.
    fn grace_period(&self) {
        grace_period();
    }
}

/// Calls a program of kind syscall, which changes its arguments in place.
pub(crate) fn run<T: bytemuck::Pod>(prog: &ProgramMut<'_>, name: &str, args: &mut T) -> Result<(), Error> {
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
