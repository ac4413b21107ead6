//! How many times slower than a real computer's a machine's CPUs are.
use std::time::Duration;

use entrain_workloads::{catalog, wire::Line};

use super::{Command, Machine, Target, pace::Pace};
use crate::{LabError, Result};

/// What some operations take on real hardware, ns. They are what the schedulers of both sides are made of, and they differ in
/// what they ask of an emulator: entering and leaving the kernel, changing the address space and stack, entering and
/// leaving a guest. Sources: `docs/fidelity.md`.
const HARDWARE: [(&catalog::Metric, f64); 3] =
    [(&catalog::SYSCALL, 130.0), (&catalog::SWITCH, 1_700.0), (&catalog::HYPERCALL, 600.0)];
/// Time to measure them, by the machine's clock.
const SECONDS: f64 = 0.6;
/// A machine that gets less of this computer than this share looks slower than it is.
const UNDISTURBED: f64 = 0.95;
/// Times that one is looked at, at least and at most. A neighbour on the computer's caches and memory takes no share of it
/// away and slows it all the same: 36 was found on a computer where three other boots found 23 to 25.
const LOOKS: std::ops::RangeInclusive<u32> = 3..=6;

impl Machine {
    /// The factor that a pace stands for on this machine, which has to be up and at rest.
    ///
    /// `auto` is the geometric mean of what the operations of [`HARDWARE`] take here and there, times the emulated CPUs that
    /// share one of this computer's when all are busy; at least 1, rounded to two digits.
    ///
    /// # Errors
    /// If the operations can't be measured in it.
    pub fn factor_of(&self, pace: Pace) -> Result<f64> {
        match pace {
            Pace::Times(factor) => Ok(factor),
            Pace::Auto => Ok(round(self.slowness()? * self.sharing())),
        }
    }

    /// How many times slower than hardware the machine is when nobody disturbs it: of several looks the best.
    fn slowness(&self) -> Result<f64> {
        let mut best = f64::INFINITY;
        let mut undisturbed = false;
        for look in 1..=*LOOKS.end() {
            let before = self.cpu_clock();
            best = best.min(slowness(&self.costs()?)?);
            undisturbed |= self.cpu_clock().share_since(&before) >= UNDISTURBED;
            if undisturbed && look >= *LOOKS.start() {
                break;
            }
        }
        Ok(best)
    }

    /// What the operations take now, ns.
    fn costs(&self) -> Result<Vec<(String, f64)>> {
        let names: Vec<&str> = HARDWARE.iter().map(|(metric, _)| metric.name).collect();
        let argv = ["entrain-load", "costs", "--json", "--seconds", &SECONDS.to_string(), "--only", &names.join(",")];
        let outcome = self.run(Target::Host, Command::new(argv).within(Duration::from_secs(60)))?;
        if !outcome.ok() {
            let message = String::from_utf8_lossy(&outcome.stderr).trim().to_owned();
            return Err(LabError::Remote { who: Target::Host.to_string(), message });
        }
        Ok(parse(&outcome.text()))
    }

    /// Emulated CPUs for each CPU that this process may use, at least 1.
    fn sharing(&self) -> f64 {
        let own = std::thread::available_parallelism().map_or(1, usize::from);
        (f64::from(self.spec().pcpus) / own as f64).max(1.0)
    }
}

fn parse(text: &str) -> Vec<(String, f64)> {
    let figure = |line: &str| match serde_json::from_str(line) {
        Ok(Line::Figure(figure)) => Some((figure.metric, figure.value)),
        _ => None,
    };
    text.lines().filter_map(figure).collect()
}

/// Geometric mean of measured over real. A machine without KVM has no hypercalls, so one figure may be missing.
fn slowness(costs: &[(String, f64)]) -> Result<f64> {
    let log = |(metric, real): &(&catalog::Metric, f64)| {
        let (_, measured) = costs.iter().find(|(name, _)| name == metric.name)?;
        (*measured > 0.0).then(|| (measured / real).ln())
    };
    let logs: Vec<f64> = HARDWARE.iter().filter_map(log).collect();
    if logs.len() + 1 < HARDWARE.len() {
        let message = "the machine does not tell what its operations cost: name the dilation's factor";
        return Err(LabError::Invalid(message.into()));
    }
    Ok((logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Two significant digits, at least 1: what is measured anew at each boot swings by some per cent.
fn round(factor: f64) -> f64 {
    let unit = 10f64.powf(factor.max(1.0).log10().floor() - 1.0);
    ((factor / unit).round() * unit).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_twenty_times_slower_is_found_to_be() {
        let lines: String = HARDWARE
            .iter()
            .map(|(metric, real)| {
                format!("{{\"metric\":\"{}\",\"value\":{},\"unit\":\"ns\"}}\n", metric.name, real * 20.0)
            })
            .collect();
        let costs = parse(&format!("{{\"event\":\"start\"}}\n{lines}"));
        assert!((slowness(&costs).unwrap() - 20.0).abs() < 1e-9);
        assert!((slowness(&costs[..2]).unwrap() - 20.0).abs() < 1e-9);
        assert!(slowness(&costs[1..2]).is_err());
    }

    #[test]
    fn factors_have_two_digits() {
        assert_eq!([0.3, 1.0, 1.26, 19.6, 123.4].map(round), [1.0, 1.0, 1.3, 20.0, 120.0]);
    }
}
