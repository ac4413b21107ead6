//! How far a sweep is: a bar at the foot of a terminal; elsewhere a line a minute.

use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is done of so many runs.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When a line is due; `None`: there is a bar.
    line: Option<Mutex<Instant>>,
    began: Instant,
}

const LINE: Duration = Duration::from_secs(60);

impl Progress {
    pub(crate) fn new(runs: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal && runs > 1 { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = "{elapsed:>4} [{bar:24}] {pos} of {len} runs, about {eta} left  {wide_msg}";
        let style = ProgressStyle::with_template(style).expect("a valid template").progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(runs as u64), target).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        let began = Instant::now();
        Self { bar, line: (!terminal).then(|| Mutex::new(began + LINE)), began }
    }

    /// One more is done.
    pub(crate) fn done(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
        let Some(line) = &self.line else { return };
        let mut due = line.lock().expect("no thread has failed");
        if Instant::now() >= *due {
            *due = Instant::now() + LINE;
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{:>5} s: {done} of {all} runs", self.began.elapsed().as_secs());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
