//! The end of a console, and the first sign of a fault in it.
use std::collections::VecDeque;

use crate::fault::FaultClass;

/// Lines kept.
const LINES: usize = 200;
/// Longest line kept, in bytes: a console without line ends must not fill the memory.
const WIDTH: usize = 1000;

/// What a console has said lately.
#[derive(Debug, Default)]
pub struct Console {
    lines: VecDeque<String>,
    partial: Vec<u8>,
    sign: Option<(FaultClass, String)>,
}

impl Console {
    /// Takes what the console wrote.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                _ => {
                    self.partial.push(byte);
                    if self.partial.len() >= WIDTH {
                        self.end_line();
                    }
                }
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        if self.sign.is_none() {
            self.sign = FaultClass::of_line(&line).map(|class| (class, line.clone()));
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The first line that told of a fault.
    pub fn sign(&self) -> Option<&(FaultClass, String)> {
        self.sign.as_ref()
    }

    /// The last `n` lines, oldest first.
    pub fn tail(&self, n: usize) -> Vec<String> {
        let partial = String::from_utf8_lossy(&self.partial).into_owned();
        let all = self.lines.iter().cloned().chain((!partial.is_empty()).then_some(partial));
        let skip = (self.lines.len() + usize::from(!self.partial.is_empty())).saturating_sub(n);
        all.skip(skip).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_found_across_pieces_and_the_tail_is_bounded() {
        let mut console = Console::default();
        for n in 0..500 {
            console.push(format!("line {n}\r\n").as_bytes());
        }
        console.push(b"Kernel panic - not sync");
        assert!(console.sign().is_none());
        console.push(b"ing: corrupted stack end detected inside scheduler\r\nEnd");
        assert_eq!(console.sign().unwrap().0, FaultClass::StackEnd);
        let tail = console.tail(3);
        assert_eq!(tail[0], "line 499");
        assert_eq!(tail[2], "End");
        console.push(&[b'x'; 1_000_000]);
        assert!(console.lines.len() <= LINES);
    }
}
