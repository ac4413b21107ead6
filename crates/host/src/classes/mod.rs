//! Classes of VMs: how much each VM counts, from one TOML file (`entrain host --config FILE`).
//!
//! ```toml
//! default = "standard"
//!
//! [class.critical]
//! weight = 400
//!
//! [[vm]]
//! class = "critical"
//! name = "db*"
//! ```
//!
//! `[host]` says what the options `--mode` and `--metrics` say. `critical`, `standard` and `batch` are there without being written; a table of their name changes them. The first
//! `[[vm]]` whose patterns all match gives a VM its class, and `default` the others theirs. What a class does stands in
//! `apply`.

pub(crate) mod apply;
mod settings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use entrain_config::{ConfigError, Source};
use entrain_policy::entitle;
use glob::{MatchOptions, Pattern};
use serde::Deserialize;
use toml::Spanned;

use crate::cli::Mode;
use crate::metrics;
use settings::ClassTable;
pub use settings::{Class, Publish, Schedule};

/// The classes that are always there, with their weights: a batch VM gives way to four times as much of a standard one.
const BUILT_IN: [(&str, u64); 3] = [("critical", 400), ("standard", 100), ("batch", 25)];

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    host: HostTable,
    default: Option<Spanned<String>>,
    #[serde(default)]
    class: BTreeMap<Spanned<String>, ClassTable>,
    #[serde(default)]
    vm: Vec<VmTable>,
}

/// What options say as well; an option that is given counts more.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    mode: Option<Mode>,
    metrics: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VmTable {
    class: Spanned<String>,
    cgroup: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    pid: Option<Spanned<i64>>,
}

/// One `[[vm]]`.
#[derive(Debug)]
struct Rule {
    class: String,
    cgroup: Option<Pattern>,
    name: Option<Pattern>,
    pid: Option<i32>,
}

/// What the file says.
#[derive(Debug)]
pub struct Classes {
    path: PathBuf,
    classes: BTreeMap<String, Class>,
    rules: Vec<Rule>,
    default: Option<String>,
    /// What the daemon does, if the file says it; for its start.
    pub(crate) mode: Option<Mode>,
    /// Where metrics are served, if the file says it; for its start.
    pub(crate) metrics: Option<SocketAddr>,
}

impl Classes {
    /// Reads and checks a file, for this host.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &entrain_config::read(path)?, pcpus())
    }

    /// Reads the same file again.
    pub(crate) fn reload(&self) -> Result<Self, ConfigError> {
        Self::load(&self.path)
    }

    /// Checks a file's text for a host of so many pCPUs; `path` is for messages and for reading it again.
    pub(crate) fn parse(path: &Path, text: &str, pcpus: u32) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let source = Source { file: &name, text };
        let file: File = source.parse()?;
        let mut classes: BTreeMap<String, Class> =
            BUILT_IN.into_iter().map(|(name, weight)| (name.to_owned(), built_in(weight))).collect();
        let most = entitle::most_minima(u64::from(pcpus) * 1024);
        for (name, table) in &file.class {
            table.change(classes.entry(name.as_ref().clone()).or_default(), &source, most)?;
        }
        let known = |name: &Spanned<String>| -> Result<String, ConfigError> {
            if classes.contains_key(name.as_ref()) {
                return Ok(name.as_ref().clone());
            }
            let all = classes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(source.error(Some(name.span()), format!("no class '{}'; there are: {all}", name.as_ref())))
        };
        let rules = file.vm.iter().map(|table| rule(&source, table, known(&table.class)?)).collect::<Result<_, _>>()?;
        let default = file.default.as_ref().map(known).transpose()?;
        check_minima(&source, &file, &classes, most)?;
        let metrics = file.host.metrics.as_ref().map(|text| {
            metrics::parse_address(text.as_ref()).map_err(|message| source.error(Some(text.span()), message))
        });
        let (mode, metrics) = (file.host.mode, metrics.transpose()?);
        Ok(Self { path: path.to_owned(), classes, rules, default, mode, metrics })
    }

    /// The class of a VM; `None` where no rule matches and there is no default.
    pub(crate) fn of(&self, vm: &Identity<'_>) -> Option<(&str, &Class)> {
        let rule = self.rules.iter().find(|rule| rule.matches(vm)).map(|rule| rule.class.as_str());
        let name = rule.or(self.default.as_deref())?;
        Some((name, &self.classes[name]))
    }

    /// Whether the class of a VM may depend on its cgroup.
    pub(crate) fn asks_for_cgroups(&self) -> bool {
        self.rules.iter().any(|rule| rule.cgroup.is_some())
    }

    /// Whether the file asks for mode `schedule`.
    pub fn schedules(&self) -> bool {
        self.mode == Some(Mode::Schedule)
    }

    /// What was read, a line for each class.
    pub fn summary(&self) -> String {
        let mut text = format!("{}: {} rules for VMs, ", self.path.display(), self.rules.len());
        text += &self.default.as_ref().map_or("no default\n".to_owned(), |name| format!("default '{name}'\n"));
        if let Some(mode) = self.mode {
            text += &format!("mode {}\n", mode.word());
        }
        if let Some(address) = self.metrics {
            text += &format!("metrics at http://{address}/metrics\n");
        }
        for (name, class) in &self.classes {
            let rules = self.rules.iter().filter(|rule| rule.class == *name).count();
            text += &format!("class {name}: {}, {rules} rules\n", class.describe());
        }
        text
    }
}

fn built_in(weight: u64) -> Class {
    Class { weight: Some(weight), ..Class::default() }
}

/// The pCPUs that are online and that this process may use.
pub(crate) fn pcpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Each rule stands for one VM at least: what they are promised together must fit, or the file promises what no host of
/// this size can hold. How many VMs a pattern will match shows only while they run (`apply`).
fn check_minima(
    source: &Source<'_>,
    file: &File,
    classes: &BTreeMap<String, Class>,
    most: u64,
) -> Result<(), ConfigError> {
    let mut promised = 0;
    for rule in &file.vm {
        promised += classes[rule.class.as_ref()].minimum.unwrap_or(0);
        if promised > most {
            let (promised, most) = (promised as f64 / 1024.0, most as f64 / 1024.0);
            let message = format!(
                "up to this rule VMs are promised {promised:.2} pCPUs with one VM a rule; this host can promise \
                 {most:.2} (nine tenths of it)"
            );
            return Err(source.error(Some(rule.class.span()), message));
        }
    }
    Ok(())
}

fn rule(source: &Source<'_>, table: &VmTable, class: String) -> Result<Rule, ConfigError> {
    if table.cgroup.is_none() && table.name.is_none() && table.pid.is_none() {
        return Err(source.error(Some(table.class.span()), "a [[vm]] needs at least one of cgroup, name and pid"));
    }
    let pattern = |text: &Option<Spanned<String>>| text.as_ref().map(|text| glob(source, text)).transpose();
    let pid = table.pid.as_ref().map(|pid| within(source, pid, 1..=(1 << 22) - 1, "a process number")).transpose()?;
    Ok(Rule { class, cgroup: pattern(&table.cgroup)?, name: pattern(&table.name)?, pid: pid.map(|pid| pid as i32) })
}

/// What tells one VM from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// As `vm::name` has it: what QEMU and libvirt call the VM.
    pub(crate) name: &'a str,
    /// The VMM's process.
    pub(crate) pid: i32,
    /// Its cgroup, from the root of cgroup v2, beginning with a slash.
    pub(crate) cgroup: &'a str,
}

impl Rule {
    fn matches(&self, vm: &Identity<'_>) -> bool {
        self.pid.is_none_or(|pid| pid == vm.pid)
            && self.name.as_ref().is_none_or(|glob| glob.matches_with(vm.name, STOP_AT_SLASH))
            && self.cgroup.as_ref().is_none_or(|glob| glob.matches_with(vm.cgroup, STOP_AT_SLASH))
    }
}

/// `*` and `?` stop at a slash, `**` does not. A backslash stands for itself: systemd escapes with it
/// (`machine-qemu\x2d1`).
const STOP_AT_SLASH: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

fn glob(source: &Source<'_>, text: &Spanned<String>) -> Result<Pattern, ConfigError> {
    Pattern::new(text.as_ref()).map_err(|error| source.error(Some(text.span()), format!("no pattern: {}", error.msg)))
}

fn within(
    source: &Source<'_>,
    value: &Spanned<i64>,
    range: RangeInclusive<i64>,
    what: &str,
) -> Result<i64, ConfigError> {
    if range.contains(value.as_ref()) {
        return Ok(*value.as_ref());
    }
    let message = format!("{what} is from {} to {}, not {}", range.start(), range.end(), value.as_ref());
    Err(source.error(Some(value.span()), message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_class_says_what_its_guests_are_told() {
        let classes =
            parse("default = 'quiet'\n[class.quiet]\npublish = 'own'\n[class.mute]\npublish = 'none'\n").expect("fine");
        let (_, class) = classes.of(&vm("x", 1, "/")).expect("the default");
        assert_eq!(class.publish, Some(Publish::Own));
        assert!(classes.summary().contains("class quiet: weight as it is, guests are told of themselves only"));
        assert!(classes.summary().contains("told nothing"));
        let error = parse("[class.quiet]\npublish = 'some'\n").expect_err("no such word").to_string();
        assert!(error.contains("host.toml:2") && error.contains("own"), "{error}");
    }

    fn parse(text: &str) -> Result<Classes, ConfigError> {
        Classes::parse(Path::new("host.toml"), text, 4)
    }

    fn wrong(text: &str) -> String {
        parse(text).expect_err("wrong").to_string()
    }

    fn vm<'a>(name: &'a str, pid: i32, cgroup: &'a str) -> Identity<'a> {
        Identity { name, pid, cgroup }
    }

    #[test]
    fn the_first_rule_whose_patterns_all_match_decides() {
        let classes = parse(
            r#"
            default = "standard"
            [class.gold]
            weight = 1000
            [class.batch]
            weight = 10
            [[vm]]
            class = "gold"
            name = "db*"
            cgroup = '/machine.slice/machine-qemu\x2d*'
            [[vm]]
            class = "critical"
            name = "db?"
            [[vm]]
            class = "batch"
            cgroup = "/kubepods.slice/**"
            [[vm]]
            class = "batch"
            pid = 77
            "#,
        )
        .expect("fine");
        let of = |name, pid, cgroup| {
            let (name, class) = classes.of(&vm(name, pid, cgroup)).expect("has a default");
            (name.to_owned(), class.weight)
        };
        assert_eq!(of("db1", 1, r"/machine.slice/machine-qemu\x2d1.scope"), ("gold".into(), Some(1000)));
        assert_eq!(of("db1", 1, r"/machine.slice/machine-qemu\x2d1.scope/libvirt"), ("critical".into(), Some(400)));
        assert_eq!(of("web", 1, "/kubepods.slice/pod1/x"), ("batch".into(), Some(10)));
        assert_eq!(of("web", 77, "/"), ("batch".into(), Some(10)));
        assert_eq!(of("web", 78, "/"), ("standard".into(), Some(100)));
        assert!(parse("").expect("an empty file is fine").of(&vm("a", 1, "/")).is_none());
    }

    #[test]
    fn errors_name_file_line_and_key() {
        assert_eq!(wrong("[class.a]\nweight = 0\n"), "host.toml:2: class.a.weight: a weight is from 1 to 10000, not 0");
        assert_eq!(
            wrong("[class.a]\nweight = 5\n\n[[vm]]\nclass = \"gold\"\nname = \"x\"\n"),
            "host.toml:5: vm.class: no class 'gold'; there are: a, batch, critical, standard"
        );
        assert!(wrong("[[vm]]\nclass = \"batch\"\n").starts_with("host.toml:2: vm.class: a [[vm]] needs at least one"));
        let unknown = wrong("[class.a]\nweigth = 5\n");
        assert!(unknown.starts_with("host.toml:2: class.a.weigth: unknown field `weigth`"), "{unknown}");
        assert!(wrong("[[vm]]\nclass = \"batch\"\nname = \"[\"\n").starts_with("host.toml:3: vm.name: no pattern: "));
        assert!(wrong("default = 3\n").starts_with("host.toml:1: default: "));
        assert!(wrong("[[vm]]\nclass = \"batch\"\npid = -4\n").starts_with("host.toml:3: vm.pid: a process number"));
        let missing = Classes::load(Path::new("/nonexistent/host.toml")).expect_err("missing").to_string();
        assert!(missing.starts_with("/nonexistent/host.toml: "), "{missing}");
    }

    #[test]
    fn a_class_says_more_than_a_weight() {
        let classes = parse(
            r#"
            [class.critical]
            minimum_pcpus = 1.5
            extension_burst_us = 20000
            extension_percent = 10
            latency_ms = 2
            [class.batch]
            extensions = false
            [[vm]]
            class = "critical"
            name = "db"
            "#,
        )
        .expect("fine");
        let (_, class) = classes.of(&vm("db", 1, "/")).expect("has a rule");
        assert_eq!((class.weight, class.minimum), (Some(400), Some(1536)));
        let schedule =
            Schedule { extensions: None, burst: Some(20_000_000), rate_ppm: Some(100_000), latency: Some(2_000_000) };
        assert_eq!(class.schedule, schedule);
        let text = classes.summary();
        assert!(text.contains("class batch: weight 25, no extensions, 0 rules"), "{text}");
        assert!(text.contains("weight 400, at least 1.50 pCPUs, extensions of 20000 µs"), "{text}");
    }

    #[test]
    fn what_cannot_be_promised_is_said_with_line_and_key() {
        assert_eq!(
            wrong("[class.a]\nminimum_pcpus = 4\n"),
            "host.toml:2: class.a.minimum_pcpus: a minimum is from 0 to 3.60 pCPUs on this host (nine tenths of it), not 4"
        );
        let two = "[class.a]\nminimum_pcpus = 2\n[[vm]]\nclass = 'a'\nname = 'x'\n[[vm]]\nclass = 'a'\nname = 'y'\n";
        assert!(
            wrong(two).starts_with("host.toml:7: vm.class: up to this rule VMs are promised 4.00 pCPUs"),
            "{}",
            wrong(two)
        );
        assert!(wrong("[class.a]\nminimum_pcpus = nan\n").starts_with("host.toml:2: class.a.minimum_pcpus: "));
        let both = wrong("[class.a]\nextensions = false\nextension_percent = 5\n");
        assert!(both.starts_with("host.toml:3: class.a.extension_percent: a budget for extensions"), "{both}");
        assert!(wrong("[class.a]\nlatency_ms = 0\n").starts_with("host.toml:2: class.a.latency_ms: a target in ms"));
    }

    proptest! {
        #[test]
        fn any_text_is_classes_or_an_error_of_one_line(
            text in r#"(\[?\[?[a-z.]{0,9}\]?\]?[ =]{0,3}["'\[]?[a-z0-9*\\é-]{0,6}["'\]]?\n?){0,12}"#,
        ) {
            if let Err(error) = parse(&text) {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }

    #[test]
    fn mode_and_metrics_stand_beside_the_classes() {
        let file = parse("[host]\nmode = 'schedule'\nmetrics = '9780'\n").expect("fine");
        assert_eq!((file.mode, file.metrics), (Some(Mode::Schedule), "127.0.0.1:9780".parse().ok()));
        assert!(
            file.summary().contains("mode schedule\nmetrics at http://127.0.0.1:9780/metrics\n"),
            "{}",
            file.summary()
        );
        assert_eq!(parse("").expect("fine").mode, None);
        assert!(wrong("[host]\nmetrics = 'here'\n").starts_with("host.toml:2: host.metrics: give ADDR:PORT"));
        let mode = wrong("[host]\nmode = 'rule'\n");
        assert!(mode.starts_with("host.toml:2: host.mode: unknown variant"), "{mode}");
    }

    #[test]
    fn the_summary_tells_what_counts() {
        let text = parse("[class.own]\n").expect("fine").summary();
        assert!(text.contains("no default") && text.contains("class own: weight as it is, 0 rules"), "{text}");
    }
}
