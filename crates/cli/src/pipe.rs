//! A reader that goes away (`entrain doctor | head -1`) ends a command without a word, as it ends other programs.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// What a shell says of a program that SIGPIPE has ended.
const STATUS: u8 = 128 + 13;

/// Runs a command. Where standard output is closed the standard library panics; what is cleaned up at a command's end is
/// cleaned up then, too, which a signal would prevent.
pub fn until_closed(run: impl FnOnce() -> ExitCode) -> ExitCode {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_closed(info.payload()) {
            told(info);
        }
    }));
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        if is_closed(&*payload) { ExitCode::from(STATUS) } else { panic::resume_unwind(payload) }
    })
}

/// Whether a panic says so, in the standard library's words: a test of `entrain` holds that they are.
fn is_closed(payload: &(dyn Any + Send)) -> bool {
    payload.downcast_ref::<String>().is_some_and(|text| text.starts_with("failed printing to stdout: Broken pipe"))
}
