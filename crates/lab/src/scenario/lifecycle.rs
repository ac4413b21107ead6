//! The channel through everything that may happen to either side. In every case no host write may reach memory that the
//! guest took back (`entrain-load memcheck` looks inside the guest), the other guest must stay served, and at the end
//! nothing may be left loaded or pinned.
//!
//! `params`: `cases`, names of those to run; all of this file where nothing is said. `failures` has more, which run only
//! where they are named.

use std::time::Duration;

use entrain_lab_machine::machine::recipe::{GUEST_INITRD, GUEST_KERNEL};
use entrain_lab_machine::machine::{Command, GuestSpec, Target};
use entrain_lab_machine::{LabError, Result};
use serde::Deserialize;
use signal_hook::consts::{SIGKILL, SIGTERM};

use super::failures;
use super::interface::{Context, Scenario};
use super::memcheck::{Witness, memory_is_sound};
use super::product::{SETTLE, Service, await_served, guest_status, served, shell, unmet, wait_for};
use super::weights;
use crate::metric::Better::{Higher, Lower};
use crate::reading::Readings;
use crate::rig::Rig;

/// See the module.
pub(super) struct Lifecycle;

/// What a case has to work with.
pub(super) struct Stage<'a> {
    pub(super) rig: &'a dyn Rig,
    /// The guest that things happen to.
    pub(super) subject: usize,
    /// The guest that nothing may happen to.
    pub(super) witness: usize,
    pub(super) daemon: Option<Service>,
    pub(super) agent: Option<Service>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    #[serde(default)]
    cases: Vec<String>,
}

pub(super) type Case = fn(&mut Stage<'_>) -> Result<()>;

/// In the order in which they run; each begins and ends with both guests served.
const CASES: &[(&str, Case)] = &[
    ("agent_ends", agent_ends),
    ("agent_killed", agent_killed),
    ("daemon_ends", daemon_ends),
    ("daemon_killed", daemon_killed),
    ("guest_paused", guest_paused),
    ("forged_random", |stage| forged(stage, "random")),
    ("forged_header", |stage| forged(stage, "header")),
    ("forged_version", |stage| forged(stage, "version")),
    ("forged_vcpus", |stage| forged(stage, "vcpus")),
    ("guest_reset", guest_reset),
    ("guest_comes_and_goes", guest_comes_and_goes),
    ("guest_panics", guest_panics),
    ("guest_kexecs", guest_kexecs),
];

/// The image of a guest that carries its own kernel and image, for kexec.
const KEXEC_IMAGE: &str = "/tmp/kexec.cpio";

impl Params {
    fn chosen(&self) -> Result<Vec<&'static (&'static str, Case)>> {
        if self.cases.is_empty() {
            return Ok(CASES.iter().collect());
        }
        let find = |name: &String| {
            let case = CASES.iter().chain(failures::CASES).find(|(known, _)| known == name);
            case.ok_or_else(|| LabError::Invalid(format!("lifecycle: no case '{name}'")))
        };
        self.cases.iter().map(find).collect()
    }
}

impl Scenario for Lifecycle {
    fn name(&self) -> &'static str {
        "lifecycle"
    }

    fn run(&self, rig: &dyn Rig, context: &Context, readings: &mut Readings) -> Result<()> {
        let [subject, witness, ..] = context.guests[..] else {
            return Err(LabError::Invalid("lifecycle needs two guests".into()));
        };
        let params: Params = context.params("lifecycle")?;
        let before = Left::look(rig)?;
        let mut stage = Stage { rig, subject, witness, daemon: None, agent: None };
        let witness_agent = Service::agent(rig, witness)?;
        let watch = Witness::start(rig, witness, &[])?;
        stage.daemon = Some(Service::daemon(rig, false)?);
        stage.agent = Some(Service::agent(rig, subject)?);
        let mut failed = 0;
        let cases = params.chosen()?;
        for (number, (name, case)) in cases.iter().enumerate() {
            context.bar.announce(&format!("case {} of {}: {name}", number + 1, cases.len()));
            let outcome = stage.ready().and_then(|()| case(&mut stage)).and_then(|()| stage.ready());
            match outcome {
                Ok(()) => {}
                Err(LabError::Invalid(why)) => {
                    tracing::error!("{name}: {why}");
                    failed += 1;
                    readings.push(name, "ok", Higher, 0.0);
                    // What the next cases show is theirs.
                    if let Err(error) = stage.begin_anew() {
                        tracing::error!("after {name}: {error}");
                    }
                    continue;
                }
                Err(other) => return Err(other),
            }
            readings.push(name, "ok", Higher, 1.0);
        }
        readings.push("witness_corruptions", "1", Lower, watch.end()?);
        end(stage.agent.take())?;
        witness_agent.end(SIGTERM)?;
        end(stage.daemon.take())?;
        readings.push("left_behind", "1", Lower, before.left(rig, &[subject, witness])?);
        readings.push("cases_failed", "1", Lower, f64::from(failed));
        Ok(())
    }
}

impl Stage<'_> {
    /// Both guests are served.
    fn ready(&mut self) -> Result<()> {
        await_served(self.rig, self.witness)?;
        await_served(self.rig, self.subject).map(drop)
    }

    /// After a case that stopped midway: whatever runs of the daemon and of the subject's agent is killed, and others start.
    fn begin_anew(&mut self) -> Result<()> {
        const KILL: &str = "for p in $(pidof entrain); do kill -9 $p; done";
        shell(self.rig, Target::Host, KILL)?;
        // Their jobs have ended with them.
        (self.daemon, self.agent) = (None, None);
        shell(self.rig, Target::Host, "rm -f /run/entrain/host.sock; entrain host --restore")?;
        shell(self.rig, Target::Host, &weights::unweigh())?;
        self.daemon = Some(Service::daemon(self.rig, false)?);
        shell(self.rig, Target::Guest(self.subject), KILL)?;
        self.agent_again()
    }

    fn agent_again(&mut self) -> Result<()> {
        self.agent = Some(Service::agent(self.rig, self.subject)?);
        Ok(())
    }
}

fn end(service: Option<Service>) -> Result<()> {
    service.map_or(Ok(()), |service| service.end(SIGTERM).map(drop))
}

/// SIGTERM: the host lets go, the pages are scrubbed and freed; their memory is used again and stays as it is.
fn agent_ends(stage: &mut Stage<'_>) -> Result<()> {
    let log = stage.agent.take().ok_or_else(|| unmet("no agent"))?.end(SIGTERM)?;
    if log.contains("did not answer") {
        return Err(unmet(format!("the host did not let go: {log}")));
    }
    if guest_maps(stage.rig, &[stage.subject])? > 0.0 {
        return Err(unmet("the guest's map is still there"));
    }
    memory_is_sound(stage.rig, stage.subject)?;
    stage.agent_again()
}

/// SIGKILL: the pages stay pinned and paired, and the next agent takes them over.
fn agent_killed(stage: &mut Stage<'_>) -> Result<()> {
    stage.agent.take().ok_or_else(|| unmet("no agent"))?.end(SIGKILL)?;
    stage.rig.sleep(Duration::from_secs(3))?;
    let status = guest_status(stage.rig, stage.subject)?;
    if served(&status) == 0 || !status["agent"].is_null() {
        return Err(unmet(format!("the pages of a killed agent are not served: {status}")));
    }
    stage.agent_again()?;
    stage.ready()?;
    memory_is_sound(stage.rig, stage.subject)
}

/// SIGTERM to the daemon: it gives every page back at once.
fn daemon_ends(stage: &mut Stage<'_>) -> Result<()> {
    end(stage.daemon.take())?;
    let status = guest_status(stage.rig, stage.subject)?;
    if served(&status) != 0 {
        return Err(unmet("a guest is served by nobody"));
    }
    nothing_loaded(stage.rig)?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    Ok(())
}

/// SIGKILL to the daemon: nothing of it stays loaded, the guests notice the silence and offer anew.
fn daemon_killed(stage: &mut Stage<'_>) -> Result<()> {
    stage.daemon.take().ok_or_else(|| unmet("no daemon"))?.end(SIGKILL)?;
    nothing_loaded(stage.rig)?;
    wait_for(stage.rig, "the guest offers anew", SETTLE, || {
        Ok(guest_status(stage.rig, stage.subject)?["vcpus"][0]["link"] == "offered")
    })?;
    memory_is_sound(stage.rig, stage.subject)?;
    shell(stage.rig, Target::Host, "rm -f /run/entrain/host.sock")?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    Ok(())
}

/// A guest that is stopped for longer than any heartbeat may be silent is served again when it goes on.
fn guest_paused(stage: &mut Stage<'_>) -> Result<()> {
    stage.rig.pause_guest(stage.subject)?;
    stage.rig.sleep(Duration::from_secs(4))?;
    stage.rig.resume_guest(stage.subject)
}

/// Lies in the pages, before and while the host pairs: the daemon lives on, the other guest is served, and the liar again
/// once it stops lying.
fn forged(stage: &mut Stage<'_>, lie: &str) -> Result<()> {
    end(stage.daemon.take())?;
    let forger = Command::new(["entrain", "guest", "--forge", lie, "--forge-seconds", "6"]);
    let forger = stage.rig.start(Target::Guest(stage.subject), forger)?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    await_served(stage.rig, stage.witness)?;
    let outcome = forger.wait()?;
    if !outcome.ok() {
        return Err(unmet(format!("the forger failed: {}", String::from_utf8_lossy(&outcome.stderr))));
    }
    // What was forged in a page that stands on offer is written anew with the next offer.
    end(stage.agent.take())?;
    memory_is_sound(stage.rig, stage.subject)?;
    stage.agent_again()
}

/// A hardware reset: the next kernel uses the memory as it likes while the host may still believe in the old pages.
fn guest_reset(stage: &mut Stage<'_>) -> Result<()> {
    // Its agent goes with the guest, without a chance to say goodbye.
    stage.agent = None;
    stage.rig.reset_guest(stage.subject)?;
    memory_is_sound(stage.rig, stage.subject)?;
    stage.agent_again()
}

/// One more guest starts, pairs, and is killed.
fn guest_comes_and_goes(stage: &mut Stage<'_>) -> Result<()> {
    let spec = GuestSpec { memory_mib: 256, ..GuestSpec::new("passer-by", 2) };
    let guest = stage.rig.start_guest(&spec)?;
    let _agent = Service::agent(stage.rig, guest)?;
    await_served(stage.rig, guest)?;
    stage.rig.stop_guest(guest)
}

/// One more guest starts, pairs, and its kernel panics: no agent says goodbye, and its QEMU ends with it.
fn guest_panics(stage: &mut Stage<'_>) -> Result<()> {
    let spec = GuestSpec { memory_mib: 256, ..GuestSpec::new("panics", 2) };
    let guest = stage.rig.start_guest(&spec)?;
    let _agent = Service::agent(stage.rig, guest)?;
    await_served(stage.rig, guest)?;
    stage.rig.end_guest_by(guest, "echo c > /proc/sysrq-trigger")
}

/// One more guest starts, pairs, and jumps into a fresh kernel: no agent says goodbye, no VMM resets anything, and the new
/// kernel uses the memory as it likes.
fn guest_kexecs(stage: &mut Stage<'_>) -> Result<()> {
    // A guest has no disk: the kernel that it jumps into lies in its image.
    let pack = format!(
        "mkdir -p /tmp/kexec/boot && cd /tmp/kexec && cp {GUEST_KERNEL} boot/kernel && cp {GUEST_INITRD} boot/initrd && \
         (cat {GUEST_INITRD} && find boot | cpio -o -H newc) > {KEXEC_IMAGE} && rm -r /tmp/kexec"
    );
    shell(stage.rig, Target::Host, &pack)?;
    let spec = GuestSpec { memory_mib: 640, initrd: Some(KEXEC_IMAGE.into()), ..GuestSpec::new("kexecs", 2) };
    let guest = stage.rig.start_guest(&spec)?;
    shell(stage.rig, Target::Host, &format!("rm {KEXEC_IMAGE}"))?;
    let _agent = Service::agent(stage.rig, guest)?;
    await_served(stage.rig, guest)?;
    // By the old system call, which Debian's kernels have on every architecture, and without a digest of the segments,
    // which takes the emulator longer than the boot. The tool refuses a device tree with a seed for KASLR that the kernel
    // has not wiped, which it does not under nokaslr.
    let load = "if [ -e /sys/firmware/fdt ]; then sed s/kaslr-seed/kaslr-used/ /sys/firmware/fdt > /tmp/fdt; fdt=--dtb=/tmp/fdt; fi; \
                kexec -c -i -l /boot/kernel $fdt --initrd=/boot/initrd --reuse-cmdline && rm /boot/kernel /boot/initrd";
    shell(stage.rig, Target::Guest(guest), load)?;
    stage.rig.restart_guest_by(guest, "kexec -e")?;
    memory_is_sound(stage.rig, guest)?;
    let agent = Service::agent(stage.rig, guest)?;
    await_served(stage.rig, guest)?;
    agent.end(SIGTERM)?;
    memory_is_sound(stage.rig, guest)?;
    stage.rig.stop_guest(guest)
}

/// What the product may leave on the host machine.
pub(super) struct Left {
    programs: f64,
    maps: f64,
    pins: f64,
}

impl Left {
    pub(super) fn look(rig: &dyn Rig) -> Result<Self> {
        let count = |line: &str| -> Result<f64> {
            let text = shell(rig, Target::Host, line)?;
            text.parse().map_err(|_| unmet(format!("no number: '{line}' says {text}")))
        };
        Ok(Self {
            programs: count("bpftool prog show | grep -c '^[0-9]*:' || true")?,
            maps: count("bpftool map show | grep -c '^[0-9]*:' || true")?,
            pins: count(
                "awk '/nr_foll_pin_acquired/ { a = $2 } /nr_foll_pin_released/ { r = $2 } END { print a - r }' /proc/vmstat",
            )?,
        })
    }

    /// What there is now beyond this, and the channel's maps in `guests`; waits for it to go, since the kernel frees
    /// programs and maps some moments after their process has ended.
    pub(super) fn left(&self, rig: &dyn Rig, guests: &[usize]) -> Result<f64> {
        let mut left = f64::INFINITY;
        let gone = wait_for(rig, "nothing is left", SETTLE, || {
            left = Self::look(rig)?.beyond(self) + guest_maps(rig, guests)?;
            Ok(left == 0.0)
        });
        if left.is_infinite() {
            gone?;
        }
        Ok(left)
    }

    fn beyond(&self, before: &Self) -> f64 {
        let more = |now: f64, then: f64| (now - then).max(0.0);
        more(self.programs, before.programs) + more(self.maps, before.maps) + more(self.pins, before.pins)
    }
}

/// No program of the daemon is loaded (the kernel frees them some moments after the end).
pub(super) fn nothing_loaded(rig: &dyn Rig) -> Result<()> {
    wait_for(rig, "the daemon's programs are unloaded", SETTLE, || {
        Ok(shell(rig, Target::Host, "bpftool prog show | grep -c 'name observe_' || true")? == "0")
    })
    .map(drop)
}

/// The channel's maps in these guests.
fn guest_maps(rig: &dyn Rig, guests: &[usize]) -> Result<f64> {
    let mut maps = 0.0;
    for &guest in guests {
        let text = shell(rig, Target::Guest(guest), "bpftool map show | grep -c 'name entrain_pages' || true")?;
        maps += text.parse::<f64>().map_err(|_| unmet(format!("no number of maps: {text}")))?;
    }
    Ok(maps)
}
