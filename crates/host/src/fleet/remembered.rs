//! Where guests' pages were when the last daemon ended, so that a daemon that is started anew finds them without a search.
//!
//! What stands there is a place to look first and no more: what is found there is verified like any other offer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::left_behind;
use crate::vm::Vm;

/// Guest-physical address of the first page of each VM's registration, by the VMM's process.
type Places = BTreeMap<i32, u64>;

/// The file.
#[derive(Debug)]
pub(crate) struct Remembered {
    path: PathBuf,
    /// As the daemon before left it.
    last: Places,
    written: Places,
    /// That it cannot be written has been said.
    told: bool,
}

impl Remembered {
    /// What the daemon before has written into the run folder.
    pub(crate) fn open(run_dir: &Path) -> Self {
        let path = run_dir.join("pages.json");
        let last = left_behind::take(&path).unwrap_or_default();
        Self { path, last, written: Places::new(), told: false }
    }

    /// Where the pages of process `pid` were; once, since its guest may begin anew.
    pub(super) fn take(&mut self, pid: i32) -> Option<u64> {
        self.last.remove(&pid)
    }

    /// Writes down where the pages are now, if that has changed.
    pub(super) fn follow<'a>(&mut self, vms: impl Iterator<Item = &'a Vm>) {
        let first = |vm: &Vm| Some((vm.found.tgid, *vm.registration.as_ref()?.pages.first()?));
        let now: Places = vms.filter_map(first).collect();
        if now == self.written {
            return;
        }
        // A file that cannot be written is not tried again before something changes.
        let result = left_behind::write(&self.path, Some(&now).filter(|places| !places.is_empty()));
        self.written = now;
        if let Err(error) = result
            && !std::mem::replace(&mut self.told, true)
        {
            warn!("{}: cannot write it, so the next daemon has to search for pages: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::FoundVm;
    use crate::identity::Identity;
    use crate::untrusted::tests::header;
    use crate::vm::Registration;

    fn vm(pid: i32, gpa: Option<u64>) -> Vm {
        let found = FoundVm { tgid: pid, ..FoundVm::default() };
        let mut vm = Vm::new(0, Identity::unknown(pid), format!("pid {pid}"), found);
        vm.registration =
            gpa.map(|gpa| Registration { pages: vec![gpa, gpa + 0x1000], first: header(), next: 0, epoch: 0 });
        vm
    }

    #[test]
    fn the_next_daemon_is_told_once_where_pages_were() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut daemon = Remembered::open(dir.path());
        assert_eq!(daemon.take(7), None);
        daemon.follow([vm(7, Some(0x5000)), vm(8, None), vm(9, Some(0x9000))].iter());
        // The daemon is killed here; what is written is whole.
        let mut next = Remembered::open(dir.path());
        assert_eq!((next.take(7), next.take(7), next.take(8), next.take(9)), (Some(0x5000), None, None, Some(0x9000)));
        next.follow([vm(9, Some(0x9000))].iter());
        next.follow([vm(9, None)].iter());
        let mut last = Remembered::open(dir.path());
        assert_eq!((last.take(7), last.take(9)), (None, None), "what was taken back is not remembered");
    }

    #[test]
    fn nonsense_in_the_file_is_no_place() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("pages.json"), "{\"7\": \"everywhere\"}").expect("a file");
        assert_eq!(Remembered::open(dir.path()).take(7), None);
    }
}
