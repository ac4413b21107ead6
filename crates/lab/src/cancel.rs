//! One flag for the whole process: the user wants to stop. Every wait of the lab looks at it.
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{LabError, Result};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn flag() -> &'static Arc<AtomicBool> {
    FLAG.get_or_init(Arc::default)
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag; a second one ends the process at once (its machines die with it,
/// see `machine::qemu`).
pub fn on_signals() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the first handler acts only if the second one has run before.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(flag()))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag())))
            .map_err(|e| LabError::io("/proc/self", e))?;
    }
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
