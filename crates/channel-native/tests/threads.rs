//! `entrain_host.h` natively under ThreadSanitizer: five writers, a daemon that pairs and lets go, a guest that takes
//! its page back at any moment (`native/writers.c`).

use std::path::Path;
use std::process::{Command, Output};

/// Compiles it with the toolchain's sanitizer and runs it for so many seconds.
fn run(seconds: u32, define: Option<&str>) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let room = tempfile::tempdir().expect("a temporary folder");
    let program = room.path().join("writers");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=thread", "-pthread"])
        // What the sanitizer cannot see, the header does not use: fences.
        .args(["-I", here.join("../channel/include").to_str().expect("text")])
        .args(define.map(|name| format!("-D{name}")))
        .arg(here.join("tests/native/writers.c"))
        .arg("-o")
        .arg(&program);
    let built = gcc.output().expect("gcc; run the tests with 'make test' or scripts/toolchain.sh run");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut command = Command::new(&program);
    command.arg(seconds.to_string()).env("TSAN_OPTIONS", "halt_on_error=1 exitcode=66");
    command.output().expect("it starts")
}

#[test]
fn the_writers_race_for_nothing() {
    let output = run(3, None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = String::from_utf8(output.stdout).expect("text");
    let figures: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [pairings, ends, words, _met] = figures[..] else { panic!("four figures: {text}") };
    assert!(pairings >= 20 && ends >= 5 && words >= 10_000, "hardly anything ran: {text}");
}

/// A check that can't fail proves nothing.
#[test]
fn a_broken_rule_is_a_race_that_is_found() {
    for rule in ["NO_RUN_QUEUE", "NO_TURNS"] {
        let output = run(20, Some(rule));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(66), "{rule}: {said}");
        assert!(said.contains("data race") && said.contains("entrain_host_put"), "{rule}: {said}");
    }
}
