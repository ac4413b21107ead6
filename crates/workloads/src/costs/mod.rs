//! `costs`: what single operations of a CPU and its kernel cost.
//!
//! What it is for: an emulated machine whose clock is dilated (`docs/lab.md`) is as fast as a computer only where its
//! operations take what they take there. Each figure is a median over batches, so that an interruption counts once.
//! Each has its published counterpart in `docs/fidelity.md`.

mod exit;
mod local;
mod remote;

use crate::clock::now_ns;
use crate::session::{Common, Session};
use anyhow::Result;
use entrain_workloads::catalog::{self, Metric};
use entrain_workloads::wire::Reason;
use std::process::ExitCode;

/// What a system call, a page fault, a switch, an interrupt to another CPU, a hypercall and a copy cost here
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these figures, by their names
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    only: Vec<String>,
}

/// Time for one figure: takes batches until it is over.
#[derive(Clone, Copy)]
struct Slice {
    ns: u64,
}

impl Slice {
    /// The median of what `batch` returns, taken again and again until the slice is over, at least three times.
    fn median(self, mut batch: impl FnMut() -> Result<f64>) -> Result<f64> {
        let end = now_ns() + self.ns;
        // The first fills caches and translations; it does not count.
        batch()?;
        let mut values = Vec::new();
        while values.len() < 3 || now_ns() < end {
            values.push(batch()?);
        }
        values.sort_by(f64::total_cmp);
        Ok(values[values.len() / 2])
    }

    /// The median time of one of `count` operations, ns.
    fn per_operation(self, count: u32, mut operations: impl FnMut(u32) -> Result<()>) -> Result<f64> {
        self.median(|| {
            let begin = now_ns();
            operations(count)?;
            Ok((now_ns() - begin) as f64 / f64::from(count))
        })
    }
}

type Measure = fn(&Session, Slice) -> Result<Option<f64>>;

/// Each figure, and who measures it; `None` where this machine has not what it needs.
const ALL: &[(&Metric, Measure)] = &[
    (&catalog::SYSCALL, local::syscall),
    (&catalog::PAGE_FAULT, local::page_fault),
    (&catalog::SWITCH, local::switch),
    (&catalog::PROCESS_SWITCH, local::process_switch),
    (&catalog::COPY, local::copy),
    (&catalog::TIMER_LATE, local::timer),
    (&catalog::CLOCK_READ, local::clock),
    (&catalog::CLOCK_READ_BOTH, remote::clock),
    (&catalog::IPI_RUNNING, remote::running),
    (&catalog::WAKE_HALTED, remote::halted),
    (&catalog::HYPERCALL, exit::hypercall),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let known: Vec<&str> = ALL.iter().map(|(metric, _)| metric.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        anyhow::bail!("no figure is called {unknown}: there are {}", known.join(", "));
    }
    let wanted = |metric: &Metric| args.only.is_empty() || args.only.iter().any(|name| name == metric.name);
    let wanted: Vec<_> = ALL.iter().filter(|(metric, _)| wanted(metric)).collect();
    session.wait_ready()?;
    let begin = now_ns();
    session.out.start()?;
    let slice = Slice { ns: (args.common.seconds * 1e9 / wanted.len() as f64) as u64 };
    for (metric, measure) in wanted {
        match measure(&session, slice)? {
            Some(value) => session.out.metric(metric, value)?,
            None => session.out.note(format!("{} cannot be measured on this machine", metric.name))?,
        }
    }
    session.out.end(Reason::Time, (now_ns() - begin) as f64 / 1e9)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_the_first_and_one_interruption() {
        let mut values = [1e9, 3.0, 1e6, 2.0].into_iter();
        let median = Slice { ns: 0 }.median(|| Ok(values.next().expect("three are enough"))).unwrap();
        assert!((median - 3.0).abs() < f64::EPSILON);
    }

    #[test]
    fn what_one_cpu_can_measure_is_measured() {
        let session = Session::new(&Common::for_tests()).unwrap();
        for (metric, measure) in ALL.iter().filter(|(metric, _)| metric.name != "hypercall") {
            let value = measure(&session, Slice { ns: 1_000_000 }).unwrap();
            assert!(value.is_none_or(|v| v > 0.0 && v < 1e9), "{}: {value:?}", metric.name);
        }
    }
}
