//! Progress of a run: what is done now, how much is left.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use entrain_lab_machine::Progress;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::output;

/// Thought length of a boot in ms; only the bar depends on it.
pub(crate) const BOOT: u64 = 30_000;
/// Time of a sample beside its window in ms: starting, ending, its part of the arm's set-up.
const BESIDE: u64 = 800;

/// Thought length of a sample in ms.
pub(crate) fn sample(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64 + BESIDE
}

/// A line at the foot of the terminal with the time left; where stderr is no terminal, plain lines. Clones are the same line,
/// which is cleared with the last of them.
#[derive(Debug, Clone)]
pub struct Bar(Arc<Line>);

#[derive(Debug)]
struct Line {
    bar: ProgressBar,
    /// Whether stderr is no terminal.
    plain: bool,
    /// Time that had passed when the bar advanced last, ms.
    advanced: Arc<AtomicU64>,
}

/// Time that is left, ms: what was thought, by the pace so far, less what has passed of the step that runs. (indicatif's own
/// guess takes a step of minutes for a standstill.)
fn left(position: u64, length: u64, elapsed: u64, advanced: u64) -> u64 {
    let to_come = length.saturating_sub(position) as f64;
    let pace = if position == 0 { 1.0 } else { advanced as f64 / position as f64 };
    ((to_come * pace) as u64).saturating_sub(elapsed.saturating_sub(advanced))
}

impl Bar {
    /// Starts the line.
    pub fn new() -> Self {
        let advanced = Arc::new(AtomicU64::new(0));
        let style = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] about {left} left  {wide_msg}");
        let seen = Arc::clone(&advanced);
        let tell = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let elapsed = state.elapsed().as_millis() as u64;
            let left = left(state.pos(), state.len().unwrap_or(0), elapsed, seen.load(Ordering::Relaxed));
            // A line that cannot be drawn is not worth an end.
            let _ = write!(out, "{:#}", HumanDuration(Duration::from_millis(left)));
        };
        let style = style.expect("a valid template").with_key("left", tell).progress_chars("=> ");
        let bar = ProgressBar::new(1).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Arc::new(Line { plain: bar.is_hidden(), bar, advanced }))
    }

    /// Says nothing, for tests.
    pub fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(Arc::new(Line { bar, plain: false, advanced: Arc::default() }))
    }

    pub(crate) fn expect(&self, milliseconds: u64) {
        self.0.bar.set_length(milliseconds);
    }

    pub(crate) fn advance(&self, milliseconds: u64) {
        self.0.bar.inc(milliseconds);
        self.0.advanced.store(self.0.bar.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn position(&self) -> u64 {
        self.0.bar.position()
    }

    /// A boot is repeated: what it had done is to do again.
    pub(crate) fn back_to(&self, position: u64) {
        self.0.bar.set_position(position);
    }

    pub(crate) fn set(&self, text: &str) {
        tracing::info!("{text}");
        self.0.bar.set_message(text.to_owned());
    }

    /// A step that is worth a line of a log: a new arm, a case of a long scenario.
    pub fn announce(&self, text: &str) {
        self.set(text);
        if self.0.plain {
            let elapsed = self.0.bar.elapsed().as_millis() as u64;
            let length = self.0.bar.length().unwrap_or(0);
            let left = left(self.0.bar.position(), length, elapsed, self.0.advanced.load(Ordering::Relaxed));
            line(&format!("{:>4} s, about {} s left: {text}", elapsed / 1000, left / 1000));
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, text: &str) {
        tracing::info!("{text}");
        if self.0.plain {
            line(text);
        } else if !self.0.bar.is_hidden() {
            self.0.bar.suspend(|| line(text));
        }
    }
}

fn line(text: &str) {
    output::tell(io::stderr(), &format!("{text}\n"));
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Bar {
    fn step(&self, text: &str) {
        self.set(text);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_is_no_standstill() {
        assert_eq!(left(0, 600_000, 0, 0), 600_000);
        assert_eq!(left(100_000, 600_000, 150_000, 150_000), 750_000, "half as fast as was thought");
        assert_eq!(left(100_000, 600_000, 500_000, 150_000), 400_000, "350 s of the step have passed");
        assert_eq!(left(100_000, 600_000, 5_000_000, 150_000), 0);
    }
}
