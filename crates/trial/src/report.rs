//! What a trial found: as text, as a page, as JSON.

use std::fmt::Write;
use std::path::Path;

use entrain_html::{Page, escape};
use entrain_stats::{Ratio, median, ratio, sign_test, spread};
use serde::Serialize;

use crate::daemon::Side;
use crate::figures::FIGURES;
use crate::rounds::{COMMAND, Plan, Rounds};

/// Raised when a field of the JSON changes its meaning or goes away.
const SCHEMA: u32 = 1;
/// The seed of the bootstrap: the same windows give the same interval.
const SEED: u64 = 24;

/// What a figure says of B beside A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Better,
    Worse,
    /// The interval holds 1, or so many rounds on one side of it are likely by chance (5 %).
    Open,
    /// A command's number that is the same in every window: its length or its version, hardly a result.
    Constant,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Open => "not shown",
            Self::Constant => "the same in every window: is the last number that it prints a result?",
        }
    }

    fn of(ratio: &Ratio, chance: f64, lower_is_better: bool) -> Self {
        match ratio.interval.filter(|_| chance < 0.05) {
            Some((_, high)) if high < 1.0 => {
                if lower_is_better {
                    Self::Better
                } else {
                    Self::Worse
                }
            }
            Some((low, _)) if low > 1.0 => {
                if lower_is_better {
                    Self::Worse
                } else {
                    Self::Better
                }
            }
            _ => Self::Open,
        }
    }
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    id: &'static str,
    /// The operator's name for the command's figure is his own, and stays here.
    #[serde(skip)]
    name: String,
    lower_is_better: bool,
    /// Of each round, in their order.
    a: Vec<f64>,
    b: Vec<f64>,
    /// Median of B/A, and its 95 % interval; none where A was 0.
    ratio: Option<f64>,
    interval: Option<(f64, f64)>,
    verdict: Verdict,
}

/// All of it. The JSON has no names: not of the host, its VMs, its files or its commands.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    version: &'static str,
    kernel: String,
    architecture: &'static str,
    pcpus: usize,
    vms: usize,
    vcpus: usize,
    sides: [&'static str; 2],
    rounds: usize,
    rounds_planned: u32,
    window_seconds: u64,
    settle_seconds: u64,
    complete: bool,
    rows: Vec<Row>,
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    ended: Option<String>,
}

impl Report {
    /// `ended`: why it was not run to its end.
    pub(crate) fn new(plan: &Plan, rounds: &Rounds, ended: Option<String>) -> Self {
        let mut known: Vec<(&'static str, String, bool)> =
            FIGURES.iter().map(|figure| (figure.id, figure.name.to_owned(), figure.lower_is_better)).collect();
        if let Some(figure) = &plan.figure {
            known.insert(0, (COMMAND, figure.name.clone(), figure.lower_is_better));
        }
        let rows = known.into_iter().filter_map(|(id, name, lower)| row(rounds, id, name, lower)).collect();
        let release = std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            kernel: release.trim().to_owned(),
            architecture: std::env::consts::ARCH,
            pcpus: std::thread::available_parallelism().map_or(0, usize::from),
            vms: rounds.vms,
            vcpus: rounds.vcpus,
            sides: [0, 1].map(|at| kind(&plan.sides[at])),
            rounds: rounds.pairs.len(),
            rounds_planned: plan.rounds,
            window_seconds: plan.window.as_secs(),
            settle_seconds: plan.settle.as_secs(),
            complete: ended.is_none(),
            rows,
            title: format!("{} (A) and {} (B)", plan.sides[0], plan.sides[1]),
            ended,
        }
    }

    fn about(&self) -> String {
        format!(
            "{} of {} rounds, windows of {} s after {} s of settling; {} pCPUs, {} VMs with {} vCPUs; Linux {}, entrain {}",
            self.rounds,
            self.rounds_planned,
            self.window_seconds,
            self.settle_seconds,
            self.pcpus,
            self.vms,
            self.vcpus,
            self.kernel,
            self.version
        )
    }

    /// What is told of the command's figure, in a few words.
    pub(crate) fn told_of_command(&self) -> String {
        let row = self.rows.iter().find(|row| row.id == COMMAND);
        row.map_or("-".to_owned(), |row| format!("{} {}", row.told(), row.verdict.word()))
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.title, self.about());
        let _ = writeln!(text, "{:<47} {:>10} {:>10}  B/A [95 %]", "", "A", "B");
        for row in &self.rows {
            let middle = |values: &[f64]| median(values).map_or("-".to_owned(), number);
            let name: String = row.name.chars().take(47).collect();
            let (a, b) = (middle(&row.a), middle(&row.b));
            let _ = writeln!(text, "{name:<47} {a:>10} {b:>10}  {:<22} {}", row.told(), row.verdict.word());
        }
        if let Some(why) = &self.ended {
            let _ = writeln!(text, "\nNot run to its end: {why}");
        }
        text
    }

    /// As a page.
    pub(crate) fn html(&self) -> String {
        let mut body = format!("<h1>{}</h1><p>{}</p>", escape(&self.title), escape(&self.about()));
        if let Some(why) = &self.ended {
            let _ = write!(body, "<p><strong>Not run to its end:</strong> {}</p>", escape(why));
        }
        body += "<table><thead><tr><th>figure</th><th>A: median [least, most]</th><th>B: median [least, most]</th>\
                 <th>B/A [95 %]</th><th>B is</th></tr></thead><tbody>";
        for row in &self.rows {
            let range = |values: &[f64]| {
                let of = |all: entrain_stats::Spread| {
                    format!("{} [{}, {}]", number(all.median), number(all.min), number(all.max))
                };
                spread(values).map_or("-".to_owned(), of)
            };
            let _ = write!(
                body,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&row.name),
                range(&row.a),
                range(&row.b),
                escape(&row.told()),
                row.verdict.word()
            );
        }
        body += "</tbody></table><p>Each round has a window of A and one of B, in alternating order. B/A is the median of the \
                 rounds' ratios; its interval is drawn from the rounds (bootstrap). A difference is shown where \
                 the interval leaves 1 out and so many rounds on one side of it come by chance in less than one of 20 trials \
                 (sign test; six of six are needed). Figures of the host include all that runs on it.</p>";
        Page::new("entrain trial", "main{--width:70rem}").section(&body).finish()
    }
}

impl Row {
    fn told(&self) -> String {
        match (self.ratio, self.interval) {
            (Some(ratio), Some((low, high))) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
            (Some(ratio), None) => format!("{ratio:.3}"),
            (None, _) => "-".to_owned(),
        }
    }
}

fn kind(side: &Side) -> &'static str {
    match side {
        Side::Observe => "observe",
        Side::Schedule => "schedule",
        Side::File(_, true) => "classes, schedule",
        Side::File(_, false) => "classes, observe",
    }
}

/// `None` where no round has it on both sides.
fn row(rounds: &Rounds, id: &'static str, name: String, lower_is_better: bool) -> Option<Row> {
    let of = |window: &[(&'static str, f64)]| window.iter().find(|(known, _)| *known == id).map(|(_, value)| *value);
    let pairs: Vec<(f64, f64)> = rounds.pairs.iter().filter_map(|[a, b]| Some((of(a)?, of(b)?))).collect();
    if pairs.is_empty() {
        return None;
    }
    let ratios: Vec<f64> = pairs.iter().filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a).collect();
    let constant = id == COMMAND && pairs.len() > 1 && pairs.iter().all(|(a, b)| a == b && *a == pairs[0].0);
    let chance = sign_test(&ratios);
    let ratio = ratio(&ratios.iter().map(|ratio| vec![*ratio]).collect::<Vec<_>>(), SEED);
    Some(Row {
        id,
        name,
        lower_is_better,
        a: pairs.iter().map(|(a, _)| *a).collect(),
        b: pairs.iter().map(|(_, b)| *b).collect(),
        ratio: ratio.map(|ratio| ratio.median),
        interval: ratio.and_then(|ratio| ratio.interval),
        verdict: match ratio {
            _ if constant => Verdict::Constant,
            Some(ratio) => Verdict::of(&ratio, chance, lower_is_better),
            None => Verdict::Open,
        },
    })
}

/// Four digits that count.
fn number(value: f64) -> String {
    let digits = value.abs().log10().floor().clamp(-3.0, 3.0);
    if value == 0.0 { "0".to_owned() } else { format!("{value:.*}", (3.0 - digits) as usize) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::alarm::Limits;
    use crate::command::Figure;

    fn report(pairs: Vec<[f64; 2]>, ended: Option<&str>) -> Report {
        let figure = Figure { command: "bench /secret".into(), name: "<ops> of host7".into(), lower_is_better: false };
        let plan = Plan {
            sides: [Side::Observe, Side::File("/etc/secret.toml".into(), true)],
            rounds: 6,
            window: Duration::from_secs(60),
            settle: Duration::from_secs(5),
            figure: Some(figure),
            limits: Limits::default(),
        };
        let window = |value: f64| vec![(COMMAND, value), ("switches", 1000.0 / value)];
        let rounds = Rounds { pairs: pairs.into_iter().map(|pair| pair.map(window)).collect(), vms: 2, vcpus: 8 };
        Report::new(&plan, &rounds, ended.map(str::to_owned))
    }

    #[test]
    fn a_figure_is_better_or_worse_by_its_own_direction() {
        let six = [10.0, 11.0, 9.0, 10.5, 9.5, 10.1].map(|a| [a, 2.0 * a]);
        let report = report(six.to_vec(), None);
        let of = |id| report.rows.iter().find(|row| row.id == id).expect("measured");
        assert_eq!((of(COMMAND).ratio, of(COMMAND).verdict), (Some(2.0), Verdict::Better));
        assert_eq!((of("switches").ratio, of("switches").verdict), (Some(0.5), Verdict::Better));
        assert!(report.text().contains("2.000 [2.000, 2.000]"), "{}", report.text());
        let open = self::report(vec![[10.0, 20.0], [20.0, 10.0], [10.0, 10.0]], None);
        assert_eq!(open.rows[0].verdict, Verdict::Open);
        let few = self::report(six[..5].to_vec(), None);
        assert_eq!(few.rows[0].verdict, Verdict::Open, "five of five come by chance in one of sixteen trials");
    }

    /// In the lab the matrix took "measured for 2.0 s" for its guests' figure.
    #[test]
    fn a_number_that_never_changes_is_no_result() {
        let same = report(vec![[2.0, 2.0]; 3], None);
        assert_eq!(same.rows[0].verdict, Verdict::Constant);
        assert!(same.text().contains("is the last number that it prints a result?"), "{}", same.text());
        assert_eq!(same.rows[1].verdict, Verdict::Open, "what the host counts may well be the same");
        let once = report(vec![[2.0, 2.0], [2.0, 2.1]], None);
        assert_eq!(once.rows[0].verdict, Verdict::Open);
        assert_eq!(report(vec![[2.0, 2.0]], None).rows[0].verdict, Verdict::Open, "one round tells nothing");
    }

    #[test]
    fn what_may_be_published_has_no_names_and_the_page_no_markup_of_others() {
        let report = report(vec![[10.0, 20.0]], Some("alarm: x"));
        let json = serde_json::to_string(&report).expect("serializes");
        assert!(!json.contains("secret") && !json.contains("host7") && json.contains("\"complete\":false"), "{json}");
        assert!(report.html().contains("&lt;ops&gt; of host7") && report.html().contains("alarm: x"));
        assert!(report.text().contains("Not run to its end: alarm: x"));
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in
            [(0.0, "0"), (1234567.0, "1234567"), (12.3456, "12.35"), (0.012345, "0.01235"), (999.5, "999.5")]
        {
            assert_eq!(number(value), text);
        }
    }
}
