//! How the programs end.

use std::process::ExitCode;

/// The exit status of a program; an error goes to stderr in one paragraph. `main` returning the error would print a
/// backtrace beside it where `RUST_BACKTRACE` is set, and a stripped program has no names to show in one.
pub fn status(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("Error: {}", text(&error));
        ExitCode::FAILURE
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
