//! Progress of a run: what is done now, how much is left.

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

/// A line at the foot of the terminal with the time left; plain lines where stderr is no terminal.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Starts the line.
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] about {eta} left  {wide_msg}");
        let bar = ProgressBar::new(1).with_style(style.expect("a valid template").progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    /// Says nothing, for tests.
    pub fn hidden() -> Self {
        Self(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()))
    }

    pub(super) fn expect(&self, milliseconds: u64) {
        self.0.set_length(milliseconds);
    }

    pub(super) fn advance(&self, milliseconds: u64) {
        self.0.inc(milliseconds);
    }

    pub(super) fn position(&self) -> u64 {
        self.0.position()
    }

    /// A boot is repeated: what it had done is to do again.
    pub(super) fn back_to(&self, position: u64) {
        self.0.set_position(position);
    }

    pub(super) fn set(&self, text: &str) {
        tracing::info!("{text}");
        self.0.set_message(text.to_owned());
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        tracing::warn!("{text}");
        // Asked before: suspend holds the bar's lock.
        if !self.0.is_hidden() {
            self.0.suspend(|| eprintln!("{text}"));
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

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
