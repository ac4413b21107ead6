//! The channel's self-test: BPF of both sides hammers one page. Nothing may be lost, no exit may be caused, and the host
//! must read the guest's preempt count as it is.

use std::time::Duration;

use entrain_lab_machine::machine::{Command, Target};
use entrain_lab_machine::{LabError, Result};
use signal_hook::consts::SIGTERM;

use super::interface::{Context, Scenario};
use super::product::{Service, await_served, guest_status, shell, unmet};
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// Times that the page is hammered, at most, until there is enough to judge by: round trips, and preempt counts read.
const HAMMERINGS: u32 = 6;
const ROUND_TRIPS: f64 = 100_000.0;
const COUNTS_READ: f64 = 50.0;

/// See the module.
pub(super) struct Channel;

impl Scenario for Channel {
    fn name(&self) -> &'static str {
        "channel"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let guest = *context.guests.first().ok_or_else(|| LabError::Invalid("channel: no guest".into()))?;
        let seconds = context.seconds.max(1.0);
        context.bar.announce("exits without the channel");
        let hog = hog(rig, seconds)?;
        let baseline = exits_while(rig, seconds, || spin(rig, guest, seconds))?;
        hog.stop()?;
        readings.push("exits_baseline", "1/s", Lower, baseline);

        context.bar.announce("both sides hammer the page");
        let daemon = Service::daemon(rig, true)?;
        let mut all = Hammered::default();
        // What is shown are counts: a busy computer takes longer for them.
        for _ in 0..HAMMERINGS {
            let hog = self::hog(rig, seconds + 20.0)?;
            let hammered = hammer(rig, guest, seconds);
            hog.stop()?;
            all.add(&hammered?);
            if all.round_trips >= ROUND_TRIPS && all.samples >= COUNTS_READ {
                break;
            }
        }
        all.tell(baseline, readings);

        context.bar.announce("preemptions inside critical sections");
        let share = in_critical_sections(rig, guest, seconds);
        daemon.end(SIGTERM)?;
        readings.push("preempted_in_cs", "%", Lower, share?);
        Ok(())
    }
}

/// Something else that wants the pCPUs, so that vCPUs are switched out in the middle of things.
fn hog(rig: &dyn Rig, seconds: f64) -> Result<Service> {
    let time = format!("{}", seconds + 30.0);
    Service::start(rig, Target::Host, ["entrain-load", "spin", "--threads", "1", "--seconds", &time])
}

fn spin(rig: &dyn Rig, guest: usize, seconds: f64) -> Result<()> {
    let line = format!("taskset 1 entrain-load spin --json --threads 1 --seconds {seconds}");
    shell(rig, Target::Guest(guest), &line).map(drop)
}

/// The guests' VM exits per second while `work` runs for about so long.
fn exits_while(rig: &dyn Rig, seconds: f64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = exits(rig)?;
    work()?;
    Ok((exits(rig)? - before) / seconds)
}

/// All VM exits until now, from KVM's own counters.
fn exits(rig: &dyn Rig) -> Result<f64> {
    let line = "mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug; \
                cat /sys/kernel/debug/kvm/*-*/exits | awk '{ n += $1 } END { print n }'";
    let text = shell(rig, Target::Host, line)?;
    text.parse().map_err(|_| unmet(format!("KVM's count of exits is not a number: {text}")))
}

/// What hammering the page has shown.
#[derive(Default)]
struct Hammered {
    /// Additions that one side made and that are not in the sum.
    lost: f64,
    added: f64,
    round_trips: f64,
    /// Preempt counts that the host read, and how many of them were right.
    samples: f64,
    matches: f64,
    exits: f64,
    seconds: f64,
}

impl Hammered {
    fn add(&mut self, more: &Self) {
        self.lost += more.lost;
        self.added += more.added;
        self.round_trips += more.round_trips;
        self.samples += more.samples;
        self.matches += more.matches;
        self.exits += more.exits;
        self.seconds += more.seconds;
    }

    /// `baseline`: exits per second without the channel.
    fn tell(&self, baseline: f64, readings: &mut Readings) {
        let exits = self.exits / self.seconds;
        readings.push("lost", "1", Lower, self.lost);
        readings.push("added", "1", Higher, self.added);
        readings.push("round_trips", "1", Higher, self.round_trips);
        readings.push("preempt_samples", "1", Higher, self.samples);
        readings.push("preempt_matches", "%", Higher, 100.0 * self.matches / self.samples.max(1.0));
        readings.push("exits_channel", "1/s", Lower, exits);
        readings.push("exits_ratio", "1", Lower, exits / baseline.max(1.0));
    }
}

/// The self-test in the guest, once.
fn hammer(rig: &dyn Rig, guest: usize, seconds: f64) -> Result<Hammered> {
    let argv = ["entrain", "guest", "--selftest", &format!("{}", seconds.ceil())].map(str::to_owned);
    let before = exits(rig)?;
    let outcome = rig.run(Target::Guest(guest), Command::new(argv).within(Duration::from_secs_f64(seconds + 90.0)))?;
    let after = exits(rig)?;
    if !outcome.ok() {
        return Err(unmet(format!("the self-test failed: {}", String::from_utf8_lossy(&outcome.stderr))));
    }
    let text = outcome.text();
    let json: serde_json::Value =
        serde_json::from_str(text.trim()).map_err(|error| unmet(format!("no JSON ({error}): {text}")))?;
    let number = |key: &str| json[key].as_f64().ok_or_else(|| unmet(format!("the self-test tells no {key}: {text}")));
    Ok(Hammered {
        lost: number("lost")?.abs(),
        added: number("guest_added")? + number("host_added")?,
        round_trips: number("round_trips")?,
        samples: number("samples")?,
        matches: number("matches")?,
        exits: after - before,
        // Start and end of the agent are in the count, and in its time.
        seconds: number("agent_seconds")?,
    })
}

/// The share of involuntary switch-outs inside critical sections on this stock host, under a load that has many.
fn in_critical_sections(rig: &dyn Rig, guest: usize, seconds: f64) -> Result<f64> {
    let agent = Service::agent(rig, guest)?;
    await_served(rig, guest)?;
    let time = format!("{}", seconds + 5.0);
    let hogs = Service::start(rig, Target::Host, ["entrain-load", "spin", "--threads", "2", "--seconds", &time])?;
    let load = Command::new(["entrain-load", "lock", "--json", "--seconds", &format!("{seconds}")]);
    let loaded = rig.run(Target::Guest(guest), load);
    let status = guest_status(rig, guest);
    hogs.stop()?;
    agent.end(SIGTERM)?;
    loaded?;
    let status = status?;
    let sum = |key: &str| -> f64 {
        status["vcpus"].as_array().into_iter().flatten().filter_map(|vcpu| vcpu["host"][key].as_f64()).sum()
    };
    let preemptions = sum("preemptions");
    if preemptions < 1.0 {
        return Err(unmet("no involuntary switch-out was published".to_owned()));
    }
    Ok(100.0 * sum("preemptions_cs") / preemptions)
}
