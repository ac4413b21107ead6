//! The scheduler's tunables by name. Defaults and trade-offs stand in `bpf/sched/tunables.bpf.h`, beside their use.

use super::error::ScheduleError;
use crate::skeleton::sched::types;

macro_rules! tunables {
    ($($name:ident: $kind:tt),* $(,)?) => {
        /// Names of all tunables.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Sets one tunable before the scheduler is loaded.
        pub(super) fn set(data: &mut types::rodata, name: &str, value: &str) -> Result<(), ScheduleError> {
            match name {
                $(stringify!($name) => tunables!(@set $kind, data.$name, name, value),)*
                _ => return Err(ScheduleError::Tunable {
                    name: name.to_owned(),
                    why: format!("there is none of that name; there are {}", NAMES.join(", ")),
                }),
            }
            Ok(())
        }
    };
    (@set u64, $field:expr, $name:expr, $value:expr) => {
        $field = $value.parse().map_err(|_| ScheduleError::Tunable {
            name: $name.to_owned(),
            why: format!("'{}' is not a whole number", $value),
        })?
    };
    (@set bool, $field:expr, $name:expr, $value:expr) => {
        match $value {
            "1" | "true" => $field = true,
            "0" | "false" => $field = false,
            _ => return Err(ScheduleError::Tunable {
                name: $name.to_owned(),
                why: format!("'{}' is neither true nor false", $value),
            }),
        }
    };
}

tunables! {
    protect_costs: u64,
    slice_costs: u64,
    look_costs: u64,
    period_ns: u64,
    slice_min_ns: u64,
    slice_max_ns: u64,
    credit_ns: u64,
    credit_max_ns: u64,
    debt_ns: u64,
    wait_max_ns: u64,
    granularity_ns: u64,
    min_run_ns: u64,
    min_run_vcpu_ns: u64,
    extend_step_ns: u64,
    extend_event_ns: u64,
    extend_burst_ns: u64,
    extend_rate_ppm: u64,
    answer_ns: u64,
    lend_ns: u64,
    timer_lead_ns: u64,
    timer_stay_costs: u64,
    timer_costs: u64,
    timer_again_ns: u64,
    migrate_ns: u64,
    use_yield: bool,
    use_extend: bool,
    use_front: bool,
    use_wake_preempt: bool,
    use_follow: bool,
    use_immed: bool,
    use_timer: bool,
    use_tick: bool,
    use_spins: bool,
    use_untrapped: bool,
    use_energy: bool,
}
