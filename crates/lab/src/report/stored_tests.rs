//! What the project says of its results is what its stored results say, and of the code that is there.

use std::fs;

use entrain_lab_machine::machine::MachineSpec;
use entrain_results::age::{Yardstick, page_complaint};

use super::*;
use crate::experiment;
use crate::metric::Better;
use crate::reading::{Nature, Sample};
use crate::runner::{Choice, Gathered};

/// Everything that is not as the results in `root` have it.
fn complaints(root: &Path, yardstick: &Yardstick) -> Vec<String> {
    let folder = root.join("docs/results");
    let stored = |end: &str| -> Vec<PathBuf> {
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(end)).collect();
        files.sort();
        files
    };
    let results = read(&stored(".json.gz")).unwrap();
    if results.is_empty() {
        println!("{}: no result is stored yet", folder.display());
    }
    let mut complaints = Vec::new();
    let mut made = pages(&results, &folder);
    // The table of kernels and the simulator's pages have tests of their own, beside what makes them.
    let other = |page: &PathBuf| {
        let name = name(page);
        ["README.md", "kernels.md"].contains(&&*name) || name.starts_with("sim-")
    };
    for page in stored(".md").iter().filter(|page| !other(page)) {
        if !made.iter().any(|(path, _)| path == page) {
            complaints.push(format!("{} belongs to no stored result", page.display()));
        }
    }
    made.push(front(&results, &root.join("README.md")).unwrap());
    complaints.extend(made.iter().filter_map(|(path, text)| page_complaint(path, text)));
    complaints.extend(results.iter().filter_map(|(name, report)| yardstick.complaint(name, &report.schedulers)));
    complaints
}

#[test]
fn pages_and_readme_are_what_the_stored_results_give_and_no_result_is_older_than_admitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let complaints = complaints(&root, &Yardstick::of(&root).unwrap());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// A result of `overcommit` with three boots; wake-ups got worse under `entrain-host`.
pub(in crate::report) fn fixture(schedulers: &str) -> Report {
    let experiment = experiment::load("overcommit").unwrap();
    let mut gathered = Gathered { boots_ok: 3, dilation: 16.0, kernel: "7.3.4".into(), ..Gathered::default() };
    gathered.built.schedulers = schedulers.into();
    gathered.built.commit = "0123456789ab".into();
    let figures = [
        ("stock", "dbench@4x", "throughput", 10.0),
        ("entrain-host", "dbench@4x", "throughput", 26.0),
        ("entrain-both", "dbench@4x", "throughput", 30.0),
        ("offline-to-one", "dbench@4x", "throughput", 27.0),
        ("stock", "wake@4x", "wake_p50", 100.0),
        ("entrain-host", "wake@4x", "wake_p50", 150.0),
        ("stock", "wake@2x", "wake_p50", 100.0),
        ("entrain-host", "wake@2x", "wake_p50", 400.0),
    ];
    for boot in 1..=3 {
        for (arm, load, metric, value) in figures {
            let better = if metric == "wake_p50" { Better::Lower } else { Better::Higher };
            gathered.natures.insert((load.into(), metric.into()), Nature { better, counted: false });
            gathered.samples.push(Sample {
                boot,
                arm: arm.into(),
                load: load.into(),
                metric: metric.into(),
                unit: "1".into(),
                value: if arm == "stock" { value } else { value * (1.0 + f64::from(boot) / 100.0) },
                round: 0,
                share: 1.0,
                noisy: false,
                speed: 0.0,
            });
        }
    }
    let choice = Choice { seed: 1, ..Choice::default() };
    Report::new(&experiment, &choice, &MachineSpec::default(), gathered, 1_795_392_000)
}

/// A project with one stored result and what is made of it.
fn project(report: &Report) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("docs/results");
    fs::create_dir_all(&folder).unwrap();
    fs::write(root.path().join("README.md"), "# One\n\n<!-- results:begin -->\nold <!-- results:end -->\n\nmore\n")
        .unwrap();
    fs::write(root.path().join("CHANGELOG.md"), "# Changelog\n").unwrap();
    let path = folder.join("overcommit.json.gz");
    fs::write(&path, file::content(report, &path)).unwrap();
    let results = read(&[path]).unwrap();
    assert_eq!(results[0].1, *report, "what was stored comes back");
    let front = front(&results, &root.path().join("README.md")).unwrap();
    for (path, text) in pages(&results, &folder).into_iter().chain([front]) {
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn an_edited_page_or_block_and_an_old_result_are_noticed() {
    let root = project(&fixture("digest"));
    let root = root.path();
    let found = |schedulers: &str| complaints(root, &Yardstick::with(root, schedulers).unwrap());
    assert_eq!(found("digest"), [""; 0]);
    for path in ["docs/results/overcommit.md", "README.md"] {
        let text = fs::read_to_string(root.join(path)).unwrap();
        fs::write(root.join(path), text.replace("2.6", "3.6")).unwrap();
        assert!(matches!(&found("digest")[..], [one] if one.contains(path)), "{:?}", found("digest"));
        fs::write(root.join(path), text).unwrap();
    }
    assert!(matches!(&found("other")[..], [one] if one.starts_with("overcommit is of other schedulers")));
    fs::write(root.join("CHANGELOG.md"), "- results from before: tour, overcommit.\n").unwrap();
    assert_eq!(found("other"), [""; 0]);
    fs::write(root.join("docs/results/tour.md"), "# Tour\n").unwrap();
    assert!(matches!(&found("digest")[..], [one] if one.contains("tour.md belongs to no stored result")));
}

#[test]
fn readme_shows_no_quick_run() {
    let shown = |quick| {
        let results = [("overcommit".to_owned(), Report { quick, ..fixture("digest") })];
        crate::report::readme::renew("<!-- results:begin -->\n<!-- results:end -->", &results).unwrap()
    };
    assert!(shown(false).contains("dbench") && !shown(true).contains("dbench"));
}

#[test]
fn the_page_shows_every_arm_and_marks_what_is_worse() {
    let root = project(&fixture("digest"));
    let page = fs::read_to_string(root.path().join("docs/results/overcommit.md")).unwrap();
    let has = |text: &str| assert!(page.contains(text), "no '{text}' in\n{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    has("aarch64 (none), 2 pCPUs, 4096 MiB; Linux 7.3.4; time 16 times slower");
    has("Run: 2026-11-23, ");
    has("commit 0123456789ab");
    has("### dbench at 4x");
    has("|  | entrain-host | 26.5 | 2.65 [2.63, 2.68] | 3 |");
    has("|  | entrain-host | 153 | *1.53 [1.51, 1.54]* | 3 |");
    has("- **does not hold**: entrain-host: at 4x wake-up p50 at most 1.1 times stock's: ratio to stock 1.53;");
    let readme = fs::read_to_string(root.path().join("README.md")).unwrap();
    let has = |text: &str| assert!(readme.contains(text), "no '{text}' in\n{readme}");
    assert!(readme.lines().all(|line| line.chars().count() <= 100), "{readme}");
    has("| dbench | 2.65 [2.63, 2.68] | 3.06 [3.03, 3.09] | 2.75 [2.73, 2.78] |");
    has("| wake-up p50 (less is better) | *1.53 [1.51, 1.54]* | – | – |");
    has("\n\nmore\n");
}

#[test]
fn a_project_without_results_says_so() {
    let readme = readme::renew("a <!-- results:begin --> b <!-- results:end --> c", &[]).unwrap();
    assert_eq!(readme, "a <!-- results:begin -->\nNo run is stored yet.\n<!-- results:end --> c");
    assert!(readme::renew("a <!-- results:end --> b", &[]).is_err());
}
