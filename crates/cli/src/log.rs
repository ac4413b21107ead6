//! What a program says beside its results: on stderr, filtered by `RUST_LOG`.

use std::io::{IsTerminal, stderr};

pub use tracing_subscriber::filter::LevelFilter as Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Logs from now on: what is at least as grave as `level`, or what `RUST_LOG` asks for by targets (`debug`,
/// `entrain_guest=debug,info`). An empty or wrong `RUST_LOG` counts as none.
///
/// Filters by spans and values are left out: their regular expressions take long to build and make the guest's small
/// agent a quarter bigger.
///
/// # Panics
/// When called twice.
pub fn start(level: Level) {
    let wish = std::env::var("RUST_LOG").ok().filter(|wish| !wish.is_empty());
    let filter = wish.and_then(|wish| wish.parse().ok()).unwrap_or_else(|| Targets::new().with_default(level));
    let output = tracing_subscriber::fmt::layer().with_ansi(stderr().is_terminal()).with_writer(stderr);
    tracing_subscriber::registry().with(output).with(filter).init();
}
