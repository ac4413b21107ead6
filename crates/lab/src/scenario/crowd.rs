//! Many guests with agents at once: all are served, half of them die at the same moment, the others don't notice, and at
//! the end nothing is left.
//!
//! `params`: `guests`, how many; `vcpus`, `memory_mib`, their size.

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::GuestSpec;
use serde::Deserialize;
use signal_hook::consts::SIGTERM;

use super::interface::{Context, Scenario};
use super::lifecycle::Left;
use super::product::{SETTLE, Service, await_served, await_served_within, unmet, wait_for};
use super::status;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Crowd;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    guests: u32,
    vcpus: u32,
    memory_mib: u32,
}

impl Scenario for Crowd {
    fn name(&self) -> &'static str {
        "crowd"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params: Params = context.params("crowd")?;
        let before = Left::look(rig)?;
        let daemon = Service::daemon(rig, false)?;
        let spec = |number| GuestSpec {
            memory_mib: params.memory_mib,
            ..GuestSpec::new(format!("crowd-{number}"), params.vcpus)
        };
        let mut guests = Vec::new();
        for number in 0..params.guests {
            context.bar.announce(&format!("guest {} of {} boots", number + 1, params.guests));
            // In turn: that many kernels that boot at once look stuck to themselves (docs/lab.md).
            guests.push(rig.start_guest(&spec(number))?);
        }
        let begun = rig.now();
        let agents: Vec<Service> = guests.iter().map(|&guest| Service::agent(rig, guest)).collect::<Result<_>>()?;
        // That many agents that load their programs at once share a few emulated CPUs.
        let limit = SETTLE * params.guests;
        for (number, &guest) in guests.iter().enumerate() {
            context.bar.announce(&format!("guest {} of {} is paired", number + 1, params.guests));
            await_served_within(rig, guest, limit.saturating_sub(rig.now() - begun))?;
        }
        readings.push("served", "1", Higher, guests.len() as f64);
        readings.push("served_after", "s", Lower, (rig.now() - begun).as_secs_f64());
        let seen = status::look(rig)?.ok_or_else(|| unmet("the daemon is gone"))?;
        let (_, memory) = status::daemon(rig, &seen)?;
        readings.push("daemon_memory", "MiB", Lower, memory);

        let (die, live) = guests.split_at(guests.len() / 2);
        context.bar.announce(&format!("{} guests die", die.len()));
        for &guest in die {
            rig.stop_guest(guest)?;
        }
        for &guest in live {
            await_served(rig, guest)?;
        }
        wait_for(rig, "the daemon forgets the dead guests", SETTLE, || {
            let seen = status::look(rig)?.ok_or_else(|| unmet("the daemon is gone"))?;
            Ok(seen["vms"].as_array().is_some_and(|vms| vms.len() == live.len()))
        })?;
        readings.push("served_still", "1", Higher, live.len() as f64);

        // The agents of the dead went with them.
        for agent in agents.into_iter().skip(die.len()) {
            agent.end(SIGTERM)?;
        }
        for &guest in live {
            rig.stop_guest(guest)?;
        }
        daemon.end(SIGTERM)?;
        readings.push("left_behind", "1", Lower, before.left(rig, &[])?);
        Ok(())
    }
}
