//! What the types of an experiment file can't say: names that refer to nothing, and values out of range.

use std::collections::BTreeSet;
use std::ops::Range;

use entrain_cpufreq_emulation::tables::Choice as Frequency;
use toml::Spanned;

use entrain_config::{ConfigError, Source};
use entrain_lab_machine::machine::Arch;

use super::{Experiment, Load, STOCK, Statistic, Step};

type Checked = Result<(), ConfigError>;

/// Checks a whole file; the first thing wrong is the error.
pub(super) fn validate(experiment: &Experiment, source: &Source) -> Checked {
    let this = Validate { experiment, source };
    this.sizes()?;
    this.names()?;
    for load in &experiment.loads {
        this.load(load)?;
    }
    let programs: Vec<&str> = entrain_lab_machine::image::programs::names().collect();
    this.known(&experiment.machine.programs, "program", &programs)?;
    for arm in &experiment.arms {
        this.known(&arm.configurations, "configuration", &this.configurations())?;
        this.known(&arm.programs, "program", &programs)?;
        if arm.on_demand && arm.name.as_ref() == STOCK {
            return this.wrong(arm.name.span(), "the others are compared with 'stock': it always runs");
        }
        for step in &arm.steps {
            this.step(step)?;
        }
    }
    for probe in &experiment.probes {
        if !crate::probe::PROBES.contains(&probe.as_ref().as_str()) {
            return this.wrong(
                probe.span(),
                format!("no probe '{}'; there are: {}", probe.as_ref(), crate::probe::PROBES.join(", ")),
            );
        }
    }
    this.comparisons()?;
    this.checks()
}

struct Validate<'a> {
    experiment: &'a Experiment,
    source: &'a Source<'a>,
}

impl Validate<'_> {
    fn wrong(&self, span: Range<usize>, message: impl Into<String>) -> Checked {
        Err(self.source.error(Some(span), message))
    }

    fn sizes(&self) -> Checked {
        let e = self.experiment;
        for (count, what) in [(&e.boots, "boots"), (&e.rounds, "rounds")] {
            if *count.as_ref() == 0 || *count.as_ref() > 1000 {
                return self.wrong(count.span(), format!("{what} must be between 1 and 1000"));
            }
        }
        let top = e.name.span();
        let count = |count: Option<u32>| count.is_none_or(|count| (1..=1000).contains(&count));
        let time = |time: Option<f64>, most| time.is_none_or(|time| time > 0.0 && time <= most);
        let all = [
            (!count(e.quick.boots), "quick.boots must be between 1 and 1000"),
            (!count(e.quick.rounds), "quick.rounds must be between 1 and 1000"),
            (!time(e.quick.seconds, 3600.0), "quick.seconds must be above 0 and at most 3600"),
            (!time(e.quick.within, 86_400.0), "quick.within must be above 0 and at most 86400"),
            (e.configurations.is_empty(), "an experiment needs at least one [[configuration]]"),
            (e.loads.is_empty(), "an experiment needs at least one [[load]]"),
            (e.arch.is_empty(), "arch must name at least one architecture"),
            (e.machine.pcpus == 0 || e.machine.pcpus > 64, "machine.pcpus must be between 1 and 64"),
            (e.machine.memory_mib < 512, "machine.memory_mib must be at least 512"),
            (!e.arms.iter().any(|arm| arm.name.as_ref() == STOCK), "one [[arm]] must be named 'stock'"),
        ];
        for (bad, message) in all {
            if bad {
                return self.wrong(top, message);
            }
        }
        if let Some(fault) = e.machine.topology.fault(e.machine.pcpus) {
            return self.wrong(top, format!("machine.topology: {fault}"));
        }
        if let Some(text) = &e.machine.frequency {
            let choice = text.as_ref().parse::<Frequency>().map_err(|e| e.to_string());
            let resolved =
                choice.and_then(|c| c.resolve(e.machine.pcpus as usize).map(drop).map_err(|e| e.to_string()));
            if let Err(message) = resolved {
                return self.wrong(text.span(), message);
            }
            if e.arch != [Arch::Aarch64] {
                return self.wrong(text.span(), "frequencies are only emulated on aarch64: arch = [\"aarch64\"]");
            }
        }
        if !e.machine.nested && !e.guests.is_empty() {
            return self.wrong(e.guests[0].name.span(), "a machine with nested = false has no guests");
        }
        if e.machine.qpw && !e.machine.rt {
            return self.wrong(top, "qpw is for PREEMPT_RT: rt = true");
        }
        for guest in &e.guests {
            if guest.vcpus == 0 || guest.vcpus > 64 || guest.memory_mib < 128 {
                return self.wrong(guest.name.span(), "a guest needs 1 to 64 vcpus and a memory_mib of at least 128");
            }
        }
        Ok(())
    }

    /// Names are unique, can be a part of a file name, and the label of a load can be taken apart again.
    fn names(&self) -> Checked {
        let e = self.experiment;
        let groups: [Vec<&Spanned<String>>; 5] = [
            vec![&e.name],
            e.guests.iter().map(|one| &one.name).collect(),
            e.configurations.iter().map(|one| &one.name).collect(),
            e.loads.iter().map(|one| &one.name).collect(),
            e.arms.iter().map(|one| &one.name).collect(),
        ];
        for group in groups {
            self.unique(&group)?;
        }
        for configuration in &e.configurations {
            let guests: Vec<&str> = e.guests.iter().map(|guest| guest.name.as_ref().as_str()).collect();
            self.known(&configuration.guests, "guest", &guests)?;
        }
        Ok(())
    }

    fn unique(&self, names: &[&Spanned<String>]) -> Checked {
        let mut seen = BTreeSet::new();
        for name in names {
            let text = name.as_ref();
            if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
                return self.wrong(name.span(), format!("'{text}' is no name: letters, digits, '-', '_' and '.' only"));
            }
            if !seen.insert(text) {
                return self.wrong(name.span(), format!("'{text}' is named twice"));
            }
        }
        Ok(())
    }

    fn load(&self, load: &Load) -> Checked {
        let span = load.name.span();
        match (&load.run, &load.scenario) {
            (Some(run), None) => {
                self.argv(run)?;
                if load.metrics.is_empty() {
                    return self.wrong(span, "a load with 'run' needs at least one [[load.metric]]");
                }
            }
            (None, Some(scenario)) => {
                if crate::scenario::find(scenario.as_ref()).is_none() {
                    let known = crate::scenario::names().join(", ");
                    return self
                        .wrong(scenario.span(), format!("no scenario '{}'; there are: {known}", scenario.as_ref()));
                }
            }
            _ => return self.wrong(span, "a load has either 'run' or 'scenario'"),
        }
        let quick = load.quick_seconds.unwrap_or(load.seconds);
        for (value, what) in [(load.seconds, "seconds"), (quick, "quick_seconds"), (load.timeout, "timeout")] {
            if !(value > 0.0 && value <= 3600.0) {
                return self.wrong(span, format!("{what} must be above 0 and at most 3600"));
            }
        }
        if !(1..=100).contains(&load.samples) {
            return self.wrong(span, "samples must be between 1 and 100");
        }
        if !(0.0..=600.0).contains(&load.warmup) {
            return self.wrong(span, "warmup must be between 0 and 600");
        }
        self.unique(&load.metrics.iter().map(|metric| &metric.name).collect::<Vec<_>>())?;
        self.known(&load.configurations, "configuration", &self.configurations())?;
        self.known(&load.arms, "arm", &self.arms())
    }

    fn step(&self, step: &Step) -> Checked {
        self.argv(&step.run)?;
        for argv in [&step.undo, &step.ready_run, &step.holds_run].into_iter().flatten() {
            self.argv(argv)?;
        }
        if !(step.within > 0.0 && step.within <= 600.0) {
            return self.wrong(step.run.span(), "within must be above 0 and at most 600");
        }
        if !step.background && (step.ready_line.is_some() || step.ready_run.is_some() || step.holds_run.is_some()) {
            return self.wrong(step.run.span(), "ready_line, ready_run and holds_run are for background = true");
        }
        match &step.undo {
            Some(undo) if step.background => {
                self.wrong(undo.span(), "a background command is ended by SIGTERM; it has no undo")
            }
            _ => Ok(()),
        }
    }

    fn argv(&self, argv: &Spanned<Vec<String>>) -> Checked {
        if argv.as_ref().is_empty() {
            return self.wrong(argv.span(), "a command needs at least its program");
        }
        for argument in argv.as_ref() {
            if let Some(word) = crate::placeholder::misspelt(argument) {
                let known = crate::placeholder::PLACEHOLDERS.join(", ");
                return self.wrong(argv.span(), format!("unknown placeholder '{word}'; there are: {known}"));
            }
        }
        Ok(())
    }

    fn comparisons(&self) -> Checked {
        for comparison in &self.experiment.comparisons {
            for configuration in [&comparison.of, &comparison.to] {
                self.known(std::slice::from_ref(configuration), "configuration", &self.configurations())?;
            }
            self.known(comparison.arm.as_slice(), "arm", &self.arms())?;
        }
        Ok(())
    }

    fn checks(&self) -> Checked {
        let e = self.experiment;
        self.check_names()?;
        for check in &e.checks {
            let loads: Vec<&str> = e.loads.iter().map(|load| load.name.as_ref().as_str()).collect();
            self.known(std::slice::from_ref(&check.load), "load", &loads)?;
            self.known(std::slice::from_ref(&check.arm), "arm", &self.arms())?;
            self.known(check.to.as_slice(), "arm", &self.arms())?;
            self.known(check.configuration.as_slice(), "configuration", &self.configurations())?;
            self.known(check.to_configuration.as_slice(), "configuration", &self.configurations())?;
            if check.configuration.is_none() && e.configurations.len() > 1 {
                return self.wrong(check.name.span(), "a check must name its configuration, there being more than one");
            }
            if check.at_least.is_none() && check.at_most.is_none() {
                return self.wrong(check.name.span(), "a check needs at_least or at_most: without, it could not fail");
            }
            let ratio = matches!(check.of, Statistic::Ratio | Statistic::RatioLo | Statistic::RatioHi);
            if !ratio && (check.to.is_some() || check.to_configuration.is_some()) {
                return self.wrong(check.name.span(), "to and to_configuration are for of = \"ratio\"");
            }
            self.check_metric(check.load.as_ref(), &check.metric, check.name.span())?;
        }
        Ok(())
    }

    fn check_names(&self) -> Checked {
        let mut seen = BTreeSet::new();
        for check in &self.experiment.checks {
            if !seen.insert(check.name.as_ref()) {
                return self.wrong(check.name.span(), "two checks have this name");
            }
        }
        Ok(())
    }

    /// A metric is declared by its load, given by a probe, or comes from a scenario, which says so only when it runs.
    fn check_metric(&self, load: &str, metric: &str, span: Range<usize>) -> Checked {
        let Some(load) = self.experiment.loads.iter().find(|one| one.name.as_ref() == load) else { return Ok(()) };
        let declared = load.metrics.iter().any(|one| one.name.as_ref() == metric);
        if declared || load.scenario.is_some() || !self.experiment.probes.is_empty() {
            return Ok(());
        }
        self.wrong(span, format!("load '{}' has no metric '{metric}'", load.name.as_ref()))
    }

    fn configurations(&self) -> Vec<&str> {
        self.experiment.configurations.iter().map(|one| one.name.as_ref().as_str()).collect()
    }

    fn arms(&self) -> Vec<&str> {
        self.experiment.arms.iter().map(|one| one.name.as_ref().as_str()).collect()
    }

    fn known(&self, names: &[Spanned<String>], what: &str, known: &[&str]) -> Checked {
        match names.iter().find(|name| !known.contains(&name.as_ref().as_str())) {
            Some(name) => {
                let known = known.join(", ");
                self.wrong(name.span(), format!("no {what} '{}'; there are: {known}", name.as_ref()))
            }
            None => Ok(()),
        }
    }
}
