//! What was there before, in a file that outlives the process: a thread id alone would not do, since they come again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use entrain_system::Root;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::attr::Attr;
use crate::left_behind;

/// One thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    /// When it began, in clock ticks since boot: with the id it is one thread and no other.
    began: u64,
    before: Attr,
}

/// The file.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    threads: BTreeMap<i32, Entry>,
}

impl Record {
    pub(super) fn open(run_dir: &Path) -> Self {
        Self { path: run_dir.join("uclamp.json"), threads: BTreeMap::new() }
    }

    /// Before a thread is clamped for the first time.
    pub(super) fn add(&mut self, tid: i32, before: &Attr) {
        let Some(began) = began(&Root::live(), tid) else { return };
        self.threads.insert(tid, Entry { began, before: *before });
        self.write();
    }

    /// After it has been put back, or has ended.
    pub(super) fn remove(&mut self, tid: i32) {
        self.threads.remove(&tid);
        self.write();
    }

    /// What an earlier process left, of threads that still live; the file is gone after that.
    pub(super) fn take_left(&self) -> Vec<(i32, Attr)> {
        let left: BTreeMap<i32, Entry> = left_behind::take(&self.path).unwrap_or_default();
        let lives = |tid: &i32, entry: &Entry| began(&Root::live(), *tid) == Some(entry.began);
        left.into_iter().filter(|(tid, entry)| lives(tid, entry)).map(|(tid, entry)| (tid, entry.before)).collect()
    }

    fn write(&self) {
        let threads = Some(&self.threads).filter(|threads| !threads.is_empty());
        if let Err(error) = left_behind::write(&self.path, threads) {
            warn!("{}: cannot write it, so that a kill -9 would leave clamps behind: {error}", self.path.display());
        }
    }
}

/// Field 22 of its stat: the name in field 2 may hold anything, so they are counted from its last bracket.
fn began(root: &Root, tid: i32) -> Option<u64> {
    let text = root.text(format!("proc/{tid}/stat"))?;
    text.rsplit_once(") ")?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_of_threads_that_live() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let own = std::process::id() as i32;
        let mut record = Record::open(dir.path());
        record.add(own, &Attr { util_min: 3, ..Attr::default() });
        record.threads.insert(i32::MAX, Entry { began: 1, before: Attr::default() });
        record.write();
        let next = Record::open(dir.path());
        let left = next.take_left();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].0, left[0].1.util_min), (own, 3));
        assert!(next.take_left().is_empty(), "it is gone");
        record.remove(own);
        record.remove(i32::MAX);
        assert!(!dir.path().join("uclamp.json").exists());
    }
}
