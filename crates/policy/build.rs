//! Compiles the native side of the policy headers: every `src/native/*.c`, each of which exports one header's functions.

fn main() {
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=../channel/include");
    println!("cargo:rerun-if-changed=src/native");
    let mut sources: Vec<_> = std::fs::read_dir("src/native")
        .expect("src/native is part of this crate")
        .map(|entry| entry.expect("src/native is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    println!("cargo:rerun-if-env-changed=ENTRAIN_FUZZ");
    let mut build = cc::Build::new();
    if std::env::var_os("ENTRAIN_FUZZ").is_some() {
        // For scripts/fuzz.sh: coverage as libFuzzer reads it, and a trap where the C is undefined.
        build
            .compiler("clang-19")
            .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp")
            .flag("-fsanitize=undefined")
            .flag("-fsanitize-trap=undefined");
    }
    build
        .files(sources)
        .include("include")
        .include("../channel/include")
        .flag("-std=gnu11")
        .warnings(true)
        .warnings_into_errors(true)
        .opt_level(2)
        .compile("entrain_policy");
}
