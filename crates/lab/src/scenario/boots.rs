//! Guests that boot while the host's scheduler comes and goes: none may hang.
//!
//! `params`: `in_turn` and `at_once`, how many guests boot one after the other and all at the same time; `guest`, their
//! size; `on`, `off`, seconds for which the scheduler is loaded and unloaded in turns meanwhile; both 0: no scheduler, for
//! comparison. A guest that hangs ends the boot of the host machine as a fault (`boot-deadline`), told with its arm.

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::{GuestSpec, Target};
use serde::Deserialize;

use super::interface::{Context, Scenario};
use super::product::{Service, shell, unmet};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Boots;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    in_turn: u32,
    at_once: u32,
    vcpus: u32,
    memory_mib: u32,
    #[serde(default)]
    on: f64,
    #[serde(default)]
    off: f64,
}

/// Where the one that loads and unloads counts.
const COUNT: &str = "/run/entrain-boots";

impl Scenario for Boots {
    fn name(&self) -> &'static str {
        "boots"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params: Params = context.params("boots")?;
        let toggler = (params.on > 0.0).then(|| toggle(rig, params.on, params.off)).transpose()?;
        let spec = |number: u32| GuestSpec {
            memory_mib: params.memory_mib,
            ..GuestSpec::new(format!("boot-{number}"), params.vcpus)
        };
        let mut longest = 0.0_f64;
        for number in 0..params.in_turn {
            context.bar.announce(&format!("guest {} of {} boots", number + 1, params.in_turn));
            let begun = rig.now();
            let guest = rig.start_guest(&spec(number))?;
            longest = longest.max((rig.now() - begun).as_secs_f64());
            works(rig, guest)?;
            rig.stop_guest(guest)?;
        }
        if params.in_turn > 0 {
            readings.push("boot_max", "s", Lower, longest);
        }
        if params.at_once > 0 {
            context.bar.announce(&format!("{} guests boot at once", params.at_once));
            let specs: Vec<GuestSpec> = (0..params.at_once).map(|number| spec(1000 + number)).collect();
            let begun = rig.now();
            let guests = rig.start_guests(&specs)?;
            readings.push("boot_at_once", "s", Lower, (rig.now() - begun).as_secs_f64());
            for guest in guests {
                works(rig, guest)?;
                rig.stop_guest(guest)?;
            }
        }
        readings.push("booted", "1", Higher, f64::from(params.in_turn + params.at_once));
        if let Some(toggler) = toggler {
            toggler.stop()?;
            let count = shell(rig, Target::Host, &format!("cat {COUNT}"))?;
            let times = count.trim().parse().map_err(|_| unmet(format!("no count of loads: {count}")))?;
            readings.push("loaded", "1", Higher, times);
        }
        Ok(())
    }
}

/// The guest answers, and all its CPUs run something.
fn works(rig: &dyn Rig, guest: usize) -> Result<()> {
    shell(
        rig,
        Target::Guest(guest),
        "for c in /sys/devices/system/cpu/cpu[0-9]*; do taskset $(printf %x $((1 << ${c##*cpu}))) true || exit 1; done",
    )
    .map(drop)
}

/// Loads the scheduler, for `on` seconds from when it is there, unloads it for `off`, and so on; counts the loads. To load it
/// takes seconds while guests boot on an emulated host.
fn toggle(rig: &dyn Rig, on: f64, off: f64) -> Result<Service> {
    let script = format!(
        "n=0; echo 0 > {COUNT}; trap 'kill $p 2>/dev/null; wait; exit 0' TERM; \
         while :; do \
           entrain host --mode schedule 2>/dev/null & p=$!; \
           until grep -q enabled /sys/kernel/sched_ext/state; do kill -0 $p 2>/dev/null || break; sleep 0.2; done; \
           if kill -0 $p 2>/dev/null; then n=$((n + 1)); echo $n > {COUNT}; fi; \
           sleep {on} & wait $!; kill $p; wait $p; sleep {off} & wait $!; \
         done"
    );
    Service::start(rig, Target::Host, ["sh", "-c", &script])
}
