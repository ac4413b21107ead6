//! `entrain … | head`: the reader goes away before all is told.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_away_ends_a_command_without_a_word() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_entrain"))
        .args(["doctor", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141), "as where SIGPIPE ends a program");
}
