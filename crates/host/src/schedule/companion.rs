//! The scheduler beside the observing daemon: mode `schedule`.

use std::time::Duration;

use tracing::{info, warn};

use super::{Options, ScheduleError, Scheduler};
use crate::error::HostError;
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
    scheduler: Scheduler,
    ticks: u32,
}

impl Schedule {
    /// Loads the scheduler; it shares the maps of the channel with the observing programs.
    pub(crate) fn start(mut options: Options, programs: &Programs) -> Result<Self, HostError> {
        options.share = programs.channel_maps();
        options.spins = programs.sees_spins();
        let scheduler = Scheduler::start(&options)?;
        info!("scheduling the host; the kernel's own scheduler takes over when this process ends");
        Ok(Self { scheduler, ticks: 0 })
    }
}

impl Mode for Schedule {
    fn name(&self) -> &'static str {
        "schedule"
    }

    fn fair_to_groups(&self) -> bool {
        true
    }

    fn figures(&self, fleet: &Fleet) -> Figures {
        let vcpus = fleet.vms.values().flat_map(|vm| vm.vcpus.values());
        Figures {
            schedule: Some(self.scheduler.total().into()),
            accounts: vcpus.filter_map(|vcpu| Some((vcpu.tid, self.scheduler.account(vcpu.tid)?))).collect(),
            programs: program_info::programs(self.scheduler.object()),
            levels: self.scheduler.levels(),
            ..Figures::default()
        }
    }

    fn fine(&mut self, fleet: &Fleet) -> Result<Option<Duration>, HostError> {
        if !self.scheduler.asks() {
            return Ok(None);
        }
        fleet.publish_levels()?;
        Ok(Some(PERIOD))
    }

    fn classes(&mut self, vms: &[(i32, crate::classes::Schedule)]) -> Result<(), HostError> {
        Ok(self.scheduler.set_classes(vms)?)
    }

    fn watch(&mut self) -> Result<(), HostError> {
        if let Some(ended) = self.scheduler.ended() {
            warn!("the scheduler ended; the kernel's own has taken over: {}", ended.why);
            return Err(ScheduleError::Ended(ended).into());
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(LOG_EVERY) {
            let total = self.scheduler.total();
            info!(
                "{} switches, {} preemptions ({} in what may be a critical section), {} extensions, {} yields followed",
                total.switches, total.preemptions, total.preemptions_held, total.extended, total.yields[0],
            );
        }
        Ok(())
    }
}
