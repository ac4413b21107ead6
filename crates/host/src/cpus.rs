//! The host's pCPUs: how many, how strong, and which share a cache.

use std::fs;
use std::path::Path;

/// One possible pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Lowest CPU of those that share its last-level cache; the kernel looks for an idle CPU among these.
    pub(crate) domain: u32,
    /// Compute capacity, 1..=1024, 1024 = the strongest kind on this host.
    pub(crate) capacity: u32,
    /// Performance level from cpufreq, 0..=1024 of its highest frequency; 1024 when unknown.
    pub(crate) level: u32,
    /// It is there.
    pub(crate) online: bool,
}

/// Parses a list of CPUs as the kernel writes it: `0-3,8`. What is not a number is left out.
pub fn parse_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last.min(first.saturating_add(65_535)));
        }
    }
    cpus
}

/// Reads the possible pCPUs, indexed by number, from `sys` (`/sys`).
pub(crate) fn read(sys: &Path) -> Vec<Cpu> {
    let folder = sys.join("devices/system/cpu");
    let list = |name: &str| parse_list(&fs::read_to_string(folder.join(name)).unwrap_or_default());
    let online = list("online");
    let count = list("possible").last().map_or(1, |last| last + 1);
    (0..count)
        .map(|cpu| {
            let own = folder.join(format!("cpu{cpu}"));
            let capacity = number(&own.join("cpu_capacity")).unwrap_or(1024);
            Cpu {
                domain: domain(&own).unwrap_or(0),
                capacity: capacity.clamp(1, 1024) as u32,
                level: level(&own.join("cpufreq")).unwrap_or(1024),
                online: online.is_empty() || online.contains(&cpu),
            }
        })
        .collect()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The last-level cache's CPUs, or the package's where the caches are not described.
fn domain(cpu: &Path) -> Option<u32> {
    let mut best: Option<(u64, u32)> = None;
    for entry in fs::read_dir(cpu.join("cache")).into_iter().flatten().flatten() {
        let level = number(&entry.path().join("level"));
        let first = fs::read_to_string(entry.path().join("shared_cpu_list")).ok();
        if let (Some(level), Some(&first)) =
            (level, first.map(|text| parse_list(&text)).as_deref().and_then(<[u32]>::first))
            && best.is_none_or(|(highest, _)| level > highest)
        {
            best = Some((level, first));
        }
    }
    best.filter(|(level, _)| *level >= 2).map(|(_, first)| first).or_else(|| {
        let text = fs::read_to_string(cpu.join("topology/package_cpus_list")).ok()?;
        parse_list(&text).first().copied()
    })
}

fn level(cpufreq: &Path) -> Option<u32> {
    let now = number(&cpufreq.join("scaling_cur_freq"))?;
    let most = number(&cpufreq.join("cpuinfo_max_freq"))?;
    (most > 0).then(|| (now * 1024 / most).min(1024) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join("devices/system/cpu").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn big_and_little_cpus_with_two_caches() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "possible", "0-3\n");
        put(dir.path(), "online", "0-2\n");
        for (cpu, shared, capacity) in [(0, "0-1", "1024"), (1, "0-1", "1024"), (2, "2-3", "446"), (3, "2-3", "446")] {
            put(dir.path(), &format!("cpu{cpu}/cache/index2/level"), "3\n");
            put(dir.path(), &format!("cpu{cpu}/cache/index2/shared_cpu_list"), &format!("{shared}\n"));
            put(dir.path(), &format!("cpu{cpu}/cpu_capacity"), &format!("{capacity}\n"));
        }
        put(dir.path(), "cpu2/cpufreq/scaling_cur_freq", "900000\n");
        put(dir.path(), "cpu2/cpufreq/cpuinfo_max_freq", "1800000\n");
        let cpus = read(dir.path());
        assert_eq!(cpus.len(), 4);
        assert_eq!(cpus[1], Cpu { domain: 0, capacity: 1024, level: 1024, online: true });
        assert_eq!(cpus[2], Cpu { domain: 2, capacity: 446, level: 512, online: true });
        assert!(!cpus[3].online);
    }

    #[test]
    fn without_description_all_share_one_domain() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "possible", "0-1\n");
        let cpus = read(dir.path());
        assert_eq!(cpus, vec![Cpu { domain: 0, capacity: 1024, level: 1024, online: true }; 2]);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_list("0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(parse_list(""), Vec::<u32>::new());
    }
}
