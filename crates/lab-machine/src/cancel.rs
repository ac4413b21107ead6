//! One flag for the whole process: the user wants to stop. Every wait of the lab looks at it.
use std::{
    process,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{LabError, Result};

/// How often a sleeper looks whether the user has had enough.
const GLANCE: Duration = Duration::from_millis(50);

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// A second signal within this time is the same wish: timeout(1) and service managers signal a process and then its
/// group, and what an hour has gathered must not be lost to that.
const SAME: Duration = Duration::from_secs(1);

fn flag() -> &'static Arc<AtomicBool> {
    FLAG.get_or_init(Arc::default)
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag; a later one ends the process at once (its machines die with it,
/// see `machine::qemu`).
pub fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| LabError::io("/proc/self", e))?;
    thread::spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            cancel();
            if first.get_or_insert_with(Instant::now).elapsed() > SAME {
                process::exit(128 + signal);
            }
        }
    });
    Ok(())
}

/// Asks everything to stop, as a signal does.
pub fn cancel() {
    flag().store(true, Ordering::SeqCst);
}

/// Has the user asked to stop?
pub fn cancelled() -> bool {
    flag().load(Ordering::SeqCst)
}

/// An error if the user has asked to stop.
pub fn check() -> Result<()> {
    if cancelled() { Err(LabError::Cancelled) } else { Ok(()) }
}

/// Sleeps, but not for a user who has had enough.
pub fn sleep(time: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        check()?;
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(GLANCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_lasts_its_time() {
        let begun = Instant::now();
        sleep(Duration::ZERO).unwrap();
        sleep(GLANCE + Duration::from_millis(10)).unwrap();
        assert!(begun.elapsed() >= GLANCE + Duration::from_millis(10));
    }
}
