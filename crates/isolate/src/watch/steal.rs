//! Steal: what a hypervisor took from this machine's CPUs, from `/proc/stat`.

use std::collections::BTreeMap;

use entrain_system::CpuSet;

/// ns of steal by CPU since boot, out of the text of `/proc/stat`; counted in ticks of `hz` per second.
pub(crate) fn read(text: &str, cpus: &CpuSet, hz: u64) -> BTreeMap<u32, u64> {
    let of_line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = fields.next()?.parse::<u32>().ok().filter(|cpu| cpus.contains(*cpu))?;
        let ticks: u64 = fields.nth(7)?.parse().ok()?;
        Some((cpu, ticks * (1_000_000_000 / hz.max(1))))
    };
    text.lines().filter(|line| !line.starts_with("cpu ")).filter_map(of_line).collect()
}

/// What was added since `before`.
pub(crate) fn since(before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    now.iter().map(|(cpu, ns)| (*cpu, ns.saturating_sub(before.get(cpu).copied().unwrap_or(*ns)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_number_is_steal() {
        let cpus: CpuSet = "1".parse().unwrap();
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 3 4 5 6 7 25 9 10\nintr 5\n";
        let now = read(text, &cpus, 100);
        assert_eq!(now, BTreeMap::from([(1, 250_000_000)]));
        assert_eq!(since(&BTreeMap::from([(1, 240_000_000)]), &now)[&1], 10_000_000);
    }
}
