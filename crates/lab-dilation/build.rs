//! Builds the library that is preloaded, for the computer that the lab runs on.
use std::{env, path::PathBuf, process::Command};

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=src/clock.c");
    println!("cargo::rerun-if-changed=src/clock.h");
    let library = PathBuf::from(env::var("OUT_DIR")?).join("clock.so");
    // The compiler that the target's programs are built with, without their flags: those make static programs.
    let mut compiler = Command::new(cc::Build::new().get_compiler().path());
    compiler.args(["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-shared", "-o"]).arg(&library).arg("src/clock.c");
    anyhow::ensure!(compiler.status()?.success(), "the dilated clock does not compile");
    Ok(())
}
