//! What the vCPUs of a recording wanted, apart from what they got: how long they computed between two halts, and how
//! long they were halted. Waits for a pCPU are left out: the simulated schedulers make their own.

use entrain_record::analysis::{Analysis, Reason, Segment, Sort, State, VcpuTime};

/// What one vCPU did, and wants again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Halted so long before it computed first, ns.
    pub first_halt: u64,
    /// Computed so long, then halted so long, ns. The last halt is 0 where the recording ends amid computing.
    pub pairs: Vec<(u64, u64)>,
}

/// Where the time of a vCPU went, as shares of what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Shares {
    /// On a pCPU; polling in KVM is a part of it, as it is of the pCPU's time.
    pub ran: f64,
    /// Runnable without one.
    pub waited: f64,
    /// Halted.
    pub halted: f64,
    /// What part of the recording is known.
    pub known: f64,
}

/// Adjoining times of one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Computes,
    Halted,
    Waits,
}

/// The vCPU's times by kind, in order: those that it spun for a sibling while it had no pCPU are waits.
fn kinds(vcpu: &VcpuTime) -> Vec<(Kind, u64)> {
    let mut gaps = vcpu.waits.iter().filter(|wait| wait.reason == Reason::GaveWay).peekable();
    let mut kinds = Vec::new();
    for Segment { start, end, state } in &vcpu.segments {
        match state {
            State::Running => kinds.push((Kind::Computes, end - start)),
            State::Polling | State::Halted => kinds.push((Kind::Halted, end - start)),
            State::Ready | State::Holder => kinds.push((Kind::Waits, end - start)),
            State::Unknown => {}
            State::Sibling => {
                let mut without = 0;
                while let Some(gap) = gaps.peek().filter(|gap| gap.start_ns < *end) {
                    let until = gap.start_ns + gap.ns;
                    without += until.min(*end).saturating_sub(gap.start_ns.max(*start));
                    if until > *end {
                        break;
                    }
                    gaps.next();
                }
                kinds.push((Kind::Computes, end - start - without));
                kinds.push((Kind::Waits, without));
            }
        }
    }
    kinds
}

impl Demand {
    /// Of a recorded vCPU, at most so many pairs; also whether there were more.
    pub fn of(vcpu: &VcpuTime, most: usize) -> (Self, bool) {
        let mut demand = Self::default();
        let mut more = false;
        for (kind, ns) in kinds(vcpu).into_iter().filter(|(_, ns)| *ns > 0) {
            let full = demand.pairs.len() == most;
            match (kind, demand.pairs.last_mut()) {
                (Kind::Waits, _) => {}
                (Kind::Halted, None) => demand.first_halt += ns,
                (Kind::Halted, Some((_, halted))) => *halted += ns,
                (Kind::Computes, Some((computed, 0))) => *computed += ns,
                (Kind::Computes, _) if full => {
                    more = true;
                    break;
                }
                (Kind::Computes, _) => demand.pairs.push((ns, 0)),
            }
        }
        (demand, more)
    }
}

impl Shares {
    /// Of some recorded vCPUs together.
    pub fn of<'a>(vcpus: impl Iterator<Item = &'a VcpuTime>) -> Self {
        let (mut ran, mut waited, mut halted, mut all) = (0, 0, 0, 0);
        for vcpu in vcpus {
            all += vcpu.times.total();
            let polled = vcpu.times.of(State::Polling);
            for (kind, ns) in kinds(vcpu) {
                match kind {
                    Kind::Computes => ran += ns,
                    Kind::Waits => waited += ns,
                    Kind::Halted => halted += ns,
                }
            }
            (ran, halted) = (ran + polled, halted - polled);
        }
        let known = (ran + waited + halted).max(1) as f64;
        Self {
            ran: ran as f64 / known,
            waited: waited as f64 / known,
            halted: halted as f64 / known,
            known: if all == 0 { 0.0 } else { (ran + waited + halted) as f64 / all as f64 },
        }
    }
}

/// Somebody of the host who ran on a pCPU while vCPUs waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disturber {
    /// For people.
    pub name: String,
    /// Where.
    pub cpu: u32,
    /// It belongs to that pCPU alone.
    pub bound: bool,
    /// From when until when, ns since the begin; in order, apart.
    pub runs: Vec<(u64, u64)>,
}

/// All that were seen, the one that ran most first.
pub fn disturbers(analysis: &Analysis) -> Vec<Disturber> {
    let mut all: std::collections::BTreeMap<(&str, u16), Disturber> = Default::default();
    let host = |sort| matches!(sort, Sort::Vmm | Sort::Task | Sort::Kernel);
    for stay in analysis.occupancy.iter().filter(|stay| host(stay.who.sort)) {
        let one = all.entry((&stay.who.name, stay.cpu)).or_insert_with(|| Disturber {
            name: stay.who.name.clone(),
            cpu: stay.cpu.into(),
            bound: stay.who.sort == Sort::Kernel,
            runs: Vec::new(),
        });
        one.runs.push((stay.start, stay.end));
    }
    let mut all: Vec<_> = all.into_values().collect();
    for one in &mut all {
        one.runs.sort_unstable();
        one.runs.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.ran()));
    all
}

impl Disturber {
    /// How long it ran in all, ns.
    pub fn ran(&self) -> u64 {
        self.runs.iter().map(|(from, until)| until - from).sum()
    }
}
