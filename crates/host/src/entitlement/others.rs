//! What the host's other tasks use: the time of all CPUs less that of the vCPUs. VMs cannot have it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use entrain_system::Root;

/// Between two readings of /proc/stat: its unit is 10 ms, and on a large machine it takes the kernel a millisecond.
const PERIOD: Duration = Duration::from_millis(500);
/// Nanoseconds in one tick of /proc/stat (USER_HZ is 100 on every architecture that Linux has kept).
const TICK_NS: u64 = 10_000_000;

/// The load that is no vCPU's.
#[derive(Debug)]
pub(crate) struct Others {
    at: Option<Instant>,
    /// What all CPUs had spent then, ns.
    all: u64,
    /// What the vCPUs of each VM had.
    vms: BTreeMap<u64, u64>,
    /// 1/1024 pCPU.
    load: u64,
}

impl Others {
    /// Not known yet: none.
    pub(crate) fn new() -> Self {
        Self { at: None, all: 0, vms: BTreeMap::new(), load: 0 }
    }

    /// The load now, 1/1024 pCPU. `ran`: by VM, what its vCPUs have run since some start, ns.
    pub(crate) fn load(&mut self, root: &Root, now: Instant, ran: impl Iterator<Item = (u64, u64)>) -> u64 {
        let since = self.at.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < PERIOD) {
            return self.load;
        }
        let Some(all) = root.text("proc/stat").as_deref().and_then(spent) else { return 0 };
        let vms: BTreeMap<u64, u64> = ran.collect();
        let of_vm = |(vm, now): (&u64, &u64)| now.saturating_sub(self.vms.get(vm).copied().unwrap_or(*now));
        let of_vms: u64 = vms.iter().map(of_vm).sum();
        if let Some(since) = since {
            let others = all.saturating_sub(self.all).saturating_sub(of_vms);
            self.load = (u128::from(others) * 1024 / since.as_nanos().max(1)) as u64;
        }
        (self.at, self.all, self.vms) = (Some(now), all, vms);
        self.load
    }
}

/// What all CPUs have spent with work of any kind, ns: `cpu user nice system idle iowait irq softirq …`. Guests' time is
/// part of `user`.
fn spent(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (user, nice, system, _idle, _iowait, irq, softirq) =
        (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    Some((user + nice + system + irq + softirq) * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn what_no_vcpu_ran_is_the_load_of_others() {
        let machine = Machine::new([("proc/stat", "cpu  100 10 20 5000 9 3 7 0 100 0\ncpu0 1 1 1\n")]);
        let (root, start) = (machine.root(), Instant::now());
        let mut others = Others::new();
        assert_eq!(others.load(&root, start, [(1, 0)].into_iter()), 0);
        // In a second: 150 ticks of work, of which a VM had 1 s; one that is new does not count.
        machine.put("proc/stat", "cpu  230 10 30 5000 9 8 12 0 200 0\n");
        let ran = || [(1, 1_000_000_000), (2, 77_000_000_000)].into_iter();
        assert_eq!(others.load(&root, start + PERIOD / 2, ran()), 0);
        assert_eq!(others.load(&root, start + 2 * PERIOD, ran()), 512);
    }
}
