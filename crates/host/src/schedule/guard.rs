//! When the scheduler must not start: another one is loaded, or somebody relies on what it does not do.

use std::path::Path;

use entrain_system::Root;

use super::error::ScheduleError;
use crate::cgroup::find_limit;

/// Refuses where the kernel has no sched_ext or another scheduler is loaded.
pub(super) fn check_free(root: &Root) -> Result<(), ScheduleError> {
    let Some(state) = root.trimmed("sys/kernel/sched_ext/state") else {
        return Err(ScheduleError::NoSchedExt);
    };
    match state.as_str() {
        "disabled" => Ok(()),
        _ => {
            let name = root.trimmed("sys/kernel/sched_ext/root/ops").unwrap_or_default();
            Err(ScheduleError::Loaded { name, state })
        }
    }
}

/// Refuses where a cgroup has a limit in `cpu.max`, which this scheduler would not enforce. `cgroups` is the root of
/// cgroup v2, usually `/sys/fs/cgroup`. A limit that is set later ends the scheduler, in favour of the kernel's own.
pub(super) fn check_cpu_max(cgroups: &Path) -> Result<(), ScheduleError> {
    match find_limit(cgroups) {
        Some((cgroup, limit)) => Err(ScheduleError::CpuMax { cgroup, limit }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn another_scheduler_is_refused_by_name() {
        let machine = Machine::default();
        assert!(matches!(check_free(&machine.root()), Err(ScheduleError::NoSchedExt)));
        machine.put("sys/kernel/sched_ext/state", "disabled\n");
        assert!(check_free(&machine.root()).is_ok());
        machine.put("sys/kernel/sched_ext/state", "enabled\n");
        machine.put("sys/kernel/sched_ext/root/ops", "other_1.0\n");
        let error = check_free(&machine.root()).expect_err("loaded");
        assert!(error.to_string().contains("other_1.0"), "{error}");
    }

    #[test]
    fn a_limit_deep_in_the_tree_is_found() {
        let machine = Machine::new([("machine.slice/cpu.max", "max 100000\n"), ("machine.slice/vm1/cgroup.procs", "")]);
        assert!(check_cpu_max(machine.path()).is_ok());
        machine.put("machine.slice/vm1/cpu.max", "50000 100000\n");
        let error = check_cpu_max(machine.path()).expect_err("limited");
        assert!(error.to_string().contains("vm1"), "{error}");
    }
}
