//! vcpud without sched_ext: `entrain guest --mode vcpud`. The controller of `guest_vcpud.h` decides how many CPUs are
//! kept, by the host's entitlement or by steal time; a cpuset partition or hotplug takes the others out of use.

pub mod backend;
mod priority;
pub mod readings;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use entrain_channel::page::{MAX_VCPUS, Page};
use entrain_channel::word::{Seed, TIME_SHIFT};
use entrain_policy::guest;
use entrain_system::Root;

use crate::agent::Companion;
use crate::error::{GuestError, Result};
use crate::pages::{Pages, paired_seed};
use crate::system::System;
use backend::{Backend, Parking, parkable};
use readings::{CpuTime, Meter};

/// Between looks at the host's words while all CPUs in use have work: a guest is to have its CPUs back within 10 ms.
const STEP: Duration = Duration::from_millis(4);
/// The most between looks where CPUs in use have nothing to do: neither more nor fewer of them would matter. Each look
/// in vain doubles the time until the next, so that an idle guest is woken ten times a second and not 250 times.
const REST: Duration = Duration::from_millis(100);
/// Between looks at /proc/stat while the host says nothing: its unit is 10 ms, so that less says little.
const STEAL_STEP: Duration = Duration::from_millis(100);
/// Between walks over all threads for pinned ones.
const PINNED_STEP: Duration = Duration::from_secs(1);

/// The controller in a thread of its own, beside the registration.
pub struct Vcpud {
    root: Root,
    system: System,
    backend: Option<Backend>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Vcpud {
    /// For this machine.
    pub fn new(system: &System, backend: Option<Backend>) -> Vcpud {
        Vcpud {
            root: Root::live(),
            system: system.clone(),
            backend,
            end: Arc::new(AtomicBool::new(false)),
            thread: None,
        }
    }

    fn join(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(GuestError::SelfCheck("the controller panicked".into())))
    }
}

impl Companion for Vcpud {
    fn start(&mut self, _pages: &Pages) -> Result<()> {
        let bpffs = self.system.bpffs();
        let parking = Parking::new(&self.root, &self.system.run_folder()?, self.backend)?;
        let cpus = self.system.online_cpus()?;
        tracing::info!("parking by {:?} among {} CPUs", parking.backend(), cpus.len());
        let (root, end) = (self.root.clone(), self.end.clone());
        self.thread = Some(std::thread::spawn(move || {
            let pages = Pages::open(&bpffs, true)?.ok_or(GuestError::NothingRegistered)?;
            let mut controller = Controller::new(root, parking, cpus);
            let mut heard = guest::Heartbeat::default();
            if let Err(error) = priority::raise() {
                tracing::warn!("the controller waits behind the load that it makes room for: {error}");
            }
            while !end.load(Ordering::Relaxed) {
                let host = Host::read(&pages, &controller, &mut heard);
                let told = controller.wants;
                controller.step(&host)?;
                // A parked guest runs on few vCPUs; the host learns from its word that it could use more.
                if controller.wants != told {
                    say_wants(&pages, controller.wants);
                }
                std::thread::sleep(controller.pause);
            }
            say_wants(&pages, 0);
            Ok(())
        }));
        Ok(())
    }

    fn beat(&mut self, _pages: &Pages) -> Result<bool> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.join().map(|()| true);
        }
        Ok(false)
    }

    fn stop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Err(error) = self.join() {
            tracing::error!("{error}");
        }
    }
}

/// Tells the host how many vCPUs this guest could use now.
fn say_wants(pages: &Pages, wants: u32) {
    pages.iter().for_each(|page| page.guest.wants.store(u64::from(wants), Ordering::Release));
}

/// What the host says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Host {
    /// For this guest, in 1/1024 pCPU, or nothing.
    entitlement: Option<u64>,
    /// CPUs not in use that it would run at once.
    room: u32,
    /// What it has withheld since pairing, ns, of each of the controller's CPUs.
    steal: Vec<u64>,
}

impl Host {
    fn read(pages: &Pages, controller: &Controller, heard: &mut guest::Heartbeat) -> Host {
        let Some(first) = Words::of(pages, 0) else { return Host::default() };
        let now = controller.started.elapsed().as_nanos() as u64 + 1;
        if !guest::host_alive(heard, first.read(&first.page.host_slow.heartbeat), now) {
            return Host::default();
        }
        let (slow, fast) = (&first.page.host_slow, |cpu: &u32| Words::of(pages, *cpu));
        let features = first.read(&slow.features);
        let instant = |cpu: &&u32| fast(cpu).is_some_and(|words| words.are_instant(features));
        let steal = |cpu: &u32| fast(cpu).map_or(0, |words| words.read(&words.page.host_fast.steal) << TIME_SHIFT);
        Host {
            entitlement: guest::entitlement(features, first.read(&slow.entitlement), MAX_VCPUS as u32),
            room: controller.parking.parked().iter().filter(instant).count() as u32,
            steal: controller.cpus.iter().map(steal).collect(),
        }
    }
}

/// The words of a page that is paired.
struct Words<'a> {
    page: &'a Page,
    seed: Seed,
}

impl<'a> Words<'a> {
    fn of(pages: &'a Pages, cpu: u32) -> Option<Self> {
        let page = Some(cpu as usize).filter(|cpu| *cpu < pages.count()).map(|cpu| pages.page(cpu))?;
        Some(Self { page, seed: paired_seed(page)? })
    }

    fn read(&self, word: &AtomicU64) -> u64 {
        self.seed.unpack(word.load(Ordering::Acquire))
    }

    /// Whether the host would run this vCPU at once.
    fn are_instant(&self, features: u64) -> bool {
        let fast = &self.page.host_fast;
        guest::vcpu_view(features, self.read(&fast.state), self.read(&fast.instant)).instant != 0
    }
}

/// Reads, decides, parks.
struct Controller {
    root: Root,
    parking: Parking,
    /// CPUs that were online at the start, in the order in which they are kept.
    cpus: Vec<u32>,
    parkable: BTreeSet<u32>,
    vcpud: guest::Vcpud,
    /// vCPUs that could be used at the last step.
    wants: u32,
    /// Until the next step.
    pause: Duration,
    started: Instant,
    meter: Meter,
    times_at: Option<Instant>,
    /// The host's account of steal time at the last step, and when that was.
    steal: Vec<u64>,
    steal_at: Instant,
    pinned: BTreeSet<u32>,
    pinned_at: Option<Instant>,
}

impl Controller {
    fn new(root: Root, parking: Parking, cpus: Vec<u32>) -> Controller {
        let parkable = parkable(&root, parking.backend(), &cpus);
        Controller {
            root,
            parking,
            cpus,
            parkable,
            vcpud: guest::Vcpud::default(),
            wants: 0,
            pause: STEP,
            started: Instant::now(),
            meter: Meter::default(),
            times_at: None,
            steal: Vec::new(),
            steal_at: Instant::now(),
            pinned: BTreeSet::new(),
            pinned_at: None,
        }
    }

    fn step(&mut self, host: &Host) -> Result<()> {
        let now = Instant::now();
        let room = host.entitlement.is_some_and(|room| room >= 1024 * self.cpus.len() as u64);
        let nothing_parked = room && self.parking.parked().is_empty();
        if !nothing_parked && self.pinned_at.is_none_or(|at| now - at >= PINNED_STEP) {
            // Read while everything is in use or not: a partition does not change what a thread asked for.
            self.pinned = readings::pinned_cpus(&self.root);
            self.pinned_at = Some(now);
        }
        let spent = if host.entitlement.is_some() {
            self.spent(&host.steal, now)
        } else {
            self.pause = STEAL_STEP;
            if self.times_at.is_some_and(|at| now - at < STEAL_STEP) {
                return Ok(());
            }
            self.times_at = Some(now);
            self.meter.read(&self.root)?
        };
        let kept = self.decide(host, spent, now)?;
        if host.entitlement.is_some() {
            let rests = (self.wants as usize) < kept.len();
            self.pause = if rests { (self.pause * 2).min(REST) } else { STEP };
        }
        let parked = self.cpus.iter().filter(|cpu| !kept.contains(cpu)).copied().collect();
        if parked != *self.parking.parked() {
            self.parking.park(&parked)?;
            tracing::info!("{} of {} CPUs in use", kept.len(), self.cpus.len());
        }
        Ok(())
    }

    /// What the CPUs in use did since the last step: as many as had work ran, but for what the host says that it withheld.
    fn spent(&mut self, steal: &[u64], now: Instant) -> CpuTime {
        let elapsed = (now - self.steal_at).as_nanos() as u64;
        let since = |(now, last): (&u64, &u64)| guest::host_withheld(now.saturating_sub(*last), elapsed);
        let stolen: u64 = steal.iter().zip(&self.steal).map(since).sum();
        let busy = u64::from(self.wants).min((self.cpus.len() - self.parking.parked().len()) as u64);
        self.steal = steal.to_vec();
        self.steal_at = now;
        CpuTime { ran: (busy * elapsed).saturating_sub(stolen), stolen }
    }

    fn decide(&mut self, host: &Host, spent: CpuTime, now: Instant) -> Result<BTreeSet<u32>> {
        let fixed: Vec<bool> =
            self.cpus.iter().map(|cpu| self.pinned.contains(cpu) || !self.parkable.contains(cpu)).collect();
        let runnable = readings::runnable(&self.root)?;
        self.wants = runnable.min(self.cpus.len() as u32);
        let keep = self.vcpud.step(&guest::VcpudInput {
            now: (now - self.started).as_nanos() as u64 + 1,
            nr_vcpus: self.cpus.len() as u32,
            floor: fixed.iter().filter(|&&fixed| fixed).count() as u32,
            wants: runnable,
            room: host.room,
            entitlement: host.entitlement.map_or(-1, |entitlement| entitlement as i64),
            ran: spent.ran,
            stolen: spent.stolen,
            // The time in ns is as good as a random number here.
            random: (now - self.started).as_nanos() as u64,
        });
        let kept = guest::vcpud_kept(&fixed, keep, self.vcpud.first);
        Ok(self.cpus.iter().zip(kept).filter(|(_, kept)| *kept).map(|(cpu, _)| *cpu).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;
    use std::fs;

    fn machine() -> Machine {
        let machine = Machine::new((1..4).map(|cpu| (format!("sys/devices/system/cpu/cpu{cpu}/online"), "1")));
        machine.put("proc/loadavg", "1 1 1 9/99 1\n");
        machine.put("proc/stat", "cpu0 0 0 0 0 0 0 0 0\n");
        fs::create_dir_all(machine.path().join("run")).expect("a folder");
        machine
    }

    fn online(root: &Machine) -> usize {
        1 + (1..4).filter(|cpu| root.get(&format!("sys/devices/system/cpu/cpu{cpu}/online")) == "1").count()
    }

    /// Steps beside a host that entitles the guest to so much and gives it that; the guest would use all of its CPUs.
    fn told(controller: &mut Controller, entitlement: u64, steps: u32) {
        let mut steal = controller.steal.clone();
        steal.resize(controller.cpus.len(), 0);
        for _ in 0..steps {
            let kept = controller.cpus.iter().map(|cpu| !controller.parking.parked().contains(cpu));
            let kept: Vec<bool> = kept.collect();
            let all = kept.iter().filter(|kept| **kept).count() as u64 * 1024;
            let part = STEP.as_nanos() as u64 * all.saturating_sub(entitlement) / all;
            steal.iter_mut().zip(kept).for_each(|(steal, kept)| *steal += u64::from(kept) * part);
            let host = Host { entitlement: Some(entitlement), room: 0, steal: steal.clone() };
            controller.step(&host).expect("a step");
            std::thread::sleep(STEP);
        }
    }

    #[test]
    fn it_shrinks_to_the_entitlement_and_grows_back_with_it() {
        let root = machine();
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        let mut last = |entitlement, steps| {
            told(&mut controller, entitlement, steps);
            online(&root)
        };
        assert_eq!(last(1024, 14), 1);
        assert_eq!(last(4096, 1), 4, "at the first step");
        assert_eq!(last(2048, 14), 2);
        drop(controller);
        assert_eq!(online(&root), 4);
    }

    /// What others leave to it is no reason to have fewer CPUs.
    #[test]
    fn it_keeps_what_nobody_withholds_and_takes_a_pcpu_that_idles() {
        let root = machine();
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        let beside = |controller: &mut Controller, room, steps| {
            for _ in 0..steps {
                let host = Host { entitlement: Some(1024), room, steal: controller.steal.clone() };
                controller.step(&host).expect("a step");
                std::thread::sleep(STEP);
            }
            online(&root)
        };
        assert_eq!(beside(&mut controller, 0, 14), 4);
        told(&mut controller, 1024, 14);
        assert_eq!(online(&root), 1);
        assert_eq!(beside(&mut controller, 1, 2), 2);
    }

    /// What it costs a guest that has nothing to do, in wake-ups.
    #[test]
    fn it_looks_seldom_while_nothing_runs_and_often_while_all_cpus_have_work() {
        let root = machine();
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        let mut pause_after = |load: &str, host: &Host, steps| {
            root.put("proc/loadavg", load);
            for _ in 0..steps {
                controller.step(host).expect("a step");
            }
            controller.pause
        };
        let (idle, busy) = ("0 0 0 1/99 1\n", "5 5 5 9/99 1\n");
        let paired = Host { entitlement: Some(4096), ..Host::default() };
        assert_eq!(pause_after(idle, &paired, 8), REST);
        assert_eq!(pause_after(busy, &paired, 1), STEP);
        assert_eq!(pause_after(busy, &Host::default(), 1), STEAL_STEP);
    }

    #[test]
    fn a_pinned_thread_keeps_its_cpu() {
        let root = machine();
        root.put("proc/77/task/77/status", "VmSize:\t1 kB\nCpus_allowed_list:\t3\n");
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        told(&mut controller, 1024, 14);
        // cpu0 has no switch, cpu3 has the thread.
        assert_eq!(*controller.parking.parked(), BTreeSet::from([1, 2]));
    }
}
