//! Idle CPUs of the development machine that wake up in a moment.
//!
//! Each wake-up inside an emulated machine takes up to three of the emulator's threads, each on a CPU that has gone to sleep
//! meanwhile: a timer's interrupt was some 15 us late by the machine's clock, where a computer's is 4. Linux's interface
//! for that is `/dev/cpu_dma_latency` (Documentation/power/pm_qos_interface.rst), which cyclictest uses in the same way:
//! idle CPUs look for work instead of sleeping for as long as the file is open.
use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
};

use tracing::debug;

/// Until it is dropped no CPU of this computer sleeps deeply. None where nobody may ask for that: the machine runs all
/// the same, and its timers are later.
pub(super) fn stay(device: &Path) -> Option<File> {
    let asked = OpenOptions::new().write(true).open(device).and_then(|mut file| {
        // At most so many us to wake up, as a native 32-bit number.
        file.write_all(&0i32.to_ne_bytes())?;
        Ok(file)
    });
    asked.inspect_err(|error| debug!("CPUs of this computer may sleep, {}: {error}", device.display())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_for_no_delay() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("latency");
        assert!(stay(&device).is_none(), "a computer without the interface");
        std::fs::write(&device, [1; 4]).unwrap();
        drop(stay(&device).unwrap());
        assert_eq!(std::fs::read(&device).unwrap(), [0; 4]);
    }
}
