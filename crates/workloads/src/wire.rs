//! The JSON lines that every load prints on its standard output, one object a line.
//!
//! | line | when |
//! |---|---|
//! | `{"event":"ready"}` | set-up is done; with `--ready` the load now waits to be started |
//! | `{"event":"start"}` | the measurement begins (warm-up is over) |
//! | `{"event":"note","text":…}` | something that the reader of the figures should know |
//! | `{"metric":…,"value":…,"unit":…}` | one figure for the whole measurement |
//! | the same with `"at":s` | one figure for the interval that ended `s` seconds after the start |
//! | `{"histogram":…,"unit":…,"bins":[[lo,hi,count],…]}` | bins that hold something, in order |
//! | `{"event":"end","reason":…,"seconds":…}` | the last line of every run that ended in order |
//!
//! A reader skips lines of a kind that it does not know; output without an `end` line was cut off.

use serde::{Deserialize, Serialize};

/// One line of a load's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A figure.
    Figure(Figure),
    /// A distribution.
    Histogram(Histogram),
    /// A step in the life of the load.
    Event(Event),
}

/// A figure of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name, as in the catalogue.
    pub metric: String,
    /// Its value, always finite.
    pub value: f64,
    /// Unit, as in the catalogue.
    pub unit: String,
    /// Seconds since the start of the measurement, if the figure is for an interval inside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
}

/// A distribution: bins `[lo, hi)` in `unit`, with a count each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// What is distributed.
    pub histogram: String,
    /// Unit of the bounds.
    pub unit: String,
    /// Non-empty bins in rising order: lower bound, upper bound, count.
    pub bins: Vec<(f64, f64, u64)>,
}

/// A step in the life of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Set-up is done.
    Ready,
    /// The measurement begins.
    Start,
    /// Something that the reader of the figures should know.
    Note {
        /// One sentence.
        text: String,
    },
    /// The run ended in order; nothing follows.
    End {
        /// Why it ended.
        reason: Reason,
        /// Length of the measurement in seconds.
        seconds: f64,
    },
}

/// Why a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The asked-for time is over.
    Time,
    /// SIGTERM or SIGINT came first: the figures are those of the time until then.
    Signal,
}

/// Page numbers that `entrain-load isolated hold` writes to its report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Plain anonymous pages, touched a moment ago.
    pub plain: Vec<u64>,
    /// The same of locked memory.
    pub locked: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_forms_are_what_is_written() {
        let lines = [
            (Line::Event(Event::Ready), r#"{"event":"ready"}"#),
            (Line::Event(Event::Note { text: "x".into() }), r#"{"event":"note","text":"x"}"#),
            (
                Line::Event(Event::End { reason: Reason::Signal, seconds: 1.5 }),
                r#"{"event":"end","reason":"signal","seconds":1.5}"#,
            ),
            (
                Line::Figure(Figure { metric: "ops_per_s".into(), value: 2.0, unit: "1/s".into(), at: None }),
                r#"{"metric":"ops_per_s","value":2.0,"unit":"1/s"}"#,
            ),
            (
                Line::Histogram(Histogram { histogram: "h".into(), unit: "ms".into(), bins: vec![(0.0, 0.5, 3)] }),
                r#"{"histogram":"h","unit":"ms","bins":[[0.0,0.5,3]]}"#,
            ),
        ];
        for (line, text) in lines {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);
        }
    }

    proptest! {
        /// To the last but one digit: the parser trades the last one for speed.
        #[test]
        fn metrics_survive_the_wire(name in "[a-z_]{1,20}", value in -1e18f64..1e18, at in proptest::option::of(0u32..1000)) {
            let at = at.map(f64::from);
            let line = Line::Figure(Figure { metric: name.clone(), value, unit: "1/s".into(), at });
            let back: Line = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
            let Line::Figure(back) = back else { panic!("{back:?}") };
            prop_assert_eq!((back.metric, back.unit, back.at), (name, "1/s".to_owned(), at));
            prop_assert!((back.value - value).abs() <= value.abs() * 1e-15);
        }

        #[test]
        fn any_text_is_a_line_or_an_error(text in "\\PC{0,200}") {
            let _ = serde_json::from_str::<Line>(&text);
        }
    }
}
