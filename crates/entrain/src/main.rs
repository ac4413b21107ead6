//! The `entrain` command line.
fn main() {}
