//! What is brought into an experiment from elsewhere: common arms, steps and metrics, and the experiment that it extends.

use std::path::Path;

use super::*;
use crate::metric::{Better, Combine};

const GOOD: &str = "\
name = 'x'
title = 'x'
boots = 1
[machine]
pcpus = 2
memory_mib = 1024
[[guest]]
name = 'a'
vcpus = 2
memory_mib = 256
[[configuration]]
name = 'c'
guests = ['a']
[[arm]]
use = 'stock'
[[arm]]
use = 'entrain-both'
title = 'mine'
steps = ['stands-by']
[[load]]
name = 'l'
run = ['true']
metrics = ['wake_p99', 'ops_per_s', 'loaded']
";

fn error(text: &str) -> String {
    parse("dir/mine.toml", text).unwrap_err().to_string()
}

fn words(argv: &Spanned<Vec<String>>) -> String {
    argv.as_ref().join(" ")
}

#[test]
fn an_arm_has_what_it_uses_and_its_own() {
    let experiment = parse("x", GOOD).unwrap();
    let [stock, both] = &experiment.arms[..] else { panic!("two arms") };
    assert_eq!((stock.name.as_ref().as_str(), stock.steps.len()), ("stock", 0));
    assert_eq!((both.name.as_ref().as_str(), both.title.as_str()), ("entrain-both", "mine"));
    let steps: Vec<String> = both.steps.iter().map(|step| words(&step.run)).collect();
    assert_eq!(steps[..2], ["entrain guest --mode schedule --always", "entrain host --mode schedule"]);
    assert!(steps[2].contains("--paired") && steps[3].contains("attached"), "{steps:?}");
}

#[test]
fn steps_of_the_file_come_where_they_are_named() {
    let own = "[step.mine]\non = 'host'\nrun = ['mine']\n[[arm]]\nname = 'z'\nsteps = ['paired', 'mine', 'paired']\n[[arm.step]]\non = 'host'\nrun = ['last']\n";
    let experiment = parse("x", &format!("{GOOD}{own}")).unwrap();
    let steps: Vec<String> = experiment.arms[2].steps.iter().map(|step| words(&step.run)).collect();
    assert_eq!((steps.len(), steps[1].as_str(), steps[3].as_str()), (4, "mine", "last"));
}

#[test]
fn a_metric_is_what_its_name_says() {
    let experiment = parse("x", GOOD).unwrap();
    let metrics = &experiment.loads[0].metrics;
    let all: Vec<_> =
        metrics.iter().map(|one| (one.name.as_ref().as_str(), one.unit.as_str(), one.better, one.combine)).collect();
    assert_eq!(
        all,
        [
            ("wake_p99", "us", Better::Lower, Combine::Max),
            ("ops_per_s", "1/s", Better::Higher, Combine::Sum),
            ("loaded", "1", Better::Lower, Combine::Sum),
        ]
    );
    let twice = error(&format!("{GOOD}[[load.metric]]\nname = 'loaded'\nunit = '1'\nbetter = 'higher'\n"));
    assert!(twice.contains("'loaded' is named twice"), "{twice}");
    let own = parse("x", &format!("{GOOD}[[load.metric]]\nname = 'rate'\nfrom = 'requests_per_s'\n")).unwrap();
    assert_eq!(own.loads[0].metrics[3].unit, "1/s");
}

#[test]
fn unknown_names_are_told_where_they_are_used() {
    let change = |from: &str, to: &str| error(&GOOD.replace(from, to));
    let cases = [
        (
            change("use = 'entrain-both'", "use = 'entrain-bot'"),
            "mine.toml:17: arm.use: no arm is called 'entrain-bot'; there are: ",
        ),
        (change("'stands-by'", "'stand-by'"), "mine.toml:19: arm.steps: no step is called 'stand-by'; there are: "),
        (
            change("'ops_per_s'", "'op_per_s'"),
            "mine.toml:23: load.metrics: no metric of entrain-load or of common/metrics.toml is called 'op_per_s'; there are: ",
        ),
        (change("steps = ['stands-by']", "steps = 'stands-by'"), "mine.toml:19: arm.steps: steps is a list of names"),
        (change("use = 'entrain-both'", "use = 'entrain-both'\nstep = 3"), "arm.step: invalid type: integer"),
        (change("title = 'mine'", "titel = 'mine'"), "mine.toml:18: arm.titel: unknown field `titel`"),
        (error(&format!("{GOOD}[step.paired]\non = 'host'\nrun = ['x']\n")), "'paired' is the name of a common step"),
        (error(&format!("{GOOD}[step.mine]\non = 'host'\nruns = ['x']\n")), "step.mine.runs: unknown field `runs`"),
        (error(&format!("without = ['arm.x']\n{GOOD}")), "mine.toml:1: without: only an experiment that extends"),
    ];
    for (found, wanted) in cases {
        assert!(found.contains(wanted), "found  {found}\nwanted {wanted}");
    }
}

#[test]
fn an_experiment_is_told_by_its_difference() {
    let base = load("frames").unwrap();
    let mine = "extends = 'frames'\nwithout = ['probes', 'arm.uclamp', 'arm.uclamp-loads', 'check', 'quick.rounds']\nname = 'mine'\n\
                [machine]\nmemory_mib = 4096\n[[arm]]\nname = 'entrain'\ntitle = 'other'\n[[arm]]\nuse = 'entrain-host'\n\
                [[load]]\nname = 'frames'\n[load.params]\ndevice_mw = 1\n";
    let mine = parse("dir/mine.toml", mine).unwrap();
    assert_eq!((mine.name.as_ref().as_str(), mine.title.as_str()), ("mine", base.title.as_str()));
    assert_eq!((mine.machine.memory_mib, mine.machine.pcpus), (4096, base.machine.pcpus));
    assert_eq!((mine.probes.len(), mine.checks.len()), (0, 0));
    assert_eq!((mine.quick.boots, mine.quick.rounds), (base.quick.boots, None));
    let arms: Vec<(&str, &str)> =
        mine.arms.iter().map(|arm| (arm.name.as_ref().as_str(), arm.title.as_str())).collect();
    assert_eq!(arms[1], ("entrain", "other"));
    assert_eq!((arms.len(), arms[3].0, mine.arms[1].steps.len()), (4, "entrain-host", base.arms[3].steps.len()));
    let params = &mine.loads[0].params;
    assert_eq!(params["device_mw"].as_integer(), Some(1));
    assert_eq!(params["per_energy"], base.loads[0].params["per_energy"]);
}

#[test]
fn what_is_wrong_with_what_was_inherited_is_told_where_it_was() {
    let child = |rest: &str| error(&format!("name = 'mine'\nextends = 'frames'\n{rest}"));
    let cases = [
        (child("without = ['arm.frame']"), "mine.toml:3: without: nothing that is inherited is called 'arm.frame'"),
        (child("without = ['nothing']"), "mine.toml:3: without: nothing that is inherited is called 'nothing'"),
        (
            child("without = ['arm.uclamp']"),
            "mine.toml:2: extends: no arm 'uclamp'; there are: stock, uclamp-loads, entrain",
        ),
        (child("extend = 1"), "mine.toml:3: extend: unknown field `extend`"),
        (child("[[arm]]\nname = 'z'\n[[arm]]\nname = 'z'"), "mine.toml:6: arm.name: 'z' is named twice"),
        (
            error("extends = 'frame'\nname = 'mine'"),
            "mine.toml:1: extends: no experiment 'frame' to extend; there are: alone, ",
        ),
        (error("extends = 'frames'"), "missing field `name`"),
        (error("extends = 3"), "mine.toml:1: extends: a name is a text in quotes"),
        (error("extends = './no.toml'"), "dir/./no.toml: "),
    ];
    for (found, wanted) in cases {
        assert!(found.contains(wanted), "found  {found}\nwanted {wanted}");
    }
}

#[test]
fn files_extend_files_beside_them_but_not_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    write("base.toml", GOOD);
    write("child.toml", "extends = './base.toml'\nname = 'child'\nboots = 2\n");
    write("sub/grandchild.toml", "extends = '../child.toml'\nname = 'grandchild'\n");
    let grandchild = load(&path("sub/grandchild.toml")).unwrap();
    assert_eq!((*grandchild.boots.as_ref(), grandchild.arms.len()), (2, 2));

    write("base.toml", &format!("extends = 'sub/grandchild.toml'\n{GOOD}"));
    let circle = load(&path("sub/grandchild.toml")).unwrap_err().to_string();
    assert!(circle.contains("base.toml:1: extends: an experiment cannot extend itself: "), "{circle}");
    write("base.toml", "extends = 'base.toml'\n");
    assert!(load(&path("base.toml")).unwrap_err().to_string().contains("cannot extend itself"));

    // What is wrong in the file that is extended is told by its own line.
    write("base.toml", &GOOD.replace("vcpus = 2", "vcpus = 0"));
    let wrong = load(&path("child.toml")).unwrap_err().to_string();
    assert!(wrong.contains("base.toml:8: guest.name: a guest needs 1 to 64 vcpus"), "{wrong}");
}

/// A name that nothing uses would be kept for ever, and never be run.
#[test]
fn every_common_name_is_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let texts: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let arms = include_str!("../../experiments/common/arms.toml");
    let metrics = include_str!("../../experiments/common/metrics.toml");
    for line in arms.lines() {
        if let Some(name) = line.strip_prefix("[arm.").and_then(|rest| rest.strip_suffix(']')) {
            assert!(texts.iter().any(|text| text.contains(&format!("use = \"{name}\""))), "arm {name}");
        } else if let Some(name) = line.strip_prefix("[step.").and_then(|rest| rest.strip_suffix(']')) {
            let quoted = format!("\"{name}\"");
            let named = |text: &str| text.lines().any(|line| line.starts_with("steps = ") && line.contains(&quoted));
            assert!(texts.iter().any(|text| named(text)) || named(arms), "step {name}");
        }
    }
    for name in metrics.lines().filter_map(|line| line.split_once(" = {")).map(|(name, _)| name) {
        let named = |line: &str| line.starts_with("metrics = ") && line.contains(&format!("\"{name}\""));
        assert!(texts.iter().any(|text| text.lines().any(named)), "metric {name}");
    }
}

#[test]
fn a_check_of_several_loads_and_arms_is_one_of_each() {
    let check = "[[check]]\nname = '{arm} with {load}'\nload = ['l']\narm = ['stock', 'entrain-both']\nmetric = 'ops_per_s'\nat_least = 1\n";
    let experiment = parse("x", &format!("{GOOD}{check}")).unwrap();
    let names: Vec<&str> = experiment.checks.iter().map(|check| check.name.as_ref().as_str()).collect();
    assert_eq!(names, ["stock with l", "entrain-both with l"]);
    assert_eq!(experiment.checks[1].arm.as_ref(), "entrain-both");
    // What is wrong with one of them stands where it was written.
    let wrong = check.replace("'entrain-both'", "'nobody'");
    assert!(error(&format!("{GOOD}{wrong}")).contains("no arm 'nobody'"));
    let none = check.replace("['l']", "[]");
    assert!(error(&format!("{GOOD}{none}")).contains("it could not fail"));
    let same = check.replace("{arm} with ", "");
    assert!(error(&format!("{GOOD}{same}")).contains("two checks have this name"));
}
