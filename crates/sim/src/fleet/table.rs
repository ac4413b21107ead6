//! Rows of a sweep as a file: a shard writes one, and any number of them are put together to one, in which each run is
//! once, however often it was run. A line of JSON for each run; or Parquet, where the name ends so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use super::Row;

/// What went wrong with a file.
#[derive(Debug)]
pub enum TableError {
    /// With its content.
    Content(PathBuf, String),
    /// With the file.
    File(PathBuf, std::io::Error),
    /// Two rows of one run differ: they are of different programs.
    Differ(PathBuf, Box<Row>),
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Content(path, error) => write!(f, "{} is no table of a fleet: {error}", path.display()),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Differ(path, row) => write!(
                f,
                "{}: host {} under {} at {} is another run than in the files before: they were made by different \
                 versions of entrain-sim, whose figures do not belong into one table",
                path.display(),
                row.host,
                row.arm,
                row.ratio
            ),
        }
    }
}

impl std::error::Error for TableError {}

/// Whether a file is one of Parquet, by its name.
fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "parquet")
}

/// Whether this program can write and read a file of that name. Says why not.
///
/// # Errors
/// When it is Parquet, and this program was built without.
pub fn check_name(path: &Path) -> Result<(), TableError> {
    if cfg!(feature = "parquet") || !is_parquet(path) {
        return Ok(());
    }
    let why = "this entrain-sim was built without Parquet: name a file that ends in .jsonl, or build it with \
               `cargo build --release -p entrain-sim --features parquet`";
    Err(TableError::File(path.to_owned(), std::io::Error::other(why)))
}

fn write_lines(file: &File, rows: &[Row]) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    for row in rows {
        serde_json::to_writer(&mut out, row)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes a table. It is there with all of its rows, or not at all: a process that is killed leaves nothing that could be
/// taken for a shard.
///
/// # Errors
/// When the file cannot be written; as [`check_name`].
pub fn write(path: &Path, rows: &[Row]) -> Result<(), TableError> {
    check_name(path)?;
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let wrong = |error| TableError::File(part.clone(), error);
    let file = File::create(&part).map_err(wrong)?;
    match () {
        #[cfg(feature = "parquet")]
        () if is_parquet(path) => {
            super::parquet::write(&file, rows).map_err(|error| TableError::Content(part.clone(), error.to_string()))?;
        }
        () => write_lines(&file, rows).map_err(wrong)?,
    }
    file.sync_all().map_err(wrong)?;
    std::fs::rename(&part, path).map_err(wrong)
}

/// Reads a table.
///
/// # Errors
/// When it cannot be read, or is of something else; as [`check_name`].
pub fn read(path: &Path) -> Result<Vec<Row>, TableError> {
    check_name(path)?;
    let file = File::open(path).map_err(|error| TableError::File(path.to_owned(), error))?;
    #[cfg(feature = "parquet")]
    if is_parquet(path) {
        return super::parquet::read(file).map_err(|error| TableError::Content(path.to_owned(), error.to_string()));
    }
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(|error| TableError::File(path.to_owned(), error))?;
        let wrong = |error| TableError::Content(path.to_owned(), format!("line {number}: {error}"));
        rows.push(serde_json::from_str(&line).map_err(wrong)?);
    }
    Ok(rows)
}

/// Reads some tables as one: each run once, in the order of sweep, host, arm, ratio. Also how many rows were of runs that
/// had been read already.
///
/// # Errors
/// As [`read`]; and when two rows of one run differ.
pub fn merge(paths: &[PathBuf]) -> Result<(Vec<Row>, usize), TableError> {
    let mut all: BTreeMap<(String, u32, String, u64), Row> = BTreeMap::new();
    let mut twice = 0;
    for path in paths {
        for row in read(path)? {
            // Ratios are above 0, so that their bits are in their order.
            let key = (row.sweep.clone(), row.host, row.arm.clone(), row.ratio.to_bits());
            match all.get(&key) {
                Some(first) if *first != row => return Err(TableError::Differ(path.clone(), Box::new(row))),
                Some(_) => twice += 1,
                None => {
                    all.insert(key, row);
                }
            }
        }
    }
    Ok((all.into_values().collect(), twice))
}
