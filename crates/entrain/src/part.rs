//! `entrain lab`, `entrain sim`: hand over to programs of their own, so that what runs as root on a host carries neither
//! recipes for machines nor an archive's client nor a simulated kernel.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;

/// A part that is a program of its own.
#[derive(Debug)]
pub(crate) struct Part {
    program: &'static str,
    what: &'static str,
}

/// The nested lab.
pub(crate) const LAB: Part = Part { program: "entrain-lab", what: "the lab" };
/// The simulator.
pub(crate) const SIM: Part = Part { program: "entrain-sim", what: "the simulator" };

/// Everything after the part's name: its program knows what it means, `--help` included.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct PartArgs {
    /// What it shall do; its own --help lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

/// Becomes the part's program; returns only if that fails.
pub(crate) fn run(part: &Part, args: &PartArgs) -> anyhow::Result<ExitCode> {
    let own = env::current_exe().and_then(|path| path.canonicalize()).context("/proc/self/exe")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(program) = find(part.program, folder, env::split_paths(&path)) else {
        let Part { program, what } = part;
        bail!(
            "{what} is a program of its own, {program}, and lies neither beside {} nor in ../lib/entrain nor on PATH: in \
             Entrain's sources 'make build' makes it, 'make install' installs it",
            own.display()
        );
    };
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The first of that name that can be run: beside this program (in `folder`), in `../lib/entrain`, on the search path.
fn find(program: &str, folder: &Path, search: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let near = [folder.to_owned(), folder.join("../lib/entrain")];
    // An empty element means the working folder, which is nobody's place for programs.
    let search = search.into_iter().filter(|folder| folder.is_absolute());
    near.into_iter().chain(search).map(|folder| folder.join(program)).find(|path| executable(path))
}

fn executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const PROGRAM: &str = LAB.program;

    #[test]
    fn the_nearest_program_that_can_be_run_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let place = |name: &str, mode| {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(PROGRAM), "").unwrap();
            fs::set_permissions(folder.join(PROGRAM), Permissions::from_mode(mode)).unwrap();
            folder
        };
        let bin = root.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let found = |search: &[&PathBuf]| find(PROGRAM, &bin, search.iter().map(|folder| (*folder).clone()));
        assert_eq!(found(&[]), None);
        let (text, path) = (place("text", 0o644), place("path", 0o755));
        assert_eq!(found(&[&PathBuf::new(), &text, &path]), Some(path.join(PROGRAM)));
        place("lib/entrain", 0o755);
        assert_eq!(found(&[&path]), Some(bin.join("../lib/entrain").join(PROGRAM)));
        place("bin", 0o755);
        assert_eq!(found(&[&path]), Some(bin.join(PROGRAM)));
    }
}
