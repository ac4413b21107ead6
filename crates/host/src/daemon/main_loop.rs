//! The main loop: what is due, and what events ask for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::{info, warn};

use super::events::{Event, Events};
use super::heartbeat::{self, Heart};
use super::instance::tell_service_manager;
use super::timers::{Task, Timers};
use crate::allowance::Allowance;
use crate::classes::apply::{Running, Weights};
use crate::classes::{self, Classes, Publish};
use crate::error::HostError;
use crate::finder::Finder;
use crate::fleet::Fleet;
use crate::mode::Mode;
use crate::pcpus::Pcpus;
use crate::snapshot;
use crate::status::{Answer, Question, Status, Work};
use crate::waits::Waits;

/// The service manager hears this often that the daemon lives. Not with each look for VMs: one that users have made long
/// puts the next one off by a multiple of that, and the manager would take the daemon for stuck.
const ALIVE: Duration = Duration::from_secs(1);
/// VMs are looked for this often, and sooner after events.
const DISCOVERY: Duration = Duration::from_secs(1);
/// The search for agents takes so long at a time; how much in all, the fleet's allowance says.
const SEARCH: Duration = Duration::from_millis(20);
/// Looks for VMs take at most one part in so many of a CPU, 2 %, and what can be saved up: whatever users make them cost,
/// and however often vCPUs that end ask for one. With the fleet's search that is the 5 % that the daemon may take, beside
/// the heartbeat.
const DISCOVERY_PART: u32 = 50;
const DISCOVERY_SAVED: Duration = Duration::from_millis(200);
/// How much of each heartbeat the self-test hammers; the vCPUs need the rest.
const SELFTEST: Duration = Duration::from_millis(50);

/// Rings of VMs that are not known yet, kept until the next look; who rings beyond these rings again a second later. Any
/// process with KVM's device can ring for a VM that the table has no room for.
const UNHEARD: usize = 64;

/// All that the daemon has and does.
pub(super) struct MainLoop {
    fleet: Fleet,
    finder: Finder,
    mode: Box<dyn Mode>,
    events: Events,
    timers: Timers,
    /// Rings whose VM was not known: thread, process, page.
    unheard: Vec<(i32, i32, u64)>,
    /// For looking for VMs.
    allowance: Allowance,
    heart: Heart,
    pcpus: Pcpus,
    classes: Option<Classes>,
    weights: Weights,
    waits: Waits,
    work: Work,
    started: Instant,
    selftest: bool,
    metrics: Option<SocketAddr>,
    unpaired: Option<&'static str>,
}

/// What it is made of.
pub(super) struct Parts {
    pub(super) fleet: Fleet,
    pub(super) heart: Heart,
    pub(super) finder: Finder,
    pub(super) mode: Box<dyn Mode>,
    pub(super) events: Events,
    pub(super) pcpus: Pcpus,
    pub(super) classes: Option<Classes>,
    pub(super) weights: Weights,
    /// Take part in the self-test of the channel.
    pub(super) selftest: bool,
    /// Where metrics are served.
    pub(super) metrics: Option<SocketAddr>,
    /// Why no guest can be paired here.
    pub(super) unpaired: Option<&'static str>,
}

impl MainLoop {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { mut fleet, heart, finder, mode, events, pcpus, classes, weights, selftest, metrics, unpaired } =
            parts;
        let started = Instant::now();
        fleet.set_scheduler(mode.schedules());
        Self {
            fleet,
            finder,
            mode,
            events,
            timers: Timers::new(started),
            unheard: Vec::new(),
            allowance: Allowance::new(started, DISCOVERY_PART, DISCOVERY_SAVED),
            heart,
            pcpus,
            classes,
            weights,
            waits: Waits::default(),
            work: Work::default(),
            started,
            selftest,
            metrics,
            unpaired,
        }
    }

    /// Until a signal ends it, or an error.
    pub(super) fn run(&mut self) -> Result<(), HostError> {
        loop {
            self.do_what_is_due()?;
            for event in self.events.wait(self.timers.next()) {
                match event {
                    Event::Doorbell { tid, tgid, gpa } => {
                        // A guest rings that is not known yet.
                        if !self.fleet.doorbell(tid, tgid, gpa) {
                            if self.unheard.len() < UNHEARD {
                                self.unheard.push((tid, tgid, gpa));
                            }
                            self.look_soon();
                        }
                    }
                    Event::VcpuEnded => self.look_soon(),
                    Event::Asked(question) => self.answer(question),
                    Event::Reload => self.reload(),
                    Event::Stop => return Ok(()),
                }
            }
            let beat = self.heart.take()?;
            if beat.gone {
                self.fleet.let_go(true)?;
            }
            if beat.moved {
                self.look_soon();
            }
            if self.fleet.search_is_urgent() {
                self.search();
            }
            self.waits.expire(&mut self.fleet.programs);
        }
    }

    /// Takes back what was set and gives back what was taken. Returns how many guests' pages were told.
    pub(super) fn end(&mut self) -> Result<usize, HostError> {
        self.weights.take_all_back();
        Ok(self.fleet.release_all()?)
    }

    fn do_what_is_due(&mut self) -> Result<(), HostError> {
        let now = Instant::now();
        if self.timers.is_due(Task::Watch, now) {
            self.watch()?;
            self.timers.set(Task::Watch, now + heartbeat::PERIOD);
        }
        if self.timers.is_due(Task::Alive, now) {
            tell_service_manager(NotifyState::Watchdog);
            self.timers.set(Task::Alive, now + ALIVE);
        }
        if self.timers.is_due(Task::Discovery, now) {
            self.discover()?;
            self.timers.set(Task::Discovery, self.allowance.ready(Instant::now()).max(now + DISCOVERY));
        }
        if self.timers.is_due(Task::Shares, now) {
            self.fleet.share_cpus()?;
            self.timers.set(Task::Shares, Instant::now() + self.fleet.share_period());
        }
        if self.timers.is_due(Task::Mode, now) {
            let next = self.mode.fine(&self.fleet)?;
            self.timers.set(Task::Mode, next.map(|period| Instant::now() + period));
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<(), HostError> {
        self.fleet.let_go(false)?;
        if self.mode.watch()? {
            self.fleet.set_scheduler(self.mode.schedules());
            self.timers.set(Task::Mode, Instant::now());
            // A scheduler that has just started does not know the classes.
            self.look_soon();
        }
        if self.selftest {
            self.fleet.selftest(SELFTEST)?;
        }
        Ok(())
    }

    /// VMs may have changed.
    fn look_soon(&mut self) {
        self.timers.set(Task::Discovery, self.allowance.ready(Instant::now()));
    }

    fn discover(&mut self) -> Result<(), HostError> {
        let start = Instant::now();
        let found = self.finder.vms();
        let followed = found.and_then(|found| found.map_or(Ok(()), |found| self.fleet.follow(found)));
        if let Err(error) = followed.and_then(|()| self.fleet.check_counts()) {
            // Out of memory and the like: the VMs that are known go on, and the next pass is a second away.
            warn!("cannot look for VMs now: {error}");
        }
        for (tid, tgid, gpa) in std::mem::take(&mut self.unheard) {
            self.fleet.doorbell(tid, tgid, gpa);
        }
        self.heart.set_entries(self.fleet.entries());
        self.give_classes()?;
        self.pcpus.tell(&self.fleet.programs);
        self.waits.learn(&self.fleet);
        self.work.discoveries += 1;
        let took = start.elapsed();
        self.allowance.take(took);
        self.work.discovery_ns += took.as_nanos() as u64;
        self.fleet.look_again();
        self.search();
        self.fleet.remember();
        Ok(())
    }

    fn give_classes(&mut self) -> Result<(), HostError> {
        let running = self.fleet.vms.values();
        let vms: Vec<Running> = running
            .map(|vm| Running {
                name: vm.name().to_owned(),
                pid: vm.found.tgid,
                vcpus: vm.vcpus.len() as u32,
                weight: vm.group.weight,
                own: vm.group.own.clone(),
            })
            .collect();
        let given = self.weights.apply(self.classes.as_ref(), &self.fleet.root, classes::pcpus(), &vms);
        let mut schedule = Vec::new();
        for (vm, given) in self.fleet.vms.values_mut().zip(given) {
            schedule.extend(given.as_ref().map(|given| (vm.found.tgid, given.schedule)));
            vm.publish = given.as_ref().map_or(Publish::All, |given| given.publish);
            vm.class = given.map(|given| given.class);
        }
        self.fleet.publish_by_class()?;
        self.mode.classes(&schedule)
    }

    fn search(&mut self) {
        let start = Instant::now();
        self.fleet.pair(SEARCH);
        self.work.pairing_ns += start.elapsed().as_nanos() as u64;
    }

    /// Reads the classes again; a file that is wrong changes nothing.
    fn reload(&mut self) {
        match self.classes.as_ref().map(Classes::reload) {
            None => info!("SIGHUP: nothing to read again, there is no --config"),
            Some(Ok(classes)) => {
                info!("SIGHUP: read again: {}", classes.summary().lines().next().unwrap_or_default());
                self.classes = Some(classes);
            }
            Some(Err(error)) => warn!("SIGHUP: the classes stay as they were: {error}"),
        }
        self.mode.reload();
        self.look_soon();
    }

    fn answer(&mut self, question: Question) {
        if question.waits || question.metrics {
            self.waits.ask(&mut self.fleet.programs, question.metrics);
        }
        // The client may have given up.
        let _ = question.reply.send(Answer::Status(Box::new(self.status(question.waits))));
    }

    fn status(&self, waits: bool) -> Status {
        let figures = self.mode.figures(&self.fleet);
        let beats = self.heart.beats();
        let work = Work {
            ticks: beats.count,
            tick_ns: beats.ns,
            worst_tick_gap_ns: beats.worst_gap_ns,
            late_ticks: beats.late,
            ..self.work
        };
        let mut status = snapshot::take(&self.fleet, self.mode.name(), self.started.elapsed(), work, figures);
        status.metrics = self.metrics;
        status.unpaired = self.unpaired.map(str::to_owned);
        if waits {
            status.waits = Waits::status(&self.fleet);
        }
        for vm in &mut status.vms {
            vm.waited_for = self.waits.culprits(&vm.key);
        }
        status
    }
}
