//! `entrain-lab-agent`: serves the lab inside a machine. The machine's init starts it.

use std::io;
use std::process::ExitCode;

use tracing::Level;

fn main() -> ExitCode {
    // Standard error is the machine's console, which the lab reads.
    tracing_subscriber::fmt().with_max_level(Level::WARN).with_ansi(false).with_writer(io::stderr).init();
    match entrain_lab_agent::serve::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("entrain-lab-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
