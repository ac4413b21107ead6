//! All targets under libFuzzer; the environment names one (`ENTRAIN_FUZZ_TARGET=classes`), so that one link serves all.
#![no_main]

use std::sync::LazyLock;

use entrain_fuzz::{TARGETS, Target, target};

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("ENTRAIN_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("entrain-fuzz: ENTRAIN_FUZZ_TARGET={name}: set it to one of {}", known.join(", "));
        std::process::exit(2)
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    CHOSEN.run(data);
});
