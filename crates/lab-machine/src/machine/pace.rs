//! How fast a machine's time passes beside the computer's, and waiting by it.
use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use entrain_lab_dilation::{Dilation, MAX_FACTOR};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is asked for: a machine whose time passes so many times slower than the computer's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As many times as its CPUs are slower than real ones: measured when it is up.
    Auto,
    /// So many times.
    Times(f64),
}

impl Default for Pace {
    /// The computer's time.
    fn default() -> Self {
        Self::Times(1.0)
    }
}

impl Pace {
    /// Whether the machine's time is the computer's.
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Times(n) => write!(f, "{n}"),
        }
    }
}

impl FromStr for Pace {
    type Err = String;
    /// `auto`, or a number of at least 1.
    fn from_str(s: &str) -> Result<Self, String> {
        if s == "auto" {
            return Ok(Self::Auto);
        }
        let number = s.parse().ok().filter(|n| (1.0..=MAX_FACTOR).contains(n));
        number.map(Self::Times).ok_or_else(|| format!("'{s}' is neither 'auto' nor a number from 1 to {MAX_FACTOR}"))
    }
}

impl Serialize for Pace {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Times(n) => to.serialize_f64(*n),
        }
    }
}

impl<'de> Deserialize<'de> for Pace {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Word(String),
        }
        let text = match Written::deserialize(from)? {
            Written::Number(n) => n.to_string(),
            Written::Word(word) => word,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A machine's clock as this side sees it. A machine that is not emulated has the computer's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Option<Arc<Dilation>>);

impl Clock {
    /// `counted`: its CPUs have the computer's time stamp counter.
    pub(crate) fn dilated(counted: bool) -> std::io::Result<Self> {
        Ok(Self(Some(Arc::new(Dilation::new(counted)?))))
    }

    pub(crate) fn dilation(&self) -> Option<&Dilation> {
        self.0.as_deref()
    }

    /// How many times slower than the computer's it runs now.
    pub(crate) fn factor(&self) -> f64 {
        self.dilation().map_or(1.0, Dilation::factor)
    }

    /// The machine's monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.dilation().map_or_else(computer_now, Dilation::now)
    }

    /// The computer's time that a span of the machine's takes at the present pace.
    pub(crate) fn wall(&self, machine: Duration) -> Duration {
        // A limit may be "for ever", which has no multiple.
        Duration::try_from_secs_f64(machine.as_secs_f64() * self.factor()).unwrap_or(Duration::MAX)
    }

    /// A limit, by the computer's time, for what takes work of the computer and waits of the machine: both in full.
    pub(crate) fn limit(&self, computer: Duration, machine: Duration) -> Duration {
        computer.saturating_add(self.wall(machine))
    }
}

fn computer_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_read_and_written() {
        assert_eq!("auto".parse(), Ok(Pace::Auto));
        assert_eq!("20".parse(), Ok(Pace::Times(20.0)));
        assert!(["0", "0.5", "-3", "NaN", "inf", "fast"].iter().all(|s| s.parse::<Pace>().is_err()));
        for pace in [Pace::Auto, Pace::Times(12.5), Pace::default()] {
            let text = serde_json::to_string(&pace).unwrap();
            assert_eq!(serde_json::from_str::<Pace>(&text).unwrap(), pace, "{text}");
        }
        assert!(serde_json::from_str::<Pace>("0").is_err());
    }

    #[test]
    fn a_span_of_the_machines_is_longer_outside() {
        let clock = Clock::dilated(false).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(clock.wall(second), second);
        assert_eq!(clock.limit(2 * second, second), 3 * second);
        assert_eq!(clock.limit(second, Duration::MAX), Duration::MAX);
        clock.dilation().unwrap().set(8.0);
        assert!((clock.wall(second).as_secs_f64() - 8.0).abs() < 1e-3);
        assert!((clock.limit(2 * second, second).as_secs_f64() - 10.0).abs() < 1e-3);
        assert_eq!(Clock::default().wall(second), second);
    }
}
