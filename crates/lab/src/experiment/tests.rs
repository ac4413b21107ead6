//! Built-in files are right, and wrong ones are refused with their file, line and key.

use super::*;
use crate::metric::Better;

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
name = 'stock'
[[load]]
name = 'l'
run = ['true']
[[load.metric]]
name = 'm'
unit = '1/s'
better = 'higher'
";

fn error(text: &str) -> String {
    parse("dir/mine.toml", text).unwrap_err().to_string()
}

#[test]
fn the_built_in_files_are_right() {
    let all = list().unwrap();
    assert!(all.iter().any(|entry| entry.name == "overcommit"));
    for entry in all {
        let experiment = load(entry.name).unwrap();
        assert_eq!(experiment.name.as_ref(), entry.name);
    }
    let cgroups = |text: &str| parse("x", text).unwrap().machine.cgroups;
    assert_eq!(cgroups(GOOD), Cgroups::Libvirt);
    assert_eq!(cgroups(&GOOD.replace("pcpus = 2", "pcpus = 2\ncgroups = 'flat'")), Cgroups::Flat);
}

#[test]
fn wrong_files_are_refused_where_they_are_wrong() {
    let change = |from: &str, to: &str| error(&GOOD.replace(from, to));
    let quick = |line: &str| change("[machine]", &format!("[quick]\n{line}\n[machine]"));
    let cases = [
        (change("boots = 1", "boots = 0"), "dir/mine.toml:3: boots: boots must be between 1 and 1000"),
        (change("boots = 1", "boots = 'many'"), "dir/mine.toml:3: boots: invalid type: string \"many\", expected u32"),
        (
            change("guests = ['a']", "guests = ['b']"),
            "dir/mine.toml:13: configuration.guests: no guest 'b'; there are: a",
        ),
        (change("vcpus = 2", "vcpu = 2"), "dir/mine.toml:9: guest.vcpu: unknown field `vcpu`"),
        (
            change("better = 'higher'", "better = 'more'"),
            "dir/mine.toml:22: load.metric.better: unknown variant `more`",
        ),
        (
            change("run = ['true']", "run = ['true', '{second}']"),
            "dir/mine.toml:18: load.run: unknown placeholder 'second'",
        ),
        (change("name = 'stock'", "name = 'ours'"), "one [[arm]] must be named 'stock'"),
        (change("name = 'l'", "name = 'l@c'"), "dir/mine.toml:17: load.name: 'l@c' is no name"),
        (change("run = ['true']", ""), "a load has either 'run' or 'scenario'"),
        (
            change("name = 'stock'", "name = 'stock'\nprograms = ['scx_lawd']"),
            "dir/mine.toml:16: arm.programs: no program 'scx_lawd'; there are: bpftool, ",
        ),
        (
            change("name = 'stock'", "name = 'stock'\non_demand = true"),
            "dir/mine.toml:15: arm.name: the others are compared with 'stock'",
        ),
        (
            change("memory_mib = 1024", "memory_mib = 1024\ncgroups = 'nested'"),
            "dir/mine.toml:7: machine.cgroups: unknown variant `nested`, expected `libvirt` or `flat`",
        ),
        (change("boots = 1", "boots = = 1"), "dir/mine.toml:3: boots: "),
        (quick("boots = 0"), "dir/mine.toml:1: name: quick.boots must be between 1 and 1000"),
        (quick("rounds = 0"), "quick.rounds must be"),
        (quick("seconds = 0"), "quick.seconds must be above 0"),
        (quick("within = -1"), "quick.within must be above 0"),
        (quick("within = nan"), "quick.within must be above 0"),
        (quick("within = inf"), "quick.within must be above 0"),
    ];
    for (found, wanted) in cases {
        assert!(found.contains(wanted), "found  {found}\nwanted {wanted}");
    }
}

/// To build one takes minutes, and a network.
#[test]
fn no_built_in_experiment_builds_a_peer_unasked() {
    let peer = |name: &toml::Spanned<String>| entrain_lab_machine::image::peers::find(name.as_ref()).is_some();
    let mut on_demand = 0;
    for entry in list().unwrap() {
        let experiment = load(entry.name).unwrap();
        assert!(!experiment.machine.programs.iter().any(peer), "{}", entry.name);
        for arm in experiment.arms.iter().filter(|arm| arm.programs.iter().any(peer)) {
            assert!(arm.on_demand, "{} {}", entry.name, arm.name.as_ref());
            on_demand += 1;
        }
    }
    assert!(on_demand > 0);
}

#[test]
fn a_check_that_cannot_fail_or_be_answered_is_refused() {
    let check = |rest: &str| error(&format!("{GOOD}[[check]]\nname = 'k'\nload = 'l'\narm = 'stock'\n{rest}"));
    assert!(check("metric = 'm'").contains("dir/mine.toml:24: check.name: a check needs at_least or at_most"));
    assert!(check("metric = 'other'\nat_least = 1").contains("load 'l' has no metric 'other'"));
    assert!(check("metric = 'm'\nat_least = 1\nto = 'stock'").contains("for of = \"ratio\""));
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let text = load("overcomit").unwrap_err().to_string();
    assert!(text.contains("overcommit, overcommit-one, patience"), "{text}");
    let text = load("./no/such.toml").unwrap_err().to_string();
    assert!(text.starts_with("./no/such.toml: "), "{text}");
}

/// A metric that the load does not print, or prints in another unit, would be found out only in a booted machine.
#[test]
fn the_built_in_loads_have_the_metrics_that_they_are_asked_for() {
    use entrain_workloads::catalog;
    for entry in list().unwrap() {
        for load in load(entry.name).unwrap().loads {
            let Some(run) = load.run.as_ref().map(|run| run.as_ref()).filter(|run| run[0] == "entrain-load") else {
                continue;
            };
            let known =
                catalog::LOADS.iter().find(|one| run[1..].iter().take(one.argv.len()).eq(one.argv.iter())).unwrap();
            for metric in &load.metrics {
                let name = metric.from.as_deref().unwrap_or(metric.name.as_ref());
                let found = known.metric(name).unwrap_or_else(|| panic!("{} has no {name}", known.name));
                assert_eq!(found.unit, metric.unit, "{} {name}", known.name);
                let higher = found.better == catalog::Better::Higher;
                assert_eq!(higher, metric.better == Better::Higher, "{} {name}", known.name);
            }
        }
    }
}
