//! Daemons that start and end, one after the other, beside the same guests: each must count its vCPUs' time and keep its
//! pages for as long as it lives.
//!
//! `params`: `times`, how many daemons; every other one schedules the host. Each serves the guests for the load's seconds,
//! while all their vCPUs are busy. The daemon compares its counts with the kernel's itself, and says where they stand
//! still.

use std::thread::sleep;
use std::time::Duration;

use entrain_lab_machine::machine::Target;
use entrain_lab_machine::{Result, cancel};
use serde::Deserialize;
use signal_hook::consts::SIGTERM;

use super::interface::{Context, Scenario};
use super::log::{PAIRED, READY, first, last, since};
use super::product::{Service, await_served, unmet, wait_for};
use super::status;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// How long a daemon may take to load: the verifier works for it, on an emulated CPU, whatever else this computer does.
const LOADING: Duration = Duration::from_secs(120);

/// See the module.
pub(super) struct Restarts;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    times: u32,
}

/// What the daemons' logs and figures have shown.
#[derive(Default)]
struct Seen {
    stood_still: u32,
    lost: u32,
    /// How long each daemon took from being ready until the last guest was paired, s.
    pairing: Vec<f64>,
    /// The first lines that say so.
    lines: Vec<String>,
}

impl Seen {
    /// Adds what one daemon has logged.
    fn log(&mut self, log: &str) {
        for line in log.lines() {
            let still = line.contains("told it its entry anew");
            let lost = line.contains(": lost ") && line.contains(" pages (");
            self.stood_still += u32::from(still);
            self.lost += u32::from(lost);
            if (still || lost) && self.lines.len() < 8 {
                self.lines.push(line.to_owned());
            }
        }
    }
}

impl Scenario for Restarts {
    fn name(&self) -> &'static str {
        "restarts"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let params: Params = context.params("restarts")?;
        let mut seen = Seen::default();
        let mut beside = Vec::new();
        for &guest in &context.guests {
            beside.push(Service::agent(rig, guest)?);
            let spin = ["entrain-load", "spin", "--seconds", "1000000"];
            beside.push(Service::start(rig, Target::Guest(guest), spin)?);
        }
        for number in 0..params.times {
            cancel::check()?;
            context.bar.announce(&format!("daemon {} of {}", number + 1, params.times));
            let mode = if number % 2 == 1 { "schedule" } else { "observe" };
            serve(rig, context, mode, &mut seen)?;
        }
        for service in beside {
            service.stop()?;
        }
        for line in &seen.lines {
            context.bar.announce(line);
        }
        seen.pairing.sort_by(f64::total_cmp);
        let [.., slowest] = seen.pairing[..] else { return Err(unmet("no daemon ran")) };
        readings.push("pairing", "ms", Lower, 1e3 * seen.pairing[seen.pairing.len() / 2]);
        readings.push("pairing_slowest", "ms", Lower, 1e3 * slowest);
        readings.push("daemons", "1", Higher, f64::from(params.times));
        readings.push("stood_still", "1", Lower, f64::from(seen.stood_still));
        readings.push("lost", "1", Lower, f64::from(seen.lost));
        Ok(())
    }
}

/// The life of one daemon.
fn serve(rig: &dyn Rig, context: &Context, mode: &str, seen: &mut Seen) -> Result<()> {
    let daemon = Service::start(rig, Target::Host, ["entrain", "host", "--mode", mode])?;
    let mut before = None;
    wait_for(rig, "the daemon serves", LOADING, || {
        before = status::look(rig)?;
        Ok(before.is_some())
    })?;
    for &guest in &context.guests {
        await_served(rig, guest)?;
    }
    // By the machine's clock, as the daemon compares.
    let end = rig.now() + Duration::from_secs_f64(context.seconds);
    while rig.now() < end {
        cancel::check()?;
        sleep(Duration::from_millis(100));
    }
    let after = status::look(rig)?.ok_or_else(|| unmet("the daemon has ended"))?;
    let ran = before.as_ref().map_or(0, |before| status::vms(before, &after).len());
    if ran < context.guests.len() {
        seen.stood_still += 1;
        seen.lines.push(format!("of {} VMs {ran} ran: {}", context.guests.len(), status::brief(&after)));
    }
    let log = daemon.end(SIGTERM)?;
    seen.pairing.push(since(first(&log, READY)?, last(&log, PAIRED)?));
    seen.log(&log);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_is_read_from_the_log() {
        let mut seen = Seen::default();
        seen.log("found a (pid 7): 4 vCPUs\na: its agent wants 4 pages back; let go of them\n");
        assert_eq!((seen.stood_still, seen.lost, seen.lines.len()), (0, 0, 0));
        seen.log(
            "WARN a: the kernel says that thread 9 ran for 2000 ms more, BPF has counted 0 ms of that; told it its \
             entry anew. Please report this line\n INFO a: lost 4 pages (a word was not what the host had left there)\n",
        );
        assert_eq!((seen.stood_still, seen.lost, seen.lines.len()), (1, 1, 2));
    }
}
