//! Commands of the operator's: one that prints a figure, one that may raise an alarm.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// What is read of what a command prints: its figure is at the end, and a benchmark may print all that it does.
const OUTPUT: usize = 16 << 20;

/// A command that prints a number.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) command: String,
    /// For people.
    pub(crate) name: String,
    pub(crate) lower_is_better: bool,
}

/// A command that runs, in a group of its own; dropped, all of that is killed.
pub(crate) struct Running {
    child: Child,
    output: Option<std::thread::JoinHandle<Vec<u8>>>,
    begun: Instant,
}

impl Running {
    /// Starts it by `sh -c`.
    pub(crate) fn start(command: &str, output: bool) -> anyhow::Result<Self> {
        let stdout = if output { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new("sh")
            .args(["-c", command])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout)
            .spawn()
            .with_context(|| format!("cannot run: {command}"))?;
        let output = child.stdout.take().map(|mut pipe| std::thread::spawn(move || last(&mut pipe)));
        Ok(Self { child, output, begun: Instant::now() })
    }

    /// Whether it has ended, and well.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<bool>> {
        Ok(self.child.try_wait()?.map(|status| status.success()))
    }

    /// For how long it has run.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The last number that it has printed, once it has ended.
    pub(crate) fn figure(&mut self) -> anyhow::Result<f64> {
        let status = self.child.wait()?;
        let output = self.output.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&output);
        if !status.success() {
            bail!("the command failed ({status}); its last line: {}", text.lines().last().unwrap_or("none"));
        }
        number(&text).context("the command printed no number")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The end of what is printed.
fn last(pipe: &mut impl Read) -> Vec<u8> {
    let (mut kept, mut part) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(read) = pipe.read(&mut part) {
        if read == 0 {
            break;
        }
        kept.extend_from_slice(&part[..read]);
        if kept.len() > OUTPUT {
            kept.drain(..OUTPUT / 2);
        }
    }
    kept
}

/// The last number of a text: a word, or what stands before a word's unit (`12.5ms`).
pub(crate) fn number(text: &str) -> Option<f64> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '=' | ':' | '(' | ')'));
    let parse = |word: &str| {
        let end = word.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(word.len());
        let starts = word.starts_with(|c: char| matches!(c, '0'..='9' | '.' | '-' | '+'));
        let number = word[..end].trim_end_matches(['e', 'E', '-', '+', '.']);
        starts.then(|| number.parse::<f64>().ok()).flatten().filter(|value| value.is_finite())
    };
    words.filter_map(parse).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        assert_eq!(number("tps = 1234.5 (including)\nlatency: 8.1ms\n"), Some(8.1));
        assert_eq!(number("total 3e6 ops"), Some(3e6));
        assert_eq!(number("x86 none v2"), None);
        assert_eq!(number("-0.5 end."), Some(-0.5));
        assert_eq!(number("10events in 1.e"), Some(1.0));
    }

    #[test]
    fn a_command_s_figure_and_its_failure() {
        let figure = |command| Running::start(command, true).expect("starts").figure();
        assert_eq!(figure("echo first 1; echo 42 ops/s").expect("a figure"), 42.0);
        assert!(figure("echo 3; false").is_err_and(|error| error.to_string().contains("last line: 3")));
        assert!(figure("echo none").is_err());
    }

    #[test]
    fn all_of_a_command_is_killed_with_it() {
        let begun = Instant::now();
        let running = Running::start("sleep 60 & sleep 60; wait", true).expect("starts");
        drop(running);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
