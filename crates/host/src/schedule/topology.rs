//! Which CPUs share a last-level cache: each such group has a queue of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// CPUs of the host by last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Number of possible CPUs: the highest CPU number and one.
    pub cpus: u32,
    /// Queue of each CPU, dense from 0.
    pub llc_of: Vec<u32>,
    /// Number of queues.
    pub llcs: u32,
}

/// Queues that the BPF side has room for; a host with more last-level caches shares the last queue among the rest.
pub(super) const MAX_LLCS: u32 = 64;

/// CPUs that the BPF side has room for.
pub(super) const MAX_CPUS: u32 = 1024;

impl Topology {
    /// Reads the topology below `sys` (`/sys`, or a test's folder). Where the caches are not described (many virtual
    /// machines), the CPUs of a NUMA node share a queue, and without nodes all do.
    pub fn read(sys: &Path) -> std::io::Result<Topology> {
        let possible = fs::read_to_string(sys.join("devices/system/cpu/possible"))?;
        let last = parse_list(&possible).last().copied().unwrap_or(0);
        let cpus = (last + 1).min(MAX_CPUS);
        let nodes = nodes(sys);
        let mut names: BTreeMap<String, u32> = BTreeMap::new();
        let mut llc_of = Vec::new();
        for cpu in 0..cpus {
            let name = llc(sys, cpu)
                .or_else(|| nodes.iter().position(|list| list.contains(&cpu)).map(|node| format!("node {node}")))
                .unwrap_or_default();
            let next = names.len() as u32;
            llc_of.push((*names.entry(name).or_insert(next)).min(MAX_LLCS - 1));
        }
        Ok(Topology { cpus, llc_of, llcs: (names.len() as u32).clamp(1, MAX_LLCS) })
    }
}

/// The CPUs that share this one's highest cache, as the kernel writes them.
fn llc(sys: &Path, cpu: u32) -> Option<String> {
    let cache = sys.join(format!("devices/system/cpu/cpu{cpu}/cache"));
    let mut best: Option<(u32, String)> = None;
    for entry in fs::read_dir(cache).ok()?.flatten() {
        let level: u32 = match fs::read_to_string(entry.path().join("level")).map(|text| text.trim().parse()) {
            Ok(Ok(level)) => level,
            _ => continue,
        };
        if let Ok(list) = fs::read_to_string(entry.path().join("shared_cpu_list"))
            && best.as_ref().is_none_or(|(highest, _)| level > *highest)
        {
            best = Some((level, list.trim().to_owned()));
        }
    }
    // A level-1 or level-2 cache of one core is not what tasks are kept in.
    best.filter(|(level, _)| *level >= 3).map(|(_, list)| list)
}

fn nodes(sys: &Path) -> Vec<Vec<u32>> {
    let mut nodes = Vec::new();
    for node in 0.. {
        match fs::read_to_string(sys.join(format!("devices/system/node/node{node}/cpulist"))) {
            Ok(list) => nodes.push(parse_list(&list)),
            Err(_) => return nodes,
        }
    }
    nodes
}

/// Parses the kernel's list form, `0-3,8`. What can't be read is left out.
fn parse_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse::<u32>()) {
            cpus.extend(from..=to.min(from.saturating_add(MAX_CPUS)));
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("has a folder")).expect("temporary folder");
        fs::write(path, text).expect("temporary folder");
    }

    #[test]
    fn two_caches_make_two_queues() {
        let sys = tempfile::tempdir().expect("temporary folder");
        write(sys.path(), "devices/system/cpu/possible", "0-3\n");
        for cpu in 0..4 {
            let list = if cpu < 2 { "0-1\n" } else { "2-3\n" };
            write(sys.path(), &format!("devices/system/cpu/cpu{cpu}/cache/index3/level"), "3\n");
            write(sys.path(), &format!("devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"), list);
            write(sys.path(), &format!("devices/system/cpu/cpu{cpu}/cache/index0/level"), "1\n");
            write(
                sys.path(),
                &format!("devices/system/cpu/cpu{cpu}/cache/index0/shared_cpu_list"),
                &format!("{cpu}\n"),
            );
        }
        let topology = Topology::read(sys.path()).expect("readable");
        assert_eq!(topology, Topology { cpus: 4, llc_of: vec![0, 0, 1, 1], llcs: 2 });
    }

    #[test]
    fn without_caches_the_nodes_count_and_without_nodes_all_share() {
        let sys = tempfile::tempdir().expect("temporary folder");
        write(sys.path(), "devices/system/cpu/possible", "0-2\n");
        assert_eq!(Topology::read(sys.path()).expect("readable").llc_of, [0, 0, 0]);
        write(sys.path(), "devices/system/node/node0/cpulist", "0,2\n");
        write(sys.path(), "devices/system/node/node1/cpulist", "1\n");
        assert_eq!(Topology::read(sys.path()).expect("readable").llc_of, [0, 1, 0]);
    }

    #[test]
    fn hostile_lists_end() {
        assert_eq!(parse_list("x,3-1,7\n"), [7]);
        assert!(parse_list("0-4294967295").len() <= MAX_CPUS as usize + 1);
    }
}
