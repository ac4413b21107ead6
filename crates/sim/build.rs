//! Compiles the schedulers of host and guest natively, each into a shared object that the simulator loads once a machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that the schedulers' sources include from, relative to this crate.
const INCLUDES: [&str; 5] =
    ["native/include", "native/peers", "../bpf/include", "../channel/include", "../policy/include"];

fn main() {
    println!("cargo:rerun-if-changed=native");
    for include in &INCLUDES[2..] {
        println!("cargo:rerun-if-changed={include}");
    }
    for side in ["host", "guest"] {
        object(side, &format!("../{side}/src/bpf"));
    }
}

/// Links `native/SIDE.c` into `$OUT_DIR/SIDE.so`. A helper that the simulated kernel lacks fails here.
fn object(side: &str, sources: &str) {
    println!("cargo:rerun-if-changed={sources}");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo")).join(format!("{side}.so"));
    let mut build = cc::Build::new();
    build.opt_level(2).std("gnu11").define("__bpf__", None).pic(true).include(sources);
    for include in INCLUDES {
        build.include(include);
    }
    // What BPF C takes for granted: attributes of clang's BPF target mean nothing here. All else that the compiler
    // would only warn of natively stays an error where it would hide a missing helper.
    for flag in ["-Wall", "-Werror=implicit-function-declaration", "-Wno-unknown-pragmas", "-Wno-unused"] {
        build.flag(flag);
    }
    for flag in ["-fno-semantic-interposition", "-fno-strict-aliasing", "-fno-stack-protector", "-Wno-attributes"] {
        build.flag(flag);
    }
    build.warnings(false);
    // The workspace's programs are static; the objects are not, though they need no library either.
    let compiler = build.get_compiler();
    let mut link = Command::new(compiler.path());
    link.args(compiler.args().iter().filter(|flag| *flag != "-static"))
        .args(["-shared", "-nostdlib", "-Wl,--no-undefined", "-Wl,-Bsymbolic", "-o"])
        .arg(&out)
        .arg(Path::new("native").join(format!("{side}.c")));
    let status = link.status().unwrap_or_else(|error| panic!("{link:?}: {error}"));
    assert!(status.success(), "{side}'s scheduler does not compile natively: {link:?}");
}
