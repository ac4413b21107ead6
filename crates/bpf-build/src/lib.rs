//! Compiles BPF C into Rust skeletons; used by build scripts alone.
//!
//! A skeleton declares in Rust every type that the BPF object knows, with the layout that the compiler gave it. Those
//! types are the one way in which BPF programs and user space share layouts: nothing is declared twice. What a crate does
//! with one beyond reading its fields, it asks for in its build script by [`Skeleton::plain`] and [`Skeleton::derive`].

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// Folders of the workspace whose headers every BPF program may include, relative to the workspace's root.
const INCLUDES: [&str; 3] = ["crates/bpf/include", "crates/channel/include", "crates/policy/include"];

/// Compiles `src/bpf/NAME.bpf.c` of the calling crate into `$OUT_DIR/NAME.skel.rs`.
///
/// # Panics
/// As [`Skeleton::build`].
pub fn skeleton(name: &str) {
    Skeleton::of(name).build();
}

/// A BPF object of the calling crate, and what its types can do in Rust.
#[derive(Debug)]
pub struct Skeleton<'a> {
    name: &'a str,
    plain: Vec<&'a str>,
    derives: Vec<(&'a str, &'a str)>,
}

impl<'a> Skeleton<'a> {
    /// Of `src/bpf/NAME.bpf.c`.
    pub fn of(name: &'a str) -> Self {
        Self { name, plain: Vec::new(), derives: Vec::new() }
    }

    /// Types whose values are read from bytes and written as bytes: entries of maps, records of ring buffers, contexts
    /// of programs. They implement `bytemuck::Pod` (and so do the enums that they hold, which are named here too): the
    /// compiler refuses a struct with padding, a pointer or a `bool`. They can also be compared and hashed.
    #[must_use]
    pub fn plain(mut self, types: &[&'a str]) -> Self {
        self.plain.extend(types);
        self
    }

    /// Has one type implement what else is derived, by paths as the crate has them: `serde::Serialize`.
    #[must_use]
    pub fn derive(mut self, of: &'a str, traits: &'a str) -> Self {
        self.derives.push((of, traits));
        self
    }

    /// Compiles `src/bpf/NAME.bpf.c` into `$OUT_DIR/NAME.skel.rs`.
    ///
    /// BPF objects are the same for every architecture: they keep to CO-RE and hand-written declarations.
    ///
    /// # Panics
    /// With the compiler's messages when the program does not compile, and when the object does not know a type: a build
    /// script has nobody else to tell.
    pub fn build(self) {
        let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
        let root = manifest.join("../..");
        let source = manifest.join(format!("src/bpf/{}.bpf.c", self.name));
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

        let skeleton = out_dir.join(format!("{}.skel.rs", self.name));
        SkeletonBuilder::new()
            .source(&source)
            .clang("clang-19")
            .clang_args(args)
            .reference_obj(false)
            .build_and_generate(&skeleton)
            .unwrap_or_else(|error| panic!("{}: {error:?}", source.display()));
        let text = fs::read_to_string(&skeleton).expect("the skeleton was written just now");
        fs::write(&skeleton, self.with_derives(text)).expect("OUT_DIR is writable");
    }

    fn with_derives(&self, mut text: String) -> String {
        for of in &self.plain {
            text = with_derive(&text, of, "bytemuck::Pod, bytemuck::Zeroable, Hash");
            // libbpf-cargo has its enums derive these already.
            if !text.contains(&format!("pub struct {of}(")) {
                text = with_derive(&text, of, "PartialEq, Eq");
            }
        }
        self.derives.iter().fold(text, |text, (of, traits)| with_derive(&text, of, traits))
    }
}

/// Adds an attribute before the declaration of a type.
fn with_derive(text: &str, of: &str, traits: &str) -> String {
    let at = [" {", "("].iter().find_map(|end| text.find(&format!("pub struct {of}{end}")));
    let at =
        at.unwrap_or_else(|| panic!("the BPF object knows no type {of}: no map, variable or program refers to it"));
    format!("{}#[derive({traits})]\n{}", &text[..at], &text[at..])
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "#[repr(C)]\npub struct key {\n}\npub struct kind(pub u32);\npub struct key_of_others {\n}\n";

    #[test]
    fn a_type_is_derived_where_it_is_declared() {
        let text = Skeleton::of("x").plain(&["key", "kind"]).derive("key", "Serialize").with_derives(TEXT.into());
        let key = "#[repr(C)]\n#[derive(bytemuck::Pod, bytemuck::Zeroable, Hash)]\n#[derive(PartialEq, Eq)]\n\
                   #[derive(Serialize)]\npub struct key {\n}\n";
        let kind = "#[derive(bytemuck::Pod, bytemuck::Zeroable, Hash)]\npub struct kind(pub u32);\n";
        assert_eq!(text, format!("{key}{kind}pub struct key_of_others {{\n}}\n"));
    }

    #[test]
    #[should_panic(expected = "knows no type keys")]
    fn an_unknown_type_is_told() {
        let _ = Skeleton::of("x").plain(&["keys"]).with_derives(TEXT.into());
    }
}
