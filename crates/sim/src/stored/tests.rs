//! The kept tables are of the schedulers that are there, and their pages say what they say.

use std::fs;

use entrain_results::age::{Yardstick, page_complaint};
use entrain_results::name;

use super::*;
use crate::lab::measured::Ratio;
use crate::references::Kind;

/// Everything that is not as the tables in `root` have it.
fn complaints(root: &Path, yardstick: &Yardstick) -> Vec<String> {
    let folder = root.join("docs/results");
    let kept = |ending: &str| -> Vec<PathBuf> {
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let ours = |path: &PathBuf| name(path).starts_with("sim-") && path.extension().is_some_and(|end| end == ending);
        files.filter(ours).collect()
    };
    let mut complaints = Vec::new();
    for file in kept("json") {
        let (name, stored) = (name(&file), Stored::read(&file).unwrap());
        complaints.extend(page_complaint(&file.with_extension("md"), &render(&stored, &name)));
        complaints.extend(yardstick.complaint(&name, &stored.schedulers));
        complaints.extend(parts_that_were_measured_anew(root, &name, &stored).filter(|_| !yardstick.admits(&name)));
    }
    let pages = kept("md").into_iter().filter(|page| !page.with_extension("json").exists());
    complaints.extend(pages.map(|page| format!("{} belongs to no stored table", page.display())));
    complaints
}

/// The lab's results that say something else now than what a table has beside its predictions.
fn parts_that_were_measured_anew(root: &Path, name: &str, stored: &Stored) -> impl Iterator<Item = String> {
    let Table::Validate(parts) = &stored.table else { return Vec::new().into_iter() };
    let other = |part: &&Compared| {
        let now = Results::read(&root.join(&part.file)).unwrap().ratios();
        let key = |row: &validate::Row| (row.load.clone(), row.metric.clone(), row.arm.clone());
        part.rows.iter().any(|row| now.get(&key(row)) != Some(&row.measured))
    };
    let say = |part: &Compared| format!("{name} is beside an older {}: make it anew", part.file.display());
    parts.iter().filter(other).map(say).collect::<Vec<_>>().into_iter()
}

#[test]
fn pages_are_what_the_stored_tables_give_and_no_table_is_older_than_admitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["sim-validate", "sim-references"] {
        assert!(root.join("docs/results").join(name).with_extension("json").exists(), "{name} is kept");
    }
    let complaints = complaints(&root, &Yardstick::of(&root).unwrap());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn stored(table: Table) -> Stored {
    let begun = Begun { clock: Instant::now(), started: 1_795_392_000 };
    let mut costs = Costs::LAB;
    costs.set("exit", 7);
    Stored { commit: "0123456789ab".into(), schedulers: "digest".into(), ..begun.done(costs, vec![1, 2, 3], table) }
}

/// A comparison with a result of the lab's that has two rows, one of which is predicted well.
fn validated() -> Stored {
    let ratio = |value| Ratio { median: value, least: value, most: value, samples: 1 };
    let row = |arm: &str, measured, predicted: f64, sign| validate::Row {
        load: "lock".into(),
        metric: "ops_per_s".into(),
        arm: arm.into(),
        measured: ratio(measured),
        predicted,
        sign,
        error: predicted / measured - 1.0,
    };
    stored(Table::Validate(vec![Compared {
        file: "docs/results/tour.json".into(),
        experiment: "tour".into(),
        commit: "abc".into(),
        started: 0,
        rows: vec![row("entrain-both", 2.0, 2.2, true), row("entrain-host", 0.5, 1.25, false)],
    }]))
}

#[test]
fn an_edited_page_an_old_table_and_a_result_that_was_measured_anew_are_noticed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let folder = root.join("docs/results");
    fs::create_dir_all(&folder).unwrap();
    let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
    let tour = |host: f64| {
        let sample =
            |arm, value| serde_json::json!({ "arm": arm, "load": "lock", "metric": "ops_per_s", "value": value });
        let samples = [sample("stock", 10.0), sample("entrain-both", 20.0), sample("entrain-host", host)];
        serde_json::json!({ "experiment": "tour", "samples": samples }).to_string()
    };
    write("CHANGELOG.md", "# Changelog\n");
    write("docs/results/tour.json", &tour(5.0));
    let table = validated();
    table.write(&folder.join("sim-validate.json")).unwrap();
    assert_eq!(Stored::read(&folder.join("sim-validate.json")).unwrap(), table, "what was stored comes back");
    write("docs/results/sim-validate.md", &render(&table, "sim-validate"));
    let found = |schedulers: &str| complaints(root, &Yardstick::with(root, schedulers).unwrap());
    assert_eq!(found("digest"), [""; 0]);

    write("docs/results/sim-validate.md", &render(&table, "sim-validate").replace("2.2", "2.1"));
    assert!(
        matches!(&found("digest")[..], [one] if one.contains("sim-validate.md is not what")),
        "{:?}",
        found("digest")
    );
    write("docs/results/sim-validate.md", &render(&table, "sim-validate"));
    assert!(matches!(&found("other")[..], [one] if one.starts_with("sim-validate is of other schedulers")));
    write("docs/results/tour.json", &tour(6.0));
    assert!(matches!(&found("digest")[..], [one] if one.contains("beside an older docs/results/tour.json")));
    write("CHANGELOG.md", "- results from before: sim-validate.\n");
    assert_eq!(found("other"), [""; 0]);
    write("docs/results/sim-more.md", "# More\n");
    assert!(matches!(&found("digest")[..], [one] if one.contains("sim-more.md belongs to no stored table")));
}

#[test]
fn a_page_tells_totals_and_marks_what_is_wrong() {
    let page = render(&validated(), "sim-validate");
    let has = |text: &str| assert!(page.contains(text), "no '{text}' in\n{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    has("- Run: 2026-11-23, 0 s, medians of seeds 1, 2, 3; Entrain ");
    has("commit 0123456789ab");
    has("those of the lab's machines (`crates/sim/src/costs.rs`), but exit=7 (ns)");
    has("- Measured: [tour](tour.md), run of 1970-01-01, commit abc");
    has("| all | 2 | 1 of 2 | 1 of 2 |\n| arm entrain-both | 1 | 1 of 1 | 1 of 1 |\n");
    has("| load lock | 2 | 1 of 2 | 1 of 2 |");
    has("### lock\n");
    has("| ops_per_s | entrain-both | 2 [2, 2] | 2.2 | +10 % | right |");
    has("| ops_per_s | entrain-host | 0.5 [0.5, 0.5] | 1.25 | *+150 %* | **wrong** |");
}

#[test]
fn rows_of_references_are_counted_by_what_they_are_for() {
    let row = |kind, predicted, change: Option<f64>| references::Row {
        what: "3: 8×20 vCPUs".into(),
        metric: "throughput".into(),
        kind,
        published: 0.5,
        predicted,
        change: change.map(|predicted| references::Change { from: "8×10".into(), published: 0.5, predicted }),
    };
    let rows = vec![
        row(Kind::Baseline, 0.5, None),
        row(Kind::Predicted, 1.0, Some(1.0)),
        row(Kind::Predicted, 0.5, None),
        row(Kind::Entrain, 9.0, None),
    ];
    let page = render(&stored(Table::References(rows)), "sim-references");
    let has = |text: &str| assert!(page.contains(text), "no '{text}' in\n{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    has("| predicted | 2 | 0 of 1 | 1 of 2 |\n| baseline | 1 | – | 1 of 1 |\n");
    has("| predicted | 0.5 | 1 | *+100 %* | **wrong** (8×10) |");
    has("| entrain | 0.5 | 9 | – | – |");
}

#[test]
fn a_figure_that_is_no_number_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sim-validate.json");
    let mut table = validated();
    let Table::Validate(parts) = &mut table.table else { unreachable!("it is one") };
    parts[0].rows[0].predicted = f64::NAN;
    assert!(table.write(&path).is_err() && !path.exists());
}
