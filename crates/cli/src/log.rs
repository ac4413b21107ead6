//! What a program says beside its results, filtered by `RUST_LOG`: on stderr, or in the journal where stderr leads there.

use std::fmt;
use std::io::{IsTerminal, stderr};

use tracing_subscriber::field::RecordFields;
pub use tracing_subscriber::filter::LevelFilter as Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::prelude::*;

/// Fields that only the journal shows: the message names the VM already.
const ONLY_JOURNAL: [&str; 2] = ["vm", "uuid"];

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
    #[cfg(feature = "journal")]
    if let Some(journal) = journal() {
        tracing_subscriber::registry().with(journal).with(filter).init();
        return;
    }
    let output = tracing_subscriber::fmt::layer().with_ansi(stderr().is_terminal()).with_writer(stderr);
    tracing_subscriber::registry().with(output.fmt_fields(Fields)).with(filter).init();
}

/// Of a service whose stderr is the journal, the journal itself, which keeps fields (`VM=`, `UUID=`).
#[cfg(feature = "journal")]
fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let status = rustix::fs::fstat(stderr()).ok()?;
    if stream != format!("{}:{}", status.st_dev, status.st_ino) {
        return None;
    }
    Some(tracing_journald::layer().ok()?.with_field_prefix(None))
}

/// The message, and all fields but [`ONLY_JOURNAL`].
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        tracing_subscriber::fmt::format::debug_fn(|writer, field, value| match field.name() {
            "message" => write!(writer, "{value:?}"),
            name if ONLY_JOURNAL.contains(&name) => Ok(()),
            name => write!(writer, " {name}={value:?}"),
        })
        .format_fields(writer, fields)
    }
}
