//! One daemon per run folder, and what the service manager hears of it.

use std::fs::{File, TryLockError};
use std::path::Path;

use sd_notify::NotifyState;

use crate::error::HostError;

/// Makes the run folder and takes its lock, which lasts as long as the file is open.
pub(super) fn lock(run_dir: &Path) -> Result<File, HostError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| HostError::File { path, source }
    };
    entrain_system::private_folder(run_dir).map_err(at(run_dir))?;
    let path = run_dir.join("host.lock");
    let file = File::create(&path).map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HostError::Running(path)),
        Err(TryLockError::Error(source)) => Err(HostError::File { path, source }),
    }
}

/// Without a service manager nobody is told.
pub(super) fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot tell the service manager: {error}");
    }
}
