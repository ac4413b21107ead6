//! What a load printed: figures, distributions, notes, and whether it came to its end.
//!
//! The form is that of [`entrain_workloads::wire`]; which loads and metrics there are stands in
//! [`entrain_workloads::catalog`]. Any other command may stand in for a load if it prints such lines.

pub use entrain_workloads::catalog::{LOADS, Load, load};
use entrain_workloads::wire::{Event, Figure, Histogram, Line, Reason};

/// All that a load printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Printed {
    /// Figures for the whole measurement, in the order printed.
    pub figures: Vec<Figure>,
    /// Figures for intervals inside it.
    pub progress: Vec<Figure>,
    /// Distributions.
    pub histograms: Vec<Histogram>,
    /// What the reader of the figures should know.
    pub notes: Vec<String>,
    /// Why it ended and after how many measured seconds; None if it printed no end: another command than
    /// `entrain-load`, or output that was cut off.
    pub end: Option<(Reason, f64)>,
}

/// What is wrong with a load's output.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum OutputError {
    /// A line begins like JSON and is none.
    #[error("printed a broken line: {line}")]
    Broken {
        /// The line, shortened.
        line: String,
    },
    /// The metric is not among the figures.
    #[error("printed no metric '{wanted}', but: {known}")]
    Missing {
        /// What was looked for.
        wanted: String,
        /// What is there instead.
        known: String,
    },
    /// The metric has another unit than it should.
    #[error("printed '{metric}' in {printed}, not in {wanted}")]
    Unit {
        /// The metric.
        metric: String,
        /// Its unit as printed.
        printed: String,
        /// Its unit as declared.
        wanted: String,
    },
}

impl Printed {
    /// Reads a load's standard output. Text and JSON of a kind that is not known are skipped; a line that begins
    /// like JSON and is none is an error: the output was mixed up or cut.
    pub fn parse(output: &str) -> Result<Self, OutputError> {
        let mut printed = Self::default();
        for line in output.lines().map(str::trim).filter(|line| line.starts_with('{')) {
            match serde_json::from_str(line) {
                Ok(Line::Figure(figure)) if figure.at.is_some() => printed.progress.push(figure),
                Ok(Line::Figure(figure)) => printed.figures.push(figure),
                Ok(Line::Histogram(histogram)) => printed.histograms.push(histogram),
                Ok(Line::Event(Event::Note { text })) => printed.notes.push(text),
                Ok(Line::Event(Event::End { reason, seconds })) => printed.end = Some((reason, seconds)),
                Ok(Line::Event(_)) => {}
                Err(_) if is_foreign(line) => {}
                Err(_) => return Err(OutputError::Broken { line: line.chars().take(200).collect() }),
            }
        }
        Ok(printed)
    }

    /// A figure by name; the last one, if it was printed more than once. An empty unit, printed or wanted, fits all.
    pub fn figure(&self, metric: &str, unit: &str) -> Result<f64, OutputError> {
        let Some(found) = self.figures.iter().rev().find(|figure| figure.metric == metric) else {
            let known: Vec<&str> = self.figures.iter().map(|figure| figure.metric.as_str()).collect();
            let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
            return Err(OutputError::Missing { wanted: metric.into(), known });
        };
        if !unit.is_empty() && !found.unit.is_empty() && found.unit != unit {
            let (printed, wanted) = (found.unit.clone(), unit.into());
            return Err(OutputError::Unit { metric: metric.into(), printed, wanted });
        }
        Ok(found.value)
    }
}

/// A whole JSON object without any of the names that our lines begin with: a later version's, or another program's.
fn is_foreign(line: &str) -> bool {
    let Ok(serde_json::Value::Object(object)) = serde_json::from_str(line) else { return false };
    let known_event = ["ready", "start", "note", "end"].map(|event| object.get("event") == Some(&event.into()));
    !object.contains_key("metric") && !object.contains_key("histogram") && !known_event.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OUTPUT: &str = r#"{"event":"ready"}
some text
{"event":"start"}
{"event":"note","text":"careful"}
{"event":"later","x":1}
{"metric":"iterations_per_s","value":5.0,"unit":"1/s","at":1.0}
{"metric":"iterations_per_s","value":7.0,"unit":"1/s"}
{"histogram":"interval","unit":"ms","bins":[[0.0,1.0,3]]}
{"event":"end","reason":"time","seconds":2.0}
"#;

    #[test]
    fn every_kind_of_line_finds_its_place() {
        let printed = Printed::parse(OUTPUT).unwrap();
        assert_eq!(printed.figure("iterations_per_s", "1/s"), Ok(7.0));
        assert_eq!(printed.progress.len(), 1);
        assert_eq!(printed.histograms[0].bins, [(0.0, 1.0, 3)]);
        assert_eq!(printed.notes, ["careful"]);
        assert_eq!(printed.end, Some((Reason::Time, 2.0)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let printed = Printed::parse(OUTPUT).unwrap();
        let missing = printed.figure("ops_per_s", "1/s").unwrap_err().to_string();
        assert_eq!(missing, "printed no metric 'ops_per_s', but: iterations_per_s");
        assert!(matches!(printed.figure("iterations_per_s", "ms"), Err(OutputError::Unit { .. })));
        for cut in [
            "{\"metric\":\"ops_per_s\",\"val",
            "{\"metric\":\"x\",\"value\":null,\"unit\":\"1\"}",
            "{\"event\":\"end\"}",
        ] {
            assert!(matches!(Printed::parse(cut), Err(OutputError::Broken { .. })), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic(output in "[\\PC\\n]{0,300}") {
            let _ = Printed::parse(&output);
        }

        #[test]
        fn a_cut_output_never_looks_whole(at in 0..OUTPUT.len() - 1) {
            if OUTPUT.is_char_boundary(at) {
                let printed = Printed::parse(&OUTPUT[..at]);
                prop_assert!(printed.is_err() || printed.unwrap().end.is_none());
            }
        }
    }
}
