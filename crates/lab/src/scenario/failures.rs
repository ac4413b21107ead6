//! What befalls a host in operation, to the host machine rather than to agents and guests (`lifecycle` has those): its
//! memory runs out, it is suspended, pCPUs go, guests are swapped out, saved and restored, the daemon is upgraded.
//!
//! The cases are run by `lifecycle`, with its witness and its look at what is left: `params = { cases = […] }`.

use std::time::Duration;

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::{Command, Target};
use serde_json::{Value, json};
use signal_hook::consts::{SIGKILL, SIGTERM};

use super::lifecycle::{Case, Stage, nothing_loaded};
use super::memcheck::memory_is_sound;
use super::product::{SETTLE, Service, await_served, guest_status, shell, unmet, wait_for};
use super::status;
use super::weights::{weigh, weight_of};

/// In the order in which they run; each begins and ends with both guests served.
pub(super) const CASES: &[(&str, Case)] = &[
    ("daemon_out_of_memory", daemon_out_of_memory),
    ("weights_after_kill", weights_after_kill),
    ("host_suspended", host_suspended),
    ("host_cpu_goes", host_cpu_goes),
    ("guest_swapped_out", guest_swapped_out),
    ("guest_saved_and_restored", guest_saved_and_restored),
    ("daemon_upgraded", daemon_upgraded),
    ("class_publishes_less", class_publishes_less),
];

const SNAPSHOT: &str = "/tmp/entrain-lab-snapshot";
/// A guest's memory is written to a file, or read, within this.
const SAVING: Duration = Duration::from_secs(120);

fn host(stage: &Stage<'_>, line: &str) -> Result<String> {
    shell(stage.rig, Target::Host, line)
}

fn daemon_pid(stage: &Stage<'_>) -> Result<String> {
    let seen = status::look(stage.rig)?.ok_or_else(|| unmet("the daemon is gone"))?;
    Ok(seen["pid"].to_string())
}

/// A killed daemon's guests offer anew, nothing of it is loaded, and the next one serves them.
fn next_daemon(stage: &mut Stage<'_>) -> Result<()> {
    nothing_loaded(stage.rig)?;
    wait_for(stage.rig, "the guest offers anew", SETTLE, || {
        Ok(guest_status(stage.rig, stage.subject)?["vcpus"][0]["link"] == "offered")
    })?;
    memory_is_sound(stage.rig, stage.subject)?;
    host(stage, "rm -f /run/entrain/host.sock")?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    Ok(())
}

/// The kernel's OOM killer takes the daemon, as in a cgroup whose limit it exceeds.
fn daemon_out_of_memory(stage: &mut Stage<'_>) -> Result<()> {
    let pid = daemon_pid(stage)?;
    let line = format!(
        "g=/sys/fs/cgroup; echo +memory > $g/cgroup.subtree_control && mkdir -p $g/short && echo {pid} > $g/short/cgroup.procs && \
         echo 16K > $g/short/memory.max; for n in $(seq 50); do [ -e /proc/{pid} ] || break; sleep 0.2; done; \
         grep -E '^oom_kill [1-9]' $g/short/memory.events"
    );
    // What it has already stays where it was charged: the limit is met by what it takes next, for a client.
    let asks =
        format!("sleep 1; while [ -e /proc/{pid} ]; do entrain top --once --json >/dev/null 2>&1; sleep 0.2; done");
    let asks = stage.rig.start(Target::Host, Command::shell(&asks))?;
    let killed = host(stage, &line);
    asks.wait()?;
    let daemon = stage.daemon.take().ok_or_else(|| unmet("no daemon"))?;
    daemon.end(SIGKILL)?;
    killed?;
    host(stage, "rmdir /sys/fs/cgroup/short")?;
    next_daemon(stage)
}

/// SIGKILL with weights set: they stay as the class has them until the next start, or `--restore`, puts back what was there.
fn weights_after_kill(stage: &mut Stage<'_>) -> Result<()> {
    let seen = status::look(stage.rig)?.ok_or_else(|| unmet("the daemon is gone"))?;
    let vm = seen["vms"].as_array().and_then(|vms| vms.first()).ok_or_else(|| unmet("the daemon sees no VM"))?;
    let pid = vm["pid"].to_string();
    stage.daemon.take().ok_or_else(|| unmet("no daemon"))?.end(SIGTERM)?;
    // Before a daemon with classes runs: a weight that somebody sets beside it stays his.
    host(stage, "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control")?;
    host(stage, &weigh(&pid, 130.0))?;
    let config = "mkdir -p /etc/entrain; printf 'default = \"critical\"\\n' > /etc/entrain/lab.toml";
    host(stage, config)?;
    let weight = weight_of(&pid);
    let argv = ["entrain", "host", "--config", "/etc/entrain/lab.toml"];
    stage.daemon = Some(Service::start(stage.rig, Target::Host, argv)?);
    wait_for(stage.rig, "the class's weight is set", SETTLE, || Ok(host(stage, &weight)? == "400"))?;
    stage.daemon.take().ok_or_else(|| unmet("no daemon"))?.end(SIGKILL)?;
    nothing_loaded(stage.rig)?;
    if host(stage, &weight)? != "400" {
        return Err(unmet("a killed daemon's weight is gone: who has put it back?"));
    }
    host(stage, "rm -f /run/entrain/host.sock; entrain host --restore")?;
    let back = host(stage, &weight)?;
    if back != "130" {
        return Err(unmet(format!("the weight is {back} after --restore, and was 130")));
    }
    host(stage, &super::weights::unweigh())?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    Ok(())
}

/// All processes of the host are frozen for five seconds, as when it is suspended: longer than any heartbeat may be silent.
fn host_suspended(stage: &mut Stage<'_>) -> Result<()> {
    let before = daemon_pid(stage)?;
    host(stage, "echo freezer > /sys/power/pm_test && echo freeze > /sys/power/state; echo none > /sys/power/pm_test")?;
    await_served(stage.rig, stage.subject)?;
    if daemon_pid(stage)? != before {
        return Err(unmet("another daemon than before"));
    }
    memory_is_sound(stage.rig, stage.subject)
}

/// The last pCPU goes and comes back, while guests run on all of them.
fn host_cpu_goes(stage: &mut Stage<'_>) -> Result<()> {
    let last = "/sys/devices/system/cpu/cpu$(($(nproc --all) - 1))/online";
    for online in [0, 1] {
        host(stage, &format!("echo {online} > {last}"))?;
        stage.rig.sleep(Duration::from_secs(2))?;
        await_served(stage.rig, stage.subject)?;
        await_served(stage.rig, stage.witness)?;
    }
    memory_is_sound(stage.rig, stage.subject)
}

/// The host swaps out what it can of a guest: what is pinned stays, the search brings nothing back, and an agent that starts
/// then is found.
fn guest_swapped_out(stage: &mut Stage<'_>) -> Result<()> {
    let agent = stage.agent.take().ok_or_else(|| unmet("no agent"))?;
    let swap = "insmod /usr/lib/entrain/extra/brd.ko rd_nr=1 rd_size=262144 && mkswap /dev/ram0 >/dev/null && swapon /dev/ram0";
    host(stage, swap)?;
    let out = host(
        stage,
        "b=$(awk '/^SwapFree/ {print $2}' /proc/meminfo); echo 200M > /sys/fs/cgroup/memory.reclaim || true; \
         a=$(awk '/^SwapFree/ {print $2}' /proc/meminfo); echo $((b - a))",
    )?;
    let served = await_served(stage.rig, stage.subject).and_then(|_| agent.end(SIGTERM)).and_then(|_| {
        stage.agent = Some(Service::agent(stage.rig, stage.subject)?);
        await_served(stage.rig, stage.subject)?;
        memory_is_sound(stage.rig, stage.subject)
    });
    host(stage, "swapoff /dev/ram0 && rmmod brd")?;
    served?;
    match out.parse::<u64>() {
        Ok(kib) if kib >= 16 << 10 => Ok(()),
        _ => Err(unmet(format!("hardly anything was swapped out: {out} KiB"))),
    }
}

/// A guest's state goes to a file, its QEMU ends, and another one goes on from the file: no agent notices.
fn guest_saved_and_restored(stage: &mut Stage<'_>) -> Result<()> {
    let (rig, guest) = (stage.rig, stage.subject);
    let command = |name: &str, arguments: Value| json!({"execute": name, "arguments": arguments}).to_string();
    let file = json!({"uri": format!("file:{SNAPSHOT}")});
    let ends = |what: &str| {
        wait_for(rig, what, SAVING, || {
            let text = rig.qmp(guest, &[r#"{"execute":"query-migrate"}"#])?;
            if text.contains("\"failed\"") {
                return Err(unmet(format!("{what}: {text}")));
            }
            Ok(text.contains("\"completed\""))
        })
    };
    host(stage, &format!("rm -f {SNAPSHOT}"))?;
    rig.qmp(guest, &[&command("stop", json!({})), &command("migrate", file.clone())])?;
    ends("the guest is saved")?;
    rig.begin_migration(guest, &[&command("migrate-incoming", file)])?;
    rig.end_migration(guest, true)?;
    // It stands still, which excuses that nothing is heard of it.
    rig.pause_guest(guest)?;
    // A QEMU that is told to go on while it still reads what was saved forgets it: the state that it reads stood still.
    wait_for(rig, "the guest is restored", SAVING, || {
        Ok(!rig.qmp(guest, &[r#"{"execute":"query-status"}"#])?.contains("inmigrate"))
    })?;
    host(stage, &format!("rm -f {SNAPSHOT}"))?;
    rig.resume_guest(guest)?;
    await_served(rig, guest)?;
    memory_is_sound(rig, guest)
}

/// A package brings another program in the place of the one that runs; the service manager starts it. The guests run on,
/// and are served again within seconds.
fn daemon_upgraded(stage: &mut Stage<'_>) -> Result<()> {
    let program = host(stage, "command -v entrain")?;
    host(stage, &format!("cp {program} {program}.new && mv {program}.new {program}"))?;
    // The old program is still the one that runs, and can be asked and ended.
    let running = daemon_pid(stage)?;
    if !host(stage, &format!("readlink /proc/{running}/exe"))?.ends_with("(deleted)") {
        return Err(unmet("the program that runs is not the old one"));
    }
    stage.daemon.take().ok_or_else(|| unmet("no daemon"))?.end(SIGTERM)?;
    stage.daemon = Some(Service::daemon(stage.rig, false)?);
    let took = await_served(stage.rig, stage.subject)?;
    if took > Duration::from_secs(10) {
        return Err(unmet(format!("served again only after {} s", took.as_secs())));
    }
    memory_is_sound(stage.rig, stage.subject)
}

/// A class's guests are told nothing of their neighbours, then nothing at all, then everything again.
fn class_publishes_less(stage: &mut Stage<'_>) -> Result<()> {
    const CONFIG: &str = "/etc/entrain/publish.toml";
    let (rig, guest) = (stage.rig, stage.subject);
    let set = |publish: &str| {
        let class = format!("default = \"quiet\"\\n[class.quiet]\\npublish = \"{publish}\"\\n");
        shell(rig, Target::Host, &format!("mkdir -p /etc/entrain; printf '{class}' > {CONFIG}"))
    };
    set("own")?;
    stage.daemon.take().ok_or_else(|| unmet("no daemon"))?.end(SIGTERM)?;
    stage.daemon = Some(Service::start(rig, Target::Host, ["entrain", "host", "--config", CONFIG])?);
    await_served(rig, guest)?;
    let tells_neighbours = |what: &str, wanted: bool| {
        wait_for(rig, what, SETTLE, || {
            let host = &guest_status(rig, guest)?["vcpus"][0]["host"];
            let features = host["features"].as_array().map(Vec::as_slice).unwrap_or_default();
            let told = features.iter().any(|feature| feature == "ENTITLEMENT");
            Ok(told == wanted && (wanted || host["entitlement"] == 0 && host["instant"] == false))
        })
    };
    tells_neighbours("the guest is told its own state alone", false)?;
    set("none")?;
    let reload = format!("kill -HUP {}", daemon_pid(stage)?);
    host(stage, &reload)?;
    wait_for(rig, "the guest is let go of", SETTLE, || Ok(guest_status(rig, guest)?["vcpus"][0]["link"] != "paired"))?;
    memory_is_sound(rig, guest)?;
    set("all")?;
    host(stage, &reload)?;
    await_served(rig, guest)?;
    tells_neighbours("the guest is told of its neighbours again", true)?;
    host(stage, &format!("rm {CONFIG}")).map(drop)
}
