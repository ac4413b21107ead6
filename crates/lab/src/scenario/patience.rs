//! How often RCU's kernel thread (`rcuc`) takes an isolated CPU from its task.
//!
//! The tasks make system calls with the tick on: the tick then finds the kernel, and with a grace period under way it wakes
//! `rcuc`. Elsewhere cgroups come and go, which needs grace periods. `params`: `cpus`, the isolated ones. The kernel's patience
//! (`rcutree.nohz_full_patience_delay`) is a boot parameter: the arms' `cmdline`.

use std::time::Duration;

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::Target;

use super::interface::{Context, Scenario};
use super::isolated::{Hold, OnCpus, Watch, count};
use super::product::{Service, shell};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Patience;

/// Grace periods without end.
pub(super) const CHURN: &str = "d=/sys/fs/cgroup/entrain-churn-$$; while mkdir $d && rmdir $d; do :; done";
/// What that loop was at when it was ended.
pub(super) const CHURNED: &str = "rmdir /sys/fs/cgroup/entrain-churn-* 2>/dev/null; true";
/// Until everything runs.
const BEFORE: Duration = Duration::from_secs(1);

impl Scenario for Patience {
    fn name(&self) -> &'static str {
        "patience"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let OnCpus { cpus } = context.params(self.name())?;
        let hold = |cpu: &u32| Hold::start(rig, *cpu, context.seconds + 60.0, &["--calls", "--tick"]);
        let holds = cpus.0.iter().map(hold).collect::<Result<Vec<_>>>()?;
        let churn = Service::start(rig, Target::Host, ["sh", "-c", CHURN])?;
        rig.sleep(BEFORE)?;
        let watch = Watch::start(rig, &cpus.to_string())?;
        let begun = rig.now();
        rig.sleep(Duration::from_secs_f64(context.seconds))?;
        let rows = watch.end(rig)?;
        let minutes = (rig.now() - begun).as_secs_f64() / 60.0;
        churn.stop()?;
        holds.into_iter().try_for_each(Hold::stop)?;
        shell(rig, Target::Host, CHURNED)?;
        let rcuc = count(&rows, |row| row.kind == "kthread" && row.cause.starts_with("rcuc/"));
        readings.push("rcuc", "1/min", Lower, rcuc / minutes);
        readings.push("ticks", "1/min", Higher, count(&rows, |row| row.kind == "timer") / minutes);
        Ok(())
    }
}
