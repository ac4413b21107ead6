//! Whether the host can be left as it was, before anything is changed; and whether it was, afterwards.

use std::path::Path;

use entrain_host::status;
use entrain_system::Root;
use rustix::process::geteuid;

/// What is in the way of a trial; empty: it may begin.
pub(crate) fn hindrances(root: &Root, run_dir: &Path, schedules: bool) -> Vec<String> {
    let mut all = Vec::new();
    if !geteuid().is_root() {
        all.push("it takes root".to_owned());
    }
    if let Ok(daemon) = status::ask(&run_dir.join("host.sock")) {
        all.push(format!(
            "`entrain host` runs (pid {}): stop it (systemctl stop entrain-host), and start it again after the trial",
            daemon.pid
        ));
    }
    // What a killed daemon has left would be taken for how the host was.
    for record in ["weights.json", "uclamp.json"] {
        if run_dir.join(record).exists() {
            all.push(format!("a killed daemon has left settings ({record}): entrain host --restore puts them back"));
        }
    }
    if let Some(name) = other_scheduler(root) {
        all.push(format!("another sched_ext scheduler is loaded ({name}), which a trial could not give back: stop it"));
    }
    if schedules && !root.exists("sys/kernel/sched_ext/state") {
        all.push("this kernel has no sched_ext: compare two files of classes in mode observe".to_owned());
    }
    all
}

fn other_scheduler(root: &Root) -> Option<String> {
    let state = root.trimmed("sys/kernel/sched_ext/state")?;
    (state != "disabled").then(|| root.trimmed("sys/kernel/sched_ext/root/ops").unwrap_or(state))
}

/// What a trial has left behind, if anything.
pub(crate) fn left(root: &Root) -> Option<String> {
    let name = other_scheduler(root)?;
    Some(format!("the scheduler {name} is still loaded: end its process, or press Alt-SysRq-S"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn a_host_that_could_not_be_left_as_it_was_is_left_alone() {
        let machine = Machine::default();
        let (root, run) = (machine.root(), machine.path().join("run"));
        let all = |schedules| hindrances(&root, &run, schedules).join("\n");
        assert!(all(true).contains("no sched_ext") && !all(false).contains("no sched_ext"), "{}", all(false));
        machine.put("sys/kernel/sched_ext/state", "disabled\n");
        assert!(!all(true).contains("sched_ext") && left(&root).is_none());
        machine.put("sys/kernel/sched_ext/state", "enabled\n");
        machine.put("sys/kernel/sched_ext/root/ops", "lavd_1.0\n");
        machine.put("run/weights.json", "{}");
        assert!(all(true).contains("lavd_1.0") && all(true).contains("--restore"), "{}", all(true));
        assert!(left(&root).is_some_and(|left| left.contains("lavd_1.0")));
    }
}
