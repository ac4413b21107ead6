//! What `status` tells.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::kernel::{Signing, signing};
use crate::known::{REMAINING, Remaining};
use crate::{live, wait};

/// Counters of the module, with what they count.
const COUNTERS: &[(&str, &str)] = &[
    ("n_calls", "calls of replaced functions"),
    ("n_remote", "caches of other CPUs drained through their lock"),
    ("n_work", "work items queued on other CPUs all the same"),
    ("n_lru", "LRU and mlock batches of other CPUs"),
    ("n_sheaf", "CPUs' slabs or sheaves flushed"),
    ("n_rcu_sheaf", "rcu sheaves looked for"),
    ("n_stock", "memory cgroups' stocks of isolated CPUs drained"),
];

/// The state of the module in the running kernel.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    release: String,
    state: &'static str,
    /// The CPUs that are drained from elsewhere.
    cpus: Option<String>,
    behind: Vec<String>,
    counters: Vec<Counter>,
    replaced: Vec<String>,
    signing: Signing,
    remaining: Vec<&'static Remaining>,
}

#[derive(Debug, Serialize)]
struct Counter {
    name: &'static str,
    meaning: &'static str,
    value: u64,
}

impl Status {
    /// Reads it under `root` (`/` but in tests).
    pub(crate) fn read(root: &Path, release: String) -> Self {
        let loaded = live::loaded(root);
        let hot = live::parameter(root, "hot").as_deref() == Some("Y");
        let transition = wait::in_transition(root);
        let state = match (loaded, hot, transition) {
            (false, ..) => "not loaded",
            (true, true, _) => "loaded hot",
            (true, false, Some(true)) => "in transition",
            (true, false, Some(false)) => "loaded",
            (true, false, None) => "loaded, but not in force",
        };
        let counters = COUNTERS.iter().filter_map(|&(name, meaning)| {
            Some(Counter { name, meaning, value: live::parameter(root, name)?.parse().ok()? })
        });
        let skips_stats = live::parameter(root, "skip_stats").as_deref() == Some("Y");
        Self {
            release,
            state,
            cpus: live::parameter(root, "cpus"),
            behind: if transition == Some(true) { wait::behind(root, true) } else { Vec::new() },
            counters: counters.collect(),
            replaced: replaced(root),
            signing: signing(root),
            remaining: REMAINING.iter().filter(|r| !(skips_stats && r.trigger.contains("stat_refresh"))).collect(),
        }
    }
}

/// livepatch names the functions in folders, "name,position".
fn replaced(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(wait::patch_dir(root).join("vmlinux")).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().to_str()?.split_once(',').map(|(name, _)| name.to_owned()))
        .collect();
    names.sort();
    names
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.release, self.state)?;
        if self.state == "in transition" {
            let who = if self.behind.is_empty() { "a work item on each CPU".into() } else { self.behind.join(", ") };
            writeln!(f, "waits for: {who}")?;
        }
        if let Some(cpus) = &self.cpus {
            writeln!(f, "CPUs drained from elsewhere: {cpus}")?;
        }
        if !self.replaced.is_empty() {
            writeln!(f, "replaced: {}", self.replaced.join(", "))?;
        }
        for c in &self.counters {
            writeln!(f, "{:>12}  {} ({})", c.value, c.meaning, c.name)?;
        }
        if self.signing == Signing::Needed {
            writeln!(f, "this machine takes only signed modules")?;
        }
        writeln!(f, "still disturbs isolated CPUs:")?;
        for r in &self.remaining {
            writeln!(f, "  {}\n    why: {}\n    do:  {}", r.trigger, r.why, r.advice)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_a_loaded_module() {
        let dir = tempfile::tempdir().unwrap();
        let parameters = dir.path().join("sys/module/entrain_qpw/parameters");
        let function = dir.path().join("sys/kernel/livepatch/entrain_qpw/vmlinux/lru_cache_disable,1");
        fs::create_dir_all(&parameters).unwrap();
        fs::create_dir_all(&function).unwrap();
        fs::write(parameters.join("hot"), "N\n").unwrap();
        fs::write(parameters.join("skip_stats"), "Y\n").unwrap();
        fs::write(parameters.join("n_remote"), "202\n").unwrap();
        fs::write(parameters.join("cpus"), "isolated\n").unwrap();
        fs::write(dir.path().join("sys/kernel/livepatch/entrain_qpw/transition"), "0\n").unwrap();
        let status = Status::read(dir.path(), "7.3.4-rt".into());
        assert_eq!(status.state, "loaded");
        assert_eq!(status.replaced, ["lru_cache_disable"]);
        assert_eq!(status.counters[0].value, 202);
        let text = status.to_string();
        assert!(text.contains("overcommit") && !text.contains("stat_refresh"), "{text}");
        assert!(text.contains("elsewhere: isolated"), "{text}");
    }

    #[test]
    fn nothing_loaded_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Status::read(dir.path(), "x".into()).state, "not loaded");
    }
}
