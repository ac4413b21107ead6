//! Compiles BPF C into Rust skeletons; used by build scripts alone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// Folders of the workspace whose headers every BPF program may include, relative to the workspace's root.
const INCLUDES: [&str; 3] = ["crates/bpf/include", "crates/channel/include", "crates/policy/include"];

/// Compiles `src/bpf/NAME.bpf.c` of the calling crate into `$OUT_DIR/NAME.skel.rs`.
///
/// BPF objects are the same for every architecture: they keep to CO-RE and hand-written declarations.
///
/// # Panics
/// With the compiler's messages when the program does not compile: a build script has nobody else to tell.
pub fn skeleton(name: &str) {
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let root = manifest.join("../..");
    let source = manifest.join(format!("src/bpf/{name}.bpf.c"));
    let out_dir = PathBuf::from(var("OUT_DIR"));
    let libbpf = libbpf_headers(&out_dir);

    let mut args: Vec<String> =
        vec!["-mcpu=v3".into(), "-Wall".into(), "-Werror".into(), "-Wno-unused-function".into()];
    // The kernel's UAPI headers; the few machine-dependent ones say the same for every machine that matters here.
    args.push("-idirafter".into());
    args.push("/usr/include/x86_64-linux-gnu".into());
    args.push("-I".into());
    args.push(libbpf.display().to_string());
    for include in INCLUDES {
        args.push("-I".into());
        args.push(root.join(include).display().to_string());
        println!("cargo:rerun-if-changed={}", root.join(include).display());
    }
    println!("cargo:rerun-if-changed={}", manifest.join("src/bpf").display());

    SkeletonBuilder::new()
        .source(&source)
        .clang("clang-19")
        .clang_args(args)
        .reference_obj(false)
        .build_and_generate(out_dir.join(format!("{name}.skel.rs")))
        .unwrap_or_else(|error| panic!("{}: {error:?}", source.display()));
}

/// Lays out the BPF-side headers of the very libbpf that is linked, and returns their include folder.
fn libbpf_headers(out_dir: &Path) -> PathBuf {
    let include = out_dir.join("include");
    fs::create_dir_all(include.join("bpf")).expect("OUT_DIR is writable");
    for (name, text) in libbpf_sys::API_HEADERS {
        fs::write(include.join("bpf").join(name), text).expect("OUT_DIR is writable");
    }
    include
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is set by cargo for build scripts"))
}
