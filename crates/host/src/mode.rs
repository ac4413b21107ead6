//! What a mode of the daemon is.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::thread::CapabilitySet;

use crate::classes::Schedule;
use crate::counters::{Account, ScheduleStatus};
use crate::error::HostError;
use crate::figures::{FallbackStatus, LevelStatus, ProgramStatus};
use crate::fleet::Fleet;

/// Figures that only the mode knows.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) schedule: Option<ScheduleStatus>,
    /// Why the mode only observes for now.
    pub(crate) fallback: Option<FallbackStatus>,
    /// Times that it began to.
    pub(crate) fallbacks: u64,
    /// By the vCPU's thread.
    pub(crate) accounts: BTreeMap<i32, Account>,
    /// By number of the pCPU; empty where no levels are asked for.
    pub(crate) levels: Vec<LevelStatus>,
    /// uclamp_min that is set on a thread.
    pub(crate) clamps: BTreeMap<i32, u32>,
    pub(crate) programs: Vec<ProgramStatus>,
}

/// What the daemon does beside observing. Called from the main loop.
pub(crate) trait Mode {
    /// Its name, for the status.
    fn name(&self) -> &'static str;
    /// Whether Entrain's scheduler has the host's tasks now.
    fn schedules(&self) -> bool {
        false
    }
    /// What it alone knows, for the status.
    fn figures(&self, _fleet: &Fleet) -> Figures {
        Figures::default()
    }
    /// What the classes of the VMs that run say to the scheduler, by the VMM's process; after each look for VMs.
    fn classes(&mut self, _vms: &[(i32, Schedule)]) -> Result<(), HostError> {
        Ok(())
    }
    /// Capabilities that it needs after loading, beside the daemon's own.
    fn needs(&self) -> CapabilitySet {
        CapabilitySet::empty()
    }
    /// With every heartbeat. True: what [`Self::schedules`] says has changed, and all else is to be asked anew. An error
    /// ends the daemon.
    fn watch(&mut self) -> Result<bool, HostError> {
        Ok(false)
    }
    /// An administrator has sent SIGHUP.
    fn reload(&mut self) {}
    /// What cannot wait for a heartbeat. Returns when it is to be called again; `None` = when [`Self::watch`] says so. An error ends the daemon.
    fn fine(&mut self, _fleet: &Fleet) -> Result<Option<Duration>, HostError> {
        Ok(None)
    }
}

/// Mode `observe`: nothing beside.
pub(crate) struct Observe;

impl Mode for Observe {
    fn name(&self) -> &'static str {
        "observe"
    }
}
