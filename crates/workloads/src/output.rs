//! Prints a load's results: JSON lines for programs, aligned lines for people.

use entrain_workloads::catalog;
use entrain_workloads::wire::{Event, Figure, Histogram, Line, Reason};
use hdrhistogram::Histogram as Hdr;
use std::io::{self, Write};

/// Where results go.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    fn line(self, line: &Line, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string(line)?)?,
            false => writeln!(out, "{text}")?,
        }
        // A reader at the other end of a pipe waits for `ready` and for each second's progress.
        out.flush()
    }

    /// One figure. A load that could not measure it does not call this: there is no "not a number" in the output.
    pub(crate) fn metric(self, metric: &catalog::Metric, value: f64) -> io::Result<()> {
        self.metric_line(metric, value, None)
    }

    /// One figure of the interval that ended `at` seconds after the start.
    pub(crate) fn progress(self, metric: &catalog::Metric, value: f64, at: f64) -> io::Result<()> {
        self.metric_line(metric, value, Some(at))
    }

    fn metric_line(self, metric: &catalog::Metric, value: f64, at: Option<f64>) -> io::Result<()> {
        if !value.is_finite() {
            return Err(io::Error::other(format!(
                "{} came out as {value}; this is a fault of entrain-load",
                metric.name
            )));
        }
        let time = at.map(|at| format!("  (at {at:.1} s)")).unwrap_or_default();
        let text = format!("{:<18} {:>16} {}{time}", metric.name, round(value), metric.unit);
        let line = Line::Figure(Figure { metric: metric.name.into(), value, unit: metric.unit.into(), at });
        self.line(&line, &text)
    }

    /// A distribution; only bins that hold something are printed.
    pub(crate) fn histogram(self, name: &str, unit: &str, bins: Vec<(f64, f64, u64)>) -> io::Result<()> {
        let total: u64 = bins.iter().map(|bin| bin.2).sum();
        let mut text = format!("{name} [{unit}]");
        for (lo, hi, count) in &bins {
            let share = 100.0 * *count as f64 / total.max(1) as f64;
            text += &format!("\n  {lo:>10.3} .. {hi:<10.3} {count:>9} {share:>7.2} %");
        }
        self.line(&Line::Histogram(Histogram { histogram: name.into(), unit: unit.into(), bins }), &text)
    }

    /// Something that the reader of the figures should know.
    pub(crate) fn note(self, text: impl Into<String>) -> io::Result<()> {
        let text = text.into();
        self.line(&Line::Event(Event::Note { text: text.clone() }), &format!("note: {text}"))
    }

    pub(crate) fn ready(self) -> io::Result<()> {
        self.line(&Line::Event(Event::Ready), "ready")
    }

    pub(crate) fn start(self) -> io::Result<()> {
        self.line(&Line::Event(Event::Start), "start")
    }

    /// The last line.
    pub(crate) fn end(self, reason: Reason, seconds: f64) -> io::Result<()> {
        let text = match reason {
            Reason::Time => format!("measured for {seconds:.1} s"),
            Reason::Signal => format!("stopped by a signal after {seconds:.1} s"),
        };
        self.line(&Line::Event(Event::End { reason, seconds }), &text)
    }
}

/// For people: as many decimals as the size of the figure asks for.
fn round(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A latency histogram in nanoseconds, up to 10 minutes, three significant digits; longer ones count as 10 minutes.
pub(crate) fn latencies() -> Hdr<u64> {
    Hdr::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are constants that the library takes")
}

/// A quantile of a latency histogram in microseconds.
pub(crate) fn quantile_us(histogram: &Hdr<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_data() {
        let mut histogram = latencies();
        for us in 1..=1000u64 {
            histogram.saturating_record(us * 1000);
        }
        for (quantile, us) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = quantile_us(&histogram, quantile);
            assert!((got / us - 1.0).abs() < 0.002, "quantile {quantile}: {got} us, not {us}");
        }
    }
}
