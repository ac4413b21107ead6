//! What a check says.

use serde::Serialize;

use super::change::Change;

/// Commands told of many alike.
const COMMANDS: usize = 3;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Something to do.
    Todo,
    /// The reading is not to be had; `found` says why.
    Unknown,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Todo => "TO DO",
            Self::Unknown => "unknown",
        }
    }

    /// `Ok` or `Todo`.
    pub(crate) fn when(good: bool) -> Self {
        if good { Self::Ok } else { Self::Todo }
    }
}

/// One check with its outcome.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// What was looked at; a stable name for scripts.
    pub(crate) check: &'static str,
    pub(crate) state: State,
    pub(crate) found: String,
    pub(crate) wanted: String,
    pub(crate) why: &'static str,
    /// Where that is documented: a path in the kernel's source, or another work.
    pub(crate) source: &'static str,
    /// What to do: a command, or a parameter for the next boot.
    pub(crate) command: String,
    /// What `--fix` would do; empty when it cannot be done at run time.
    pub(crate) fix: Vec<Change>,
    /// What it takes at run time, done already or not: for profiles, which are applied anew at each boot.
    #[serde(skip)]
    pub(crate) wants: Vec<Change>,
    /// Parameters for the kernel's command line, given already or not.
    #[serde(skip)]
    pub(crate) boot: Vec<String>,
}

impl Finding {
    /// A finding without a fix.
    pub(crate) fn new(check: &'static str, state: State, found: impl Into<String>, wanted: impl Into<String>) -> Self {
        let (found, wanted) = (found.into(), wanted.into());
        let (command, fix, wants, boot) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        Self { check, state, found, wanted, why: "", source: "", command, fix, wants, boot }
    }

    /// Why it matters, and where that is written.
    pub(crate) fn because(mut self, why: &'static str, source: &'static str) -> Self {
        (self.why, self.source) = (why, source);
        self
    }

    /// What to type, or to append to the kernel's command line.
    pub(crate) fn by(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// What can be done at run time; without a command of its own, the changes' commands are told.
    pub(crate) fn with(mut self, changes: Vec<Change>) -> Self {
        if self.command.is_empty() {
            let told: Vec<String> = changes.iter().take(COMMANDS).map(Change::command).collect();
            self.command = told.join("; ");
            if changes.len() > COMMANDS {
                self.command +=
                    &format!("; and {} more like these: --fix, or --json for all", changes.len() - COMMANDS);
            }
        }
        if self.state == State::Todo {
            self.fix.clone_from(&changes);
        }
        self.wants = changes;
        self
    }

    /// What to append to the kernel's command line; told as what to do, where nothing else is.
    pub(crate) fn at_boot(mut self, parameter: impl Into<String>) -> Self {
        let parameter = parameter.into();
        if self.command.is_empty() {
            self.command = format!("boot with {parameter}");
        }
        self.boot.push(parameter);
        self
    }
}
