//! How the programs end. Beside 0 and 1 they use the numbers of sysexits.h for what another start would not cure, so that
//! a service manager leaves it alone (`RestartPreventExitStatus=`); 2 is a wrong command line, by clap.

use std::process::ExitCode;

/// The machine cannot do it, whoever asks: the kernel lacks something.
pub const UNAVAILABLE: u8 = 69;
/// This process may not.
pub const NO_PERMISSION: u8 = 77;
/// A file of the user's is wrong.
pub const CONFIGURATION: u8 = 78;

/// The exit status of a program; an error goes to stderr in one paragraph. `main` returning the error would print a
/// backtrace beside it where `RUST_BACKTRACE` is set, and a stripped program has no names to show in one.
///
/// `lasting` gives the errors that another start would not cure a status of their own.
pub fn status(result: anyhow::Result<ExitCode>, lasting: impl Fn(&anyhow::Error) -> Option<u8>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("Error: {}", text(&error));
        lasting(&error).map_or(ExitCode::FAILURE, ExitCode::from)
    })
}

/// What went wrong and why; a cause that its consequence names already is not repeated.
fn text(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow!("no such file").context("cannot read a.rec").context("cannot read a.rec: give another");
        assert_eq!(text(&error), "cannot read a.rec: give another: no such file");
    }
}
