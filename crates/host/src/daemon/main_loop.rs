//! The main loop: what is due, and what events ask for.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::{info, warn};

use super::events::{Event, Events};
use super::heartbeat::{self, Heartbeat};
use super::instance::tell_service_manager;
use super::timers::{Task, Timers};
use crate::classes::apply::{Running, Weights};
use crate::classes::{self, Classes};
use crate::error::HostError;
use crate::finder::Finder;
use crate::fleet::Fleet;
use crate::mode::Mode;
use crate::pcpus::Pcpus;
use crate::snapshot;
use crate::status::{Answer, Question, Status, Work};
use crate::waits::Waits;

/// VMs are looked for this often, and sooner after events.
const DISCOVERY: Duration = Duration::from_secs(1);
/// Time per discovery that the search for agents may take: 4 % of one CPU at most.
const SEARCH: Duration = Duration::from_millis(40);
/// How much of each heartbeat the self-test hammers; the vCPUs need the rest.
const SELFTEST: Duration = Duration::from_millis(50);

/// All that the daemon has and does.
pub(super) struct MainLoop {
    fleet: Fleet,
    finder: Finder,
    mode: Box<dyn Mode>,
    events: Events,
    timers: Timers,
    heartbeat: Heartbeat,
    pcpus: Pcpus,
    classes: Option<Classes>,
    weights: Weights,
    waits: Waits,
    work: Work,
    started: Instant,
    selftest: bool,
}

impl MainLoop {
    pub(super) fn new(
        mut fleet: Fleet,
        finder: Finder,
        mode: Box<dyn Mode>,
        events: Events,
        pcpus: Pcpus,
        classes: Option<Classes>,
        selftest: bool,
    ) -> Self {
        let started = Instant::now();
        fleet.set_scheduler(mode.schedules());
        Self {
            fleet,
            finder,
            mode,
            events,
            timers: Timers::new(started),
            heartbeat: Heartbeat::default(),
            pcpus,
            classes,
            weights: Weights::default(),
            waits: Waits::default(),
            work: Work::default(),
            started,
            selftest,
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
                            self.look_soon();
                        }
                    }
                    Event::VcpuEnded => self.look_soon(),
                    Event::PcpuIdle => {
                        self.fleet.pcpu_idles();
                        self.timers.set(Task::Shares, Instant::now());
                    }
                    Event::Asked(question) => self.answer(question),
                    Event::Reload => self.reload(),
                    Event::Stop => return Ok(()),
                }
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
        if self.timers.is_due(Task::Heartbeat, now) {
            self.beat()?;
            self.work.ticks += 1;
            self.work.tick_ns += now.elapsed().as_nanos() as u64;
            self.timers.set(Task::Heartbeat, now + heartbeat::PERIOD);
        }
        if self.timers.is_due(Task::Discovery, now) {
            tell_service_manager(NotifyState::Watchdog);
            self.discover()?;
            self.timers.set(Task::Discovery, Instant::now() + DISCOVERY);
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

    fn beat(&mut self) -> Result<(), HostError> {
        let beat = self.heartbeat.beat(&self.fleet.programs, self.fleet.entries())?;
        self.fleet.let_go(beat.gone)?;
        if beat.moved {
            self.look_soon();
        }
        if self.mode.watch()? {
            self.fleet.set_scheduler(self.mode.schedules());
            self.timers.set(Task::Mode, Instant::now());
            // A scheduler that has just started does not know the classes.
            self.look_soon();
        }
        if self.fleet.search_is_urgent() {
            self.search();
        }
        if self.selftest {
            self.fleet.selftest(SELFTEST)?;
        }
        Ok(())
    }

    /// VMs may have changed.
    fn look_soon(&mut self) {
        self.timers.set(Task::Discovery, Instant::now());
    }

    fn discover(&mut self) -> Result<(), HostError> {
        let start = Instant::now();
        if let Err(error) = self.finder.vms().and_then(|found| self.fleet.follow(found)) {
            // Out of memory and the like: the VMs that are known go on, and the next pass is a second away.
            warn!("cannot look for VMs now: {error}");
        }
        self.give_classes()?;
        self.pcpus.tell(&self.fleet.programs);
        self.work.discoveries += 1;
        self.work.discovery_ns += start.elapsed().as_nanos() as u64;
        self.search();
        Ok(())
    }

    fn give_classes(&mut self) -> Result<(), HostError> {
        let running = self.fleet.vms.values();
        let vms: Vec<Running> = running
            .map(|vm| Running {
                name: vm.name.clone(),
                pid: vm.found.tgid,
                vcpus: vm.vcpus.len() as u32,
                weight: vm.group.weight,
            })
            .collect();
        let given = self.weights.apply(self.classes.as_ref(), &self.fleet.root, classes::pcpus(), &vms);
        let mut schedule = Vec::new();
        for (vm, given) in self.fleet.vms.values_mut().zip(given) {
            schedule.extend(given.as_ref().map(|given| (vm.found.tgid, given.schedule)));
            vm.class = given.map(|given| given.class);
        }
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
        if question.waits {
            self.waits.ask(&mut self.fleet.programs);
        }
        // The client may have given up.
        let _ = question.reply.send(Answer::Status(Box::new(self.status())));
    }

    fn status(&self) -> Status {
        let figures = self.mode.figures(&self.fleet);
        let mut status = snapshot::take(&self.fleet, self.mode.name(), self.started.elapsed(), self.work, figures);
        status.waits = self.waits.status(&self.fleet);
        status
    }
}
