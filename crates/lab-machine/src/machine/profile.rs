//! What the host machine's CPUs run, seen from outside: the emulator is asked for their registers again and again. That
//! sees code that runs with interrupts off, which no sampler inside the machine can, and BPF programs by their names.
//!
//! The emulator writes the program counter where a block of code ends, so a sample is exact to a few instructions. Each
//! one takes the computer's time from the machine: shares are right, and all of it is slower than without.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use entrain_lab_agent::qemu::Monitor;

use crate::{LabError, Result, cancel};

/// Between two samples, by the computer's clock: some hundred a second, as an answer takes a millisecond or two.
const PAUSE: Duration = Duration::from_millis(2);
/// The emulator answers at once, unless the computer is overloaded.
const ANSWER: Duration = Duration::from_secs(10);

/// Where CPUs were found: how often by exception level and program counter, and by the caller's address.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<Place, u64>);

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    level: u8,
    at: u64,
    /// The link register: who has called a function that calls no other.
    from: u64,
}

/// Takes samples for so long, by the computer's clock.
pub(super) fn sample(monitor: &mut Monitor, span: Duration) -> Result<Samples> {
    let failed = |e| LabError::io("QEMU's monitor", e);
    // The monitor takes this once; it refuses a second time, which changes nothing.
    let _ = monitor.run(&[r#"{"execute":"qmp_capabilities"}"#], ANSWER);
    let registers = [r#"{"execute":"human-monitor-command","arguments":{"command-line":"info registers -a"}}"#];
    let mut samples = Samples::default();
    let until = Instant::now() + span;
    while Instant::now() < until {
        cancel::check()?;
        let answer = monitor.run(&registers, ANSWER).map_err(failed)?;
        let answer: serde_json::Value = serde_json::from_str(&answer).map_err(|e| failed(e.into()))?;
        samples.add(answer["return"].as_str().unwrap_or_default());
        std::thread::sleep(PAUSE);
    }
    Ok(samples)
}

impl Samples {
    /// Adds what `info registers -a` says of AArch64 CPUs.
    fn add(&mut self, registers: &str) {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut words = registers.split_whitespace();
        let (mut at, mut from) = (None, 0);
        while let Some(word) = words.next() {
            match word.split_once('=') {
                Some(("PC", value)) => at = hex(value),
                Some(("X30", value)) => from = hex(value).unwrap_or(0),
                Some(("PSTATE", _)) => {
                    // Flags, a state of security where there is one, and the level: "-ZC- NS EL2h".
                    let level = words.by_ref().take(3).find_map(|word| word.strip_prefix("EL")?.get(..1)?.parse().ok());
                    if let (Some(at), Some(level)) = (at.take(), level) {
                        *self.0.entry(Place { level, at, from }).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
    }

    /// The kernels' functions by their share of all samples, most first, with who has called them where they call nobody;
    /// all user code is one line. `host` and `guest` are /proc/kallsyms of both; all guests are taken to be alike.
    pub fn table(&self, host: &str, guest: &str) -> String {
        let (host, guest) = (Symbols::of(host), Symbols::of(guest));
        let mut shares: BTreeMap<String, u64> = BTreeMap::new();
        for (place, count) in &self.0 {
            let function = match place.level {
                0 => "user code".to_owned(),
                1 => format!("guest: {}", guest.function(*place)),
                _ => host.function(*place),
            };
            *shares.entry(function).or_default() += count;
        }
        let all: u64 = shares.values().sum();
        let mut rows: Vec<_> = shares.into_iter().collect();
        rows.sort_by_key(|(function, count)| (std::cmp::Reverse(*count), function.clone()));
        let mut text = format!("{all} samples\n");
        for (function, count) in rows {
            let _ = writeln!(text, "{:6.2} %  {function}", count as f64 * 100.0 / all.max(1) as f64);
        }
        text
    }
}

/// A kernel's functions by their addresses.
struct Symbols<'a>(Vec<(u64, &'a str)>);

impl<'a> Symbols<'a> {
    fn of(kallsyms: &'a str) -> Self {
        let mut functions: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
        functions.sort_unstable();
        Self(functions)
    }

    fn name(&self, at: u64) -> &'a str {
        self.0.partition_point(|(start, _)| *start <= at).checked_sub(1).map_or("?", |before| self.0[before].1)
    }

    /// Where it was, and who called that: no more than the link register says.
    fn function(&self, place: Place) -> String {
        match (self.name(place.at), self.name(place.from)) {
            (at, from) if at == from => at.to_owned(),
            (at, from) => format!("{at} < {from}"),
        }
    }
}

/// A function's line of /proc/kallsyms: its address, and its name without the digest that a BPF program's has.
fn symbol(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_whitespace();
    let (at, kind, name) = (words.next()?, words.next()?, words.next()?);
    let at = u64::from_str_radix(at, 16).ok().filter(|_| "tTwW".contains(kind))?;
    let program = name.strip_prefix("bpf_prog_").and_then(|rest| rest.split_once('_'));
    Some((at, program.map_or(name, |(_digest, program)| program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "CPU#0\n PC=ffff800081271140 X00=0 X01=1\nX30=ffff800081000010  SP=0\nPSTATE=600003c9 -ZC- EL2h    \
                       FPU disabled\nCPU#1\n PC=0000aaaa00000000 X30=ffff000000000000\nPSTATE=60000005 -ZC- NS EL1h\n";

    #[test]
    fn levels_and_functions_are_told_apart() {
        let mut samples = Samples::default();
        samples.add(TWO);
        samples.add(TWO);
        let symbols =
            "ffff800081000000 t bpf_prog_3b374a_host_tick [bpf]\nffff800081271000 T leaf\nffff800081271200 d x\n";
        let guest = "0000000000000000 T early\n";
        assert_eq!(samples.table(symbols, guest), "4 samples\n 50.00 %  guest: early\n 50.00 %  leaf < host_tick\n");
    }

    #[test]
    fn strange_answers_are_no_samples() {
        let mut samples = Samples::default();
        for text in ["", "PSTATE=0", "PC=zz PSTATE=1 - EL2h", "PC=1 PSTATE=1 - ELx"] {
            samples.add(text);
        }
        assert_eq!(samples.table("", ""), "0 samples\n");
    }
}
