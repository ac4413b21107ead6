//! Reports as files: JSON, compressed where the file's name says so.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::{Report, SCHEMA};

/// The first bytes of what gzip compressed (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a report, compressed or not.
///
/// # Errors
/// A file that cannot be read, is no report, or has another schema.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text = if bytes.starts_with(&GZIP) {
        let mut text = Vec::new();
        GzDecoder::new(&*bytes).read_to_end(&mut text).with_context(|| format!("cannot decompress {name}"))?;
        text
    } else {
        bytes
    };
    let report: Report = serde_json::from_slice(&text)
        .with_context(|| format!("{name} is no report of 'entrain lab run --json' in schema {SCHEMA}"))?;
    ensure!(report.schema == SCHEMA, "{name} has schema {}; this program knows {SCHEMA}", report.schema);
    Ok(report)
}

/// The report as JSON.
pub fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("plain data") + "\n"
}

/// What a file of this name is to hold: compressed where the name ends in `.gz`, the same bytes for the same report.
pub fn content(report: &Report, name: &Path) -> Vec<u8> {
    let json = json(report).into_bytes();
    if name.extension().is_none_or(|end| end != "gz") {
        return json;
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&json).and_then(|()| packed.finish()).expect("memory takes everything")
}
