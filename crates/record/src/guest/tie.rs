//! A guest's recording in its host's time.
//!
//! Both sides note what the CPU's counter (TSC, arm64's virtual counter) and their clock say at the begin and at the end,
//! and the host's kernel knows by how much a vCPU's counter is ahead of its own. So a guest's time becomes a count of its
//! counter, that a count of the host's, and that the host's time. Nothing is asked of the guest's or the host's clock
//! beside that: NTP may steer either.

use thiserror::Error;

use crate::event::{Event, Kind};
use crate::file::{Clock, Host, Recording};

/// How far apart the two counters' frequencies may be: clocks are steered by up to 500 ppm, a scaled counter by far more.
const SCALED: f64 = 0.005;

/// Why two recordings can't be tied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TieError {
    /// It is none.
    #[error("it was not recorded in a guest: run `entrain record --guest` there")]
    NoGuest,
    /// The host's has no such VM.
    #[error("no VM is called {0} or has this pid in the host's recording; there are: {1}")]
    NoVm(String, String),
    /// The host's recording does not tell.
    #[error(
        "the host's recording does not tell how {0}'s counter stands to the host's: its kernel keeps that otherwise"
    )]
    NoOffset(String),
    /// The guest or the host did not write both.
    #[error("the recording {0} has no clocks: it was not ended in good order, or an older version made it")]
    NoClocks(&'static str),
    /// KVM scales the guest's counter.
    #[error("the guest's counter does not run at the host's pace (its TSC is scaled): their times cannot be tied")]
    Scaled,
    /// They do not overlap.
    #[error("the two recordings were not made at the same time")]
    Apart,
}

/// A task of the guest on one of its vCPUs, in the host's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// The guest's number of the CPU.
    pub(crate) vcpu: u16,
    /// CLOCK_MONOTONIC of the host, ns.
    pub(crate) start: u64,
    /// The same.
    pub(crate) end: u64,
    pub(crate) tid: u32,
    pub(crate) name: String,
}

/// From a guest's time to its host's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tie {
    /// The VMM's process in the host's recording.
    pub(crate) pid: i32,
    ahead: i64,
    guest: Pace,
    host: Pace,
}

/// A clock against a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    counter: u64,
    ns: u64,
    /// Counts of the counter for each ns of the clock.
    rate: f64,
}

impl Pace {
    fn of(host: &Host) -> Option<Self> {
        let [Clock(first, began, _), .., Clock(last, ended, _)] = host.clocks[..] else { return None };
        let (counts, ns) = (last.checked_sub(first)?, ended.checked_sub(began)?);
        (counts > 0 && ns > 0).then(|| Self { counter: first, ns: began, rate: counts as f64 / ns as f64 })
    }

    fn counter_at(&self, ns: u64) -> u64 {
        let since = ns.wrapping_sub(self.ns).cast_signed() as f64 * self.rate;
        self.counter.wrapping_add_signed(since as i64)
    }

    fn ns_at(&self, counter: u64) -> u64 {
        let since = counter.wrapping_sub(self.counter).cast_signed() as f64 / self.rate;
        self.ns.wrapping_add_signed(since as i64)
    }
}

impl Tie {
    /// Of a guest's recording to that of its host, where its VM is called `vm` or has that pid.
    pub(crate) fn new(host: &Recording, vm: &str, guest: &Recording) -> Result<Self, TieError> {
        if !guest.host.guest {
            return Err(TieError::NoGuest);
        }
        let named = |known: &&crate::file::RecordedVm| known.name == vm || vm.parse() == Ok(known.pid);
        let Some(found) = host.vms.iter().find(named) else {
            let known: Vec<String> = host.vms.iter().map(|vm| format!("{} ({})", vm.name, vm.pid)).collect();
            return Err(TieError::NoVm(vm.to_owned(), known.join(", ")));
        };
        let ahead = found.counter.ok_or_else(|| TieError::NoOffset(found.name.clone()))?;
        let host_pace = Pace::of(&host.host).ok_or(TieError::NoClocks("of the host"))?;
        let guest_pace = Pace::of(&guest.host).ok_or(TieError::NoClocks("of the guest"))?;
        if (host_pace.rate / guest_pace.rate - 1.0).abs() > SCALED {
            return Err(TieError::Scaled);
        }
        let tie = Self { pid: found.pid, ahead, guest: guest_pace, host: host_pace };
        let (began, ended) = (tie.host_ns(guest.host.began_ns), tie.host_ns(guest.host.ended_ns));
        if ended < host.host.began_ns || began > host.host.ended_ns {
            return Err(TieError::Apart);
        }
        Ok(tie)
    }

    /// The host's CLOCK_MONOTONIC when the guest's is `ns`.
    fn host_ns(&self, ns: u64) -> u64 {
        self.host.ns_at(self.guest.counter_at(ns).wrapping_sub(self.ahead.cast_unsigned()))
    }

    /// Who ran on the guest's CPUs, the idle task left out, in the order of their ends.
    pub(crate) fn stays(&self, guest: &Recording) -> Vec<Stay> {
        let mut running: Vec<(u16, u64)> = Vec::new();
        let mut stays = Vec::new();
        let switches = guest.events.iter().filter(|event| event.kind == Kind::Switch);
        for Event { ns, cpu, tid, other: _, .. } in switches {
            let at = running.iter().position(|(known, _)| known == cpu);
            // Who runs first on a CPU came before the recording, which began then.
            let start = at.map_or(guest.host.began_ns, |at| running[at].1);
            if *tid != 0 && *ns >= start {
                let name = guest.names.get(tid).map_or_else(|| tid.to_string(), |(_, name)| name.clone());
                let (start, end) = (self.host_ns(start), self.host_ns(*ns));
                stays.push(Stay { vcpu: *cpu, start, end, tid: *tid, name });
            }
            match at {
                Some(at) => running[at].1 = *ns,
                None => running.push((*cpu, *ns)),
            }
        }
        stays
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::file::RecordedVm;

    /// A host whose counter runs at 1 GHz from 5 s before its clock on, and a guest that began 2 s later with a counter
    /// and a clock of 0; both were recorded for a second from the host's third on.
    pub(crate) fn recordings() -> (Recording, Recording) {
        const S: u64 = 1_000_000_000;
        let clocks = |counter: u64, ns: u64| vec![Clock(counter, ns, ns), Clock(counter + S, ns + S, ns + S)];
        let vm = RecordedVm { name: "web".into(), pid: 9, counter: Some(-(7 * S as i64)), ..RecordedVm::default() };
        let host = Host { began_ns: 3 * S, ended_ns: 4 * S, clocks: clocks(8 * S, 3 * S), ..Host::default() };
        let host = Recording { host, vms: vec![vm], ..Recording::default() };
        let about = Host { guest: true, began_ns: S, ended_ns: 2 * S, clocks: clocks(S, S), ..Host::default() };
        let switch = |ms: u64, tid, other| Event {
            ns: S + ms * 1_000_000,
            kind: Kind::Switch,
            flags: 0,
            cpu: 0,
            tid,
            other,
            arg: 0,
        };
        let events = vec![switch(1, 0, 7), switch(3, 7, 0), switch(9, 0, 8), switch(10, 8, 7)];
        let guest =
            Recording { host: about, names: [(7, (7, "db".to_owned()))].into(), events, ..Recording::default() };
        (host, guest)
    }

    #[test]
    fn a_guests_time_becomes_its_hosts() {
        let (host, guest) = recordings();
        let tie = Tie::new(&host, "web", &guest).expect("tied");
        let stays = tie.stays(&guest);
        let seen: Vec<(u64, u64, &str)> =
            stays.iter().map(|stay| (stay.start / 1_000_000, stay.end / 1_000_000, stay.name.as_str())).collect();
        assert_eq!(seen, [(3001, 3003, "db"), (3009, 3010, "8")]);
        assert_eq!(Tie::new(&host, "9", &guest), Ok(tie));
    }

    #[test]
    fn what_cannot_be_tied_is_told() {
        let told = |change: fn(&mut Recording, &mut Recording)| {
            let (mut host, mut guest) = recordings();
            change(&mut host, &mut guest);
            Tie::new(&host, "web", &guest).expect_err("refused")
        };
        assert_eq!(told(|_, guest| guest.host.guest = false), TieError::NoGuest);
        assert_eq!(told(|host, _| host.vms[0].counter = None), TieError::NoOffset("web".into()));
        assert_eq!(told(|_, guest| guest.host.clocks.truncate(1)), TieError::NoClocks("of the guest"));
        assert_eq!(told(|_, guest| guest.host.clocks[1].0 += 20_000_000), TieError::Scaled);
        assert_eq!(told(|host, _| host.vms[0].counter = Some(0)), TieError::Apart);
        assert!(told(|host, _| host.vms.clear()).to_string().contains("no VM is called web"));
    }
}
