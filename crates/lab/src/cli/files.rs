//! The files that a report goes to, and the terminal.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use entrain_results::output::{Output, why};

use crate::output;
use crate::report::{Report, file, html, table};

/// Status when a check failed or the lab did.
const FAILED: u8 = 1;

/// The files that the user asked for.
pub(super) struct Files {
    json: Option<Output>,
    html: Option<Output>,
    /// Where the report was read from, if it was: there it is safe.
    source: Option<PathBuf>,
}

impl Files {
    /// Looks whether they can be written.
    pub(super) fn new(json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self { json: json.map(Output::new).transpose()?, html: html.map(Output::new).transpose()?, source: None })
    }

    /// For a report that was read from `source`.
    pub(super) fn of(source: &Path, html: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self { source: Some(source.to_owned()), ..Self::new(None, html)? })
    }

    /// Writes what a run has so far, so that it can be gone on with. What goes wrong is told and is no end: the disk may
    /// have room again after the next boot.
    pub(super) fn write_part(&self, report: &Report) {
        let Some(file) = self.json.as_ref().filter(|file| file.replaced()) else { return };
        if let Err(error) = file.write(&file::content(report, file.name())) {
            tracing::warn!("{}; tried again after the next boot", why(file.name(), &error));
        }
    }

    /// How a run that is not complete can be gone on with, and where it was kept for that.
    pub(super) fn tell_rest(&self, report: &Report) {
        if report.complete || report.samples.is_empty() {
            return;
        }
        let file = self.json.as_ref().filter(|file| file.replaced()).map(|file| file.name().to_owned());
        let kept = file.or_else(|| output::keep(file::json(report).as_bytes(), &report.experiment, "json"));
        if let Some(kept) = kept {
            let text = format!("{} has what was measured: '--continue' with it makes the rest\n", kept.display());
            output::tell(io::stderr(), &text);
        }
    }

    /// Writes both. If one fails, the report is kept as JSON elsewhere, unless it is safe already.
    fn write(&self, report: &Report) -> anyhow::Result<()> {
        let write = |file: &Option<Output>, bytes: &dyn Fn(&Path) -> Vec<u8>| {
            let file = file.as_ref()?;
            file.write(&bytes(file.name())).err().map(|error| why(file.name(), &error))
        };
        let failed = [
            write(&self.json, &|name| file::content(report, name)),
            write(&self.html, &|_| html::render(report).into_bytes()),
        ];
        let written = self.json.as_ref().filter(|_| failed[0].is_none()).map(|file| file.name().to_owned());
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        if failed.is_empty() {
            return Ok(());
        }
        let what = failed.join("; ");
        let safe = written.or_else(|| self.source.clone());
        let json = file::json(report);
        let kept = safe.or_else(|| output::keep(json.as_bytes(), &report.experiment, "json"));
        let Some(kept) = kept else {
            output::tell(io::stdout(), &json);
            let temp = std::env::temp_dir();
            bail!("{what}. Neither the cache nor {} takes it: the report is printed above, as JSON", temp.display());
        };
        let kept = kept.display();
        bail!(
            "{what}. Nothing is lost: the report is kept in {kept}; 'entrain lab report {kept} --html FILE' shows it again"
        )
    }
}

pub(super) fn show(report: &Report, files: &Files) -> anyhow::Result<ExitCode> {
    let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let written = files.write(report);
    output::tell(io::stdout(), &table::render(report, color));
    written?;
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
