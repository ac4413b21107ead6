//! Memory: who drains, scans or unmaps behind a real-time task's back.

use super::change::Change;
use super::finding::{Finding, State};
use super::system::System;

pub(super) fn check(system: &System) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(huge_pages(system));
    all.extend(khugepaged(system));
    all.extend(ksm(system));
    all.extend(compaction(system));
    all
}

fn huge_pages(system: &System) -> Option<Finding> {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let found = system.root.chosen(path)?;
    let change = Change::Write { path: path.to_owned(), old: found.clone(), new: "madvise".to_owned() };
    Some(
        Finding::new("transparent huge pages", State::when(found != "always"), found, "madvise or never")
            .because(
                "khugepaged collapses pages of everybody: it drains caches of all CPUs and interrupts them to flush TLBs",
                "Documentation/admin-guide/mm/transhuge.rst",
            )
            .with(vec![change]),
    )
}

fn khugepaged(system: &System) -> Option<Finding> {
    let path = "sys/kernel/mm/transparent_hugepage/khugepaged/defrag";
    let found = system.root.trimmed(path)?;
    let off = system.root.chosen("sys/kernel/mm/transparent_hugepage/enabled").as_deref() == Some("never");
    let fix = Change::write(&system.root, path, "0");
    Some(
        Finding::new("khugepaged", State::when(off || found == "0"), format!("defrag={found}"), "defrag=0")
            .because("it compacts memory to make huge pages", "Documentation/admin-guide/mm/transhuge.rst")
            .with(fix.into_iter().collect()),
    )
}

fn ksm(system: &System) -> Option<Finding> {
    let path = "sys/kernel/mm/ksm/run";
    let found = system.root.trimmed(path)?;
    let fix = Change::write(&system.root, path, "0");
    Some(
        Finding::new("KSM", State::when(found != "1"), found, "0")
            .because(
                "it write-protects pages of running guests, drains caches of all CPUs, and merged pages fault on the next write",
                "Documentation/admin-guide/mm/ksm.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

fn compaction(system: &System) -> Option<Finding> {
    let path = "proc/sys/vm/compaction_proactiveness";
    let found = system.root.trimmed(path)?;
    let fix = Change::write(&system.root, path, "0");
    Some(
        Finding::new("proactive compaction", State::when(found == "0"), found, "0")
            .because(
                "compaction in the background drains caches of all CPUs",
                "Documentation/admin-guide/sysctl/vm.rst",
            )
            .with(fix.into_iter().collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;

    #[test]
    fn settings_of_memory() {
        let thp = "sys/kernel/mm/transparent_hugepage/enabled";
        let (_dir, root) = tree(&[
            (thp, "[always] madvise never"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1"),
            ("sys/kernel/mm/ksm/run", "1"),
            ("proc/sys/vm/compaction_proactiveness", "20"),
        ]);
        let system = System::read(root.clone(), None);
        let all = check(&system);
        assert!(all.iter().all(|one| one.state == State::Todo), "{all:?}");
        assert_eq!(all[0].fix[0].reverse().command(), format!("echo always > /{thp}"));
        root.write(thp, "always madvise [never]").unwrap();
        let all = check(&system);
        assert_eq!((all[0].state, all[1].state), (State::Ok, State::Ok), "nobody to collapse");
    }
}
