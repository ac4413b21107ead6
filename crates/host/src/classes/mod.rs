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
//! `critical`, `standard` and `batch` are there without being written; a table of their name changes them. The first
//! `[[vm]]` whose patterns all match gives a VM its class, and `default` the others theirs. What a class does stands in
//! `apply`.

pub(crate) mod apply;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use toml::Spanned;

pub use source::ConfigError;
use source::Source;

/// The classes that are always there, with their weights: a batch VM gives way to four times as much of a standard one.
const BUILT_IN: [(&str, u64); 3] = [("critical", 400), ("standard", 100), ("batch", 25)];

/// One class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// `cpu.weight` of cgroup v2 for its VMs, 1..=10000. `None`: the VM's own weight stays as it is.
    pub weight: Option<u64>,
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Option<Spanned<String>>,
    #[serde(default)]
    class: BTreeMap<Spanned<String>, ClassTable>,
    #[serde(default)]
    vm: Vec<VmTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    weight: Option<Spanned<i64>>,
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
    cgroup: Option<GlobMatcher>,
    name: Option<GlobMatcher>,
    pid: Option<i32>,
}

/// What the file says.
#[derive(Debug)]
pub struct Classes {
    path: PathBuf,
    classes: BTreeMap<String, Class>,
    rules: Vec<Rule>,
    default: Option<String>,
}

impl Classes {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Reads the same file again.
    pub(crate) fn reload(&self) -> Result<Self, ConfigError> {
        Self::load(&self.path)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let source = Source { file: &name, text };
        let file: File = toml::from_str(text).map_err(|error| source.error(error.span(), error.message()))?;
        let mut classes: BTreeMap<String, Class> =
            BUILT_IN.into_iter().map(|(name, weight)| (name.to_owned(), Class { weight: Some(weight) })).collect();
        for (name, table) in &file.class {
            let weight =
                table.weight.as_ref().map(|weight| source.within(weight, 1..10_001, "a weight")).transpose()?;
            let class = classes.entry(name.as_ref().clone()).or_insert(Class { weight: None });
            class.weight = weight.map(|weight| weight as u64).or(class.weight);
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
        Ok(Self { path: path.to_owned(), classes, rules, default })
    }

    /// The class of a VM; `None` where no rule matches and there is no default.
    pub(crate) fn of(&self, vm: &Identity<'_>) -> Option<(&str, &Class)> {
        let rule = self.rules.iter().find(|rule| rule.matches(vm)).map(|rule| rule.class.as_str());
        let name = rule.or(self.default.as_deref())?;
        Some((name, &self.classes[name]))
    }

    /// What was read, a line for each class.
    pub fn summary(&self) -> String {
        let mut text = format!("{}: {} rules for VMs, ", self.path.display(), self.rules.len());
        text += &self.default.as_ref().map_or("no default\n".to_owned(), |name| format!("default '{name}'\n"));
        for (name, class) in &self.classes {
            let weight = class.weight.map_or("as it is".to_owned(), |weight| weight.to_string());
            let rules = self.rules.iter().filter(|rule| rule.class == *name).count();
            text += &format!("class {name}: weight {weight}, {rules} rules\n");
        }
        text
    }
}

fn rule(source: &Source<'_>, table: &VmTable, class: String) -> Result<Rule, ConfigError> {
    if table.cgroup.is_none() && table.name.is_none() && table.pid.is_none() {
        return Err(source.error(Some(table.class.span()), "a [[vm]] needs at least one of cgroup, name and pid"));
    }
    let glob = |text: &Option<Spanned<String>>| text.as_ref().map(|text| source.glob(text)).transpose();
    let pid = table.pid.as_ref().map(|pid| source.within(pid, 1..1 << 22, "a process number")).transpose()?;
    Ok(Rule { class, cgroup: glob(&table.cgroup)?, name: glob(&table.name)?, pid: pid.map(|pid| pid as i32) })
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
            && self.name.as_ref().is_none_or(|glob| glob.is_match(vm.name))
            && self.cgroup.as_ref().is_none_or(|glob| glob.is_match(vm.cgroup))
    }
}

impl Source<'_> {
    /// A pattern: `*` and `?` stop at a slash, `**` does not.
    fn glob(&self, text: &Spanned<String>) -> Result<GlobMatcher, ConfigError> {
        // systemd escapes with backslashes (machine-qemu\x2d1); they stand for themselves here.
        let glob = GlobBuilder::new(text.as_ref()).literal_separator(true).backslash_escape(false).build();
        glob.map(|glob| glob.compile_matcher())
            .map_err(|error| self.error(Some(text.span()), format!("no pattern: {}", error.kind())))
    }

    fn within(&self, value: &Spanned<i64>, range: Range<i64>, what: &str) -> Result<i64, ConfigError> {
        if range.contains(value.as_ref()) {
            return Ok(*value.as_ref());
        }
        let message = format!("{what} is from {} to {}, not {}", range.start, range.end - 1, value.as_ref());
        Err(self.error(Some(value.span()), message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Classes, ConfigError> {
        Classes::parse(Path::new("host.toml"), text)
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
    fn the_summary_tells_what_counts() {
        let text = parse("[class.own]\n").expect("fine").summary();
        assert!(text.contains("no default") && text.contains("class own: weight as it is, 0 rules"), "{text}");
    }
}
