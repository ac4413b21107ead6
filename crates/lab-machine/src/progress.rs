//! How the long steps tell the user where they are.
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Receives the steps of a long task.
pub trait Progress: Sync {
    /// A new step begins, for example "unpacking 41 packages".
    fn step(&self, text: &str);
}

/// Says nothing.
#[derive(Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&self, _text: &str) {}
}

/// One line on the terminal with the time that the task has taken; silent when stderr is no terminal.
#[derive(Debug)]
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Starts the line.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{elapsed:>4} {spinner} {wide_msg}").expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }
}

impl Default for Spinner {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Spinner {
    fn step(&self, text: &str) {
        tracing::info!("{text}");
        self.0.set_message(text.to_owned());
    }
}
