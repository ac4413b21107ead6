//! vcpud without sched_ext: `entrain guest --mode vcpud`. The controller of `guest_vcpud.h` decides how many CPUs are
//! kept, by the host's entitlement or by steal time; a cpuset partition or hotplug takes the others out of use.

pub mod backend;
pub mod readings;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use entrain_channel::page::{MAX_VCPUS, Page};
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
            while !end.load(Ordering::Relaxed) {
                let host = Host::read(pages.page(0), &mut heard, controller.started);
                let told = controller.wants;
                controller.step(host)?;
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

/// What the host says: its entitlement for this guest in 1/1024 pCPU, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    entitlement: Option<u64>,
}

impl Host {
    fn read(page: &Page, heard: &mut guest::Heartbeat, started: Instant) -> Host {
        let silent = Host { entitlement: None };
        let Some(seed) = paired_seed(page) else {
            return silent;
        };
        let read = |word: &std::sync::atomic::AtomicU64| seed.unpack(word.load(Ordering::Acquire));
        let now = started.elapsed().as_nanos() as u64 + 1;
        if !guest::host_alive(heard, read(&page.host_slow.heartbeat), now) {
            return silent;
        }
        let (features, entitlement) = (read(&page.host_slow.features), read(&page.host_slow.entitlement));
        Host { entitlement: guest::entitlement(features, entitlement, MAX_VCPUS as u32) }
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
            pinned: BTreeSet::new(),
            pinned_at: None,
        }
    }

    fn step(&mut self, host: Host) -> Result<()> {
        let now = Instant::now();
        let room = host.entitlement.is_some_and(|room| room >= 1024 * self.cpus.len() as u64);
        let nothing_parked = room && self.parking.parked().is_empty();
        if !nothing_parked && self.pinned_at.is_none_or(|at| now - at >= PINNED_STEP) {
            // Read while everything is in use or not: a partition does not change what a thread asked for.
            self.pinned = readings::pinned_cpus(&self.root);
            self.pinned_at = Some(now);
        }
        let mut spent = CpuTime::default();
        if host.entitlement.is_none() {
            self.pause = STEAL_STEP;
            if self.times_at.is_some_and(|at| now - at < STEAL_STEP) {
                return Ok(());
            }
            spent = self.meter.read(&self.root)?;
            self.times_at = Some(now);
        }
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

    fn decide(&mut self, host: Host, spent: CpuTime, now: Instant) -> Result<BTreeSet<u32>> {
        let fixed: Vec<bool> =
            self.cpus.iter().map(|cpu| self.pinned.contains(cpu) || !self.parkable.contains(cpu)).collect();
        let runnable = readings::runnable(&self.root)?;
        self.wants = runnable.min(self.cpus.len() as u32);
        let keep = self.vcpud.step(&guest::VcpudInput {
            now: (now - self.started).as_nanos() as u64 + 1,
            nr_vcpus: self.cpus.len() as u32,
            floor: fixed.iter().filter(|&&fixed| fixed).count() as u32,
            wants: runnable,
            entitlement: host.entitlement.map_or(-1, |entitlement| entitlement as i64),
            ran: spent.ran,
            stolen: spent.stolen,
        });
        let kept = guest::vcpud_kept(&fixed, keep);
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

    #[test]
    fn it_shrinks_to_the_entitlement_and_grows_back_with_it() {
        let root = machine();
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        let mut last = |entitlement, steps| {
            for _ in 0..steps {
                controller.step(Host { entitlement: Some(entitlement) }).expect("a step");
                std::thread::sleep(STEP);
            }
            online(&root)
        };
        assert_eq!(last(1024, 8), 1);
        assert_eq!(last(4096, 1), 4, "at the first step");
        assert_eq!(last(2048, 8), 2);
        drop(controller);
        assert_eq!(online(&root), 4);
    }

    /// What it costs a guest that has nothing to do, in wake-ups.
    #[test]
    fn it_looks_seldom_while_nothing_runs_and_often_while_all_cpus_have_work() {
        let root = machine();
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        let mut pause_after = |load: &str, host, steps| {
            root.put("proc/loadavg", load);
            for _ in 0..steps {
                controller.step(host).expect("a step");
            }
            controller.pause
        };
        let (idle, busy) = ("0 0 0 1/99 1\n", "5 5 5 9/99 1\n");
        let paired = Host { entitlement: Some(4096) };
        assert_eq!(pause_after(idle, paired, 8), REST);
        assert_eq!(pause_after(busy, paired, 1), STEP);
        assert_eq!(pause_after(busy, Host { entitlement: None }, 1), STEAL_STEP);
    }

    #[test]
    fn a_pinned_thread_keeps_its_cpu() {
        let root = machine();
        root.put("proc/77/task/77/status", "VmSize:\t1 kB\nCpus_allowed_list:\t3\n");
        let parking = Parking::new(&root.root(), &root.path().join("run"), None).expect("hotplug");
        let mut controller = Controller::new(root.root(), parking, vec![0, 1, 2, 3]);
        for _ in 0..8 {
            controller.step(Host { entitlement: Some(1024) }).expect("a step");
            std::thread::sleep(STEP);
        }
        // cpu0 has no switch, cpu3 has the thread.
        assert_eq!(*controller.parking.parked(), BTreeSet::from([1, 2]));
    }
}
