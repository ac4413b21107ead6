//! Mode `schedule`: the scheduler beside the observing daemon, for as long as it can run.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::fallback::{Happened, Now, State, cure};
use super::loader::Loader;
use super::{Options, ScheduleError, Scheduler};
use crate::error::{HostError, system};
use crate::figures::FallbackStatus;
use crate::fleet::Fleet;
use crate::mode::{Figures, Mode};
use crate::program_info;
use crate::programs::Programs;

/// Heartbeats of the daemon (100 ms) between two lines in the log.
const LOG_EVERY: u32 = 600;

/// Between two times that guests are told their pCPUs' levels. Theirs is a mean with a half-life of 32 ms; and each time
/// takes a CPU from whoever runs there.
const PERIOD: Duration = Duration::from_millis(20);

/// Mode `schedule`.
pub(crate) struct Schedule {
    /// There while [`Now::Scheduling`].
    scheduler: Option<Scheduler>,
    loader: Loader,
    state: State,
    beats: u32,
}

impl Schedule {
    /// Loads the scheduler, which shares the maps of the channel with the observing programs. If it cannot run now, the
    /// mode begins without it. An error is one of the command line.
    pub(crate) fn start(mut options: Options, programs: &Programs) -> Result<Self, HostError> {
        options.share = programs.channel_maps();
        options.spins = programs.sees_spins();
        let loader = Loader::spawn(options).map_err(system("cannot start a thread"))?;
        let mut mode = Self { scheduler: None, loader, state: State::new(), beats: 0 };
        mode.loader.begin();
        match mode.loader.wait() {
            Ok(scheduler) => mode.started(scheduler),
            Err(error @ ScheduleError::Tunable { .. }) => return Err(error.into()),
            Err(error) => mode.failed(&error),
        }
        Ok(mode)
    }

    fn step(&mut self, happened: Happened) {
        let loading = matches!(self.state.now, Now::Loading { .. });
        self.state = self.state.clone().after(happened, Instant::now());
        if !loading && matches!(self.state.now, Now::Loading { .. }) {
            self.loader.begin();
        }
    }

    fn started(&mut self, scheduler: Scheduler) {
        self.scheduler = Some(scheduler);
        self.step(Happened::Started);
        info!("scheduling the host; the kernel's own scheduler takes over when this process ends");
    }

    fn failed(&mut self, error: &ScheduleError) {
        if let Some(ended) = self.scheduler.take() {
            for line in ended.dump() {
                debug!("its state at the end: {line}");
            }
            self.loader.unload(ended);
        }
        let before = self.state.now.clone();
        // A cgroup's name can hold anything, and this goes to logs and terminals.
        let why: String = error.to_string().chars().filter(|c| entrain_system::is_plain(*c)).collect();
        self.step(Happened::Failed { why: why.clone(), cure: cure(error) });
        let next = match &self.state.now {
            Now::Observing { retry_at: Some(at), .. } => {
                format!("the next try is in {} s", at.saturating_duration_since(Instant::now()).as_secs_f64().ceil())
            }
            _ => "SIGHUP or a new start tries again".into(),
        };
        match before {
            // Said already.
            Now::Loading { why: said } if said == why => debug!("still only observing: {why}; {next}"),
            _ => warn!("only observing, under the kernel's own scheduler: {why}; {next}"),
        }
    }

    fn log(&mut self) {
        self.beats += 1;
        if self.beats.is_multiple_of(LOG_EVERY)
            && let Some(total) = self.scheduler.as_ref().map(Scheduler::total)
        {
            info!(
                "{} switches, {} preemptions ({} in what may be a critical section), {} extensions, {} yields followed",
                total.switches, total.preemptions, total.preemptions_held, total.extensions, total.yields_honoured,
            );
        }
    }
}

impl Mode for Schedule {
    fn name(&self) -> &'static str {
        "schedule"
    }

    fn schedules(&self) -> bool {
        self.scheduler.is_some()
    }

    fn figures(&self, fleet: &Fleet) -> Figures {
        let fallback = match &self.state.now {
            Now::Scheduling { .. } => None,
            Now::Loading { why } => Some(FallbackStatus { why: why.clone(), retry_in_ns: Some(0) }),
            Now::Observing { why, retry_at } => {
                let left = |at: &Instant| at.saturating_duration_since(Instant::now()).as_nanos() as u64;
                Some(FallbackStatus { why: why.clone(), retry_in_ns: retry_at.as_ref().map(left) })
            }
        };
        let figures = Figures { fallback, fallbacks: self.state.losses, ..Figures::default() };
        let Some(scheduler) = &self.scheduler else { return figures };
        scheduler.is_read();
        let vcpus = fleet.vms.values().flat_map(|vm| vm.vcpus.values());
        Figures {
            schedule: Some(scheduler.total()),
            accounts: vcpus.filter_map(|vcpu| Some((vcpu.tid, scheduler.account(vcpu.tid)?))).collect(),
            programs: program_info::programs(scheduler.object()),
            levels: scheduler.levels(),
            ..figures
        }
    }

    fn fine(&mut self, fleet: &Fleet) -> Result<Option<Duration>, HostError> {
        if !self.scheduler.as_ref().is_some_and(Scheduler::asks) {
            return Ok(None);
        }
        fleet.publish_levels()?;
        Ok(Some(PERIOD))
    }

    fn classes(&mut self, vms: &[(i32, crate::classes::Schedule)]) -> Result<(), HostError> {
        if let Some(scheduler) = &mut self.scheduler
            && let Err(error) = scheduler.set_classes(vms)
        {
            warn!("classes say nothing to the scheduler until the next look for VMs: {error}");
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<bool, HostError> {
        let before = self.schedules();
        match &self.state.now {
            Now::Scheduling { .. } => match self.scheduler.as_ref().and_then(Scheduler::ended) {
                Some(ended) => self.failed(&ScheduleError::Ended(ended)),
                None => {
                    self.scheduler.iter_mut().for_each(Scheduler::follow);
                    self.log();
                }
            },
            Now::Loading { .. } => match self.loader.poll() {
                Some(Ok(scheduler)) => self.started(scheduler),
                Some(Err(error)) => self.failed(&error),
                None => {}
            },
            Now::Observing { .. } => self.step(Happened::Nothing),
        }
        Ok(before != self.schedules())
    }

    fn reload(&mut self) {
        self.step(Happened::Asked);
    }
}
