//! When the scheduler must not start: another one is loaded.

use entrain_system::Root;

use super::error::ScheduleError;

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
}
