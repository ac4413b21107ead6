//! What a series of sessions has found so far, and the file that keeps it: written after each session, so that a
//! series that was cut off goes on where it stood.
use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, bail, ensure};
use entrain_lab_machine::machine::MachineSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sameness;

/// Version of the file.
const SCHEMA: u32 = 1;
/// Below this share of the CPU time that it asked for, a machine whose load failed or came too late tells of this
/// computer's other work: a load's deadline supposes three times as much.
const STARVED: f64 = 0.3;

/// One session.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Session {
    pub(super) number: u32,
    pub(super) ok: bool,
    /// The fault's class, or "deadline", "load" (a load failed), "other".
    pub(super) class: Option<String>,
    /// In full, with the last lines of the console.
    pub(super) detail: Option<String>,
    /// May the emulator alone be to blame?
    pub(super) emulator: bool,
    /// Until host machine and guests were up, s.
    pub(super) boot_seconds: f32,
    /// Under load, s.
    pub(super) load_seconds: f32,
    /// Loads that ended in all guests.
    pub(super) windows: u32,
    /// Share of the CPU time it asked for that the machine got, 0 to 1; 0 if it ended before any load.
    pub(super) cpu_share: f64,
}

impl Session {
    /// It did not end well, but not by a fault: other programs took the CPU, and it is to be made anew.
    fn starved(&self) -> bool {
        let short = self.cpu_share > 0.0 && self.cpu_share < STARVED;
        !self.ok && short && matches!(self.class.as_deref(), Some("load" | "deadline"))
    }
}

/// The series.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Series {
    schema: u32,
    /// The [`MachineSpec`], as JSON: only compared and kept.
    machine: Value,
    pub(super) release: String,
    pub(super) seconds: u64,
    pub(super) ok: usize,
    pub(super) lost: BTreeMap<String, usize>,
    pub(super) sessions: Vec<Session>,
    /// Not counted, and to be made anew: other programs took the CPU.
    #[serde(default)]
    pub(super) starved: Vec<Session>,
}

impl Series {
    /// One without sessions.
    pub(super) fn new(spec: &MachineSpec, release: &str, seconds: u64) -> Self {
        Self {
            schema: SCHEMA,
            machine: sameness::machine(spec),
            release: release.to_owned(),
            seconds,
            ok: 0,
            lost: BTreeMap::new(),
            sessions: Vec::new(),
            starved: Vec::new(),
        }
    }

    /// Reads a file that [`Self::text`] made.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let series: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} was not written by 'entrain lab reliability --json'", path.display()))?;
        ensure!(
            series.schema == SCHEMA,
            "{} has schema {}; this program knows {SCHEMA}",
            path.display(),
            series.schema
        );
        Ok(series)
    }

    /// The file's content.
    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// Goes on where `earlier` stood.
    ///
    /// # Errors
    /// It is of another machine, kernel or length: figures of both together would tell of neither.
    pub(super) fn go_on(&mut self, earlier: Self) -> anyhow::Result<()> {
        let mut differs: Vec<String> = [
            sameness::difference("kernel", &earlier.release, &self.release),
            sameness::difference("--seconds", &earlier.seconds, &self.seconds),
        ]
        .into_iter()
        .flatten()
        .collect();
        differs.extend(sameness::of_machines(earlier.machine, &self.machine));
        if !differs.is_empty() {
            bail!("it is of other sessions ({}): give the same options, or another file", differs.join("; "));
        }
        self.sessions = earlier.sessions;
        self.starved = earlier.starved;
        self.count();
        Ok(())
    }

    /// Takes one session more.
    pub(super) fn push(&mut self, session: Session) {
        self.sessions.push(session);
        self.count();
    }

    fn count(&mut self) {
        self.starved.extend(self.sessions.extract_if(.., |session| session.starved()));
        self.sessions.sort_by_key(|session| session.number);
        self.ok = self.sessions.iter().filter(|session| session.ok).count();
        self.lost.clear();
        for session in self.sessions.iter().filter(|session| !session.ok) {
            *self.lost.entry(session.class.clone().unwrap_or_default()).or_insert(0) += 1;
        }
    }

    /// The numbers below `all` of the sessions that are still to be made.
    pub(super) fn missing(&self, all: u32) -> Vec<u32> {
        (0..all).filter(|number| self.sessions.iter().all(|session| session.number != *number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use entrain_lab_machine::machine::GuestSpec;

    use super::*;

    fn series() -> Series {
        let mut series = Series::new(&MachineSpec::default(), "7.3.4", 60);
        series.push(Session { number: 2, class: Some("silent".into()), ..Session::default() });
        series.push(Session { number: 0, ok: true, ..Session::default() });
        series
    }

    #[test]
    fn a_series_goes_on_where_it_stood() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), series().text()).unwrap();
        let mut again = Series::new(&MachineSpec::default(), "7.3.4", 60);
        again.go_on(Series::read(file.path()).unwrap()).unwrap();
        assert_eq!((again.ok, again.lost["silent"]), (1, 1));
        assert_eq!(again.missing(5), [1, 3, 4]);
        assert_eq!(again.missing(1), [0; 0]);
    }

    #[test]
    fn an_older_program_s_series_goes_on() {
        let spec = MachineSpec { guests: vec![GuestSpec::new("guest0", 4)], ..MachineSpec::default() };
        let mut old = Series::new(&spec, "7.3.4", 60);
        assert!(old.machine.as_object_mut().unwrap().remove("nested").is_some(), "a newer option");
        assert!(old.machine["guests"][0].as_object_mut().unwrap().remove("initrd").is_some(), "and one of guests");
        Series::new(&spec, "7.3.4", 60).go_on(old.clone()).unwrap();
        let other = MachineSpec { nested: false, ..spec };
        assert!(Series::new(&other, "7.3.4", 60).go_on(old).is_err());
    }

    #[test]
    fn what_starved_is_made_anew() {
        let mut series = series();
        series.push(Session { number: 1, class: Some("load".into()), cpu_share: 0.2, ..Session::default() });
        assert_eq!((series.sessions.len(), series.starved.len(), series.lost.contains_key("load")), (2, 1, false));
        assert_eq!(series.missing(3), [1]);
        series.push(Session { number: 1, class: Some("load".into()), cpu_share: 0.5, ..Session::default() });
        assert_eq!(series.lost["load"], 1, "with CPU enough it is a loss");
        series.push(Session { number: 3, class: Some("oops".into()), cpu_share: 0.2, ..Session::default() });
        assert_eq!(series.lost["oops"], 1, "and a fault is one however little there was");
        series.push(Session { number: 4, class: Some("deadline".into()), ..Session::default() });
        assert_eq!(series.lost["deadline"], 1, "and so is a boot that failed before anything was measured");
    }

    #[test]
    fn what_differs_is_named() {
        let spec = MachineSpec { pcpus: 4, ..MachineSpec::default() };
        let told = |mut new: Series| new.go_on(series()).unwrap_err().to_string();
        assert!(told(Series::new(&spec, "7.3.4", 60)).contains("pcpus: 2, now 4"));
        assert!(told(Series::new(&MachineSpec::default(), "7.4", 60)).contains("kernel: 7.3.4, now 7.4"));
        assert!(told(Series::new(&MachineSpec::default(), "7.3.4", 30)).contains("--seconds: 60, now 30"));
    }

    #[test]
    fn another_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"samples\": []}").unwrap();
        assert!(Series::read(file.path()).unwrap_err().to_string().contains("was not written by"));
    }
}
