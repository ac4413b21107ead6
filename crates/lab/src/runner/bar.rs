//! Progress of a run: what is done now, how much is left.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Progress;

/// Thought length of a boot in ms; only the bar depends on it.
pub(super) const BOOT: u64 = 30_000;
/// Time of a sample beside its window in ms: starting, ending, its part of the arm's set-up.
const BESIDE: u64 = 800;

/// Thought length of a sample in ms.
pub(super) fn sample(seconds: f64) -> u64 {
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
}

impl Bar {
    /// Starts the line.
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] about {eta} left  {wide_msg}");
        let bar = ProgressBar::new(1).with_style(style.expect("a valid template").progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Arc::new(Line { plain: bar.is_hidden(), bar }))
    }

    /// Says nothing, for tests.
    pub fn hidden() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self(Arc::new(Line { bar, plain: false }))
    }

    pub(super) fn expect(&self, milliseconds: u64) {
        self.0.bar.set_length(milliseconds);
    }

    pub(super) fn advance(&self, milliseconds: u64) {
        self.0.bar.inc(milliseconds);
    }

    pub(super) fn position(&self) -> u64 {
        self.0.bar.position()
    }

    /// A boot is repeated: what it had done is to do again.
    pub(super) fn back_to(&self, position: u64) {
        self.0.bar.set_position(position);
    }

    pub(super) fn set(&self, text: &str) {
        tracing::info!("{text}");
        self.0.bar.set_message(text.to_owned());
    }

    /// A step that is worth a line of a log: a new arm, a case of a long scenario.
    pub fn announce(&self, text: &str) {
        self.set(text);
        if self.0.plain {
            let left = self.0.bar.eta().as_secs();
            eprintln!("{:>4} s, about {left} s left: {text}", self.0.bar.elapsed().as_secs());
        }
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        tracing::info!("{text}");
        if self.0.plain {
            eprintln!("{text}");
        } else if !self.0.bar.is_hidden() {
            self.0.bar.suspend(|| eprintln!("{text}"));
        }
    }
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
