//! `inference`: small matrix multiplications on demand, as a model that answers one request after the other.
//!
//! Requests come at a fixed rate with pauses between them, so that the CPU may slow down before each.

use crate::clock::now_ns;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase, total};
use anyhow::Result;
use entrain_workloads::catalog;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

/// Small matrix multiplications on demand: latency of each request
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rows and columns of the matrices
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u64).range(2..=1024), value_name = "N")]
    size: u64,
    /// Layers: multiplications of one request, each with the result of the one before
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000), value_name = "N")]
    layers: u64,
    /// Time from one request to the next, in milliseconds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000), value_name = "MS")]
    interval: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let phase = Phase::default();
    let counters = Counter::many(1);
    let (measured, times) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            session.enter(0);
            let mut times = latencies();
            let size = args.size as usize;
            let weights: Vec<f32> = (0..size * size).map(|i| ((i * 7 % 13) as f32 - 6.0) / size as f32).collect();
            let mut due = now_ns();
            while phase.wait_start() {
                due = (due + args.interval * 1_000_000).max(now_ns());
                std::thread::sleep(Duration::from_nanos(due.saturating_sub(now_ns())));
                let counting = phase.measuring();
                let mut values = vec![1.0; size * size];
                for _ in 0..args.layers {
                    values = multiply(&values, &weights, size);
                }
                black_box(&values);
                if counting {
                    // From when it was due: that the CPU still sleeps is a part of what the caller waits for.
                    times.saturating_record(now_ns() - due);
                    counters[0].add(1);
                }
            }
            times
        });
        let measured = session.measure(&phase, || Counter::values(&counters), |_, _| Ok(()))?;
        anyhow::Ok((measured, worker.join().expect("the worker does not panic")))
    })?;
    if !times.is_empty() {
        session.out.metric(&catalog::INFERENCE_P50, quantile_us(&times, 0.5) / 1e3)?;
        session.out.metric(&catalog::INFERENCE_P99, quantile_us(&times, 0.99) / 1e3)?;
    }
    let done = total(&measured.before, &measured.after) as f64;
    session.out.metric(&catalog::INFERENCES, done / measured.seconds)?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// a × b for square matrices in rows, then the rectifier of a layer: negative values become zero.
fn multiply(a: &[f32], b: &[f32], size: usize) -> Vec<f32> {
    let mut product = vec![0.0; size * size];
    for (row, out) in a.chunks_exact(size).zip(product.chunks_exact_mut(size)) {
        for (x, weights) in row.iter().zip(b.chunks_exact(size)) {
            for (sum, weight) in out.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        }
        for value in out {
            *value = f32::max(*value, 0.0);
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_right_and_rectified() {
        assert_eq!(multiply(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, -1.0, 0.5], 2), [0.0, 2.0, 0.0, 5.0]);
    }
}
