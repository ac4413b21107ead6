//! Builds the guest for aarch64, whatever the lab itself is built for: clang can, and its BPF programs need it anyway.
use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, ensure};

const SOURCES: [&str; 4] = ["start.S", "board.c", "clock.c", "main.c"];
const HEADERS: &str = "../channel/include";

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=src/guest");
    println!("cargo::rerun-if-changed={HEADERS}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    let mut objects = Vec::new();
    for name in SOURCES {
        let object = out.join(name).with_extension("o");
        // No floating point: the guest does not save its registers.
        run(Command::new(&clang)
            .args(["-target", "aarch64-none-elf", "-mgeneral-regs-only", "-std=c11", "-ffreestanding", "-nostdlibinc"])
            .args(["-fno-stack-protector", "-fno-builtin", "-O2", "-Wall", "-Wextra", "-Werror", "-I", HEADERS, "-c"])
            .arg(format!("src/guest/{name}"))
            .arg("-o")
            .arg(&object))?;
        objects.push(object);
    }
    run(Command::new("aarch64-linux-gnu-ld")
        .args(["-nostdlib", "-static", "--strip-all", "-z", "noexecstack", "-z", "max-page-size=4096"])
        .args(["-T", "src/guest/link.ld", "-o"])
        .arg(out.join("rtos.elf"))
        .args(&objects))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?} (scripts/toolchain.sh has what it takes)"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
