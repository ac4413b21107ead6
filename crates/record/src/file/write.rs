//! Writes a recording while it goes on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::iter::once;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    BLOCK, BLOCK_HEAD, BLOCK_MAGIC, Fragment, Host, KIND_EVENTS, KIND_TABLE, MAGIC, MAJOR, MINOR, Name, RecordedVm,
    Recording, TABLES, checksum,
};
use crate::event::{EVENT_BYTES, Event};

/// Room for what a block holds.
const PAYLOAD: usize = BLOCK - BLOCK_HEAD;
/// Events of a full block.
const PER_BLOCK: u64 = (PAYLOAD / EVENT_BYTES) as u64;
/// Room for the items of a fragment: its own name and brackets take the rest.
const ITEMS: usize = PAYLOAD - 16;

/// A recording that is being written, into `FILE.part`; [`Writer::finish`] gives it its name.
pub(crate) struct Writer {
    file: File,
    part: PathBuf,
    path: PathBuf,
    /// Blocks of events that the file has room for.
    ring: u64,
    /// Number of the block of events that is being filled.
    block: u64,
    payload: Vec<u8>,
    /// The block in `payload` has changed since it was written.
    dirty: bool,
    /// Number of the next block of tables; the newest of a place wins.
    tables: u64,
}

impl Writer {
    /// Begins a file of at most `bytes`.
    pub(crate) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::other("this names no file"))?;
        let mut part = name.to_owned();
        part.push(".part");
        let part = path.with_file_name(part);
        if path.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let ring = (bytes / BLOCK as u64).saturating_sub(1 + TABLES as u64).max(1);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&part)?;
        // Two would mix their recordings. A file system that knows no locks takes a recording all the same.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(io::Error::other("another recorder writes this file"));
        }
        file.set_len(0)?;
        file.write_all_at(&header(), 0)?;
        let payload = Vec::with_capacity(PAYLOAD);
        Ok(Self { file, part, path: path.to_owned(), ring, block: 0, payload, dirty: false, tables: 0 })
    }

    /// Where the file is until it is finished.
    pub(crate) fn part(&self) -> &Path {
        &self.part
    }

    /// Older events that newer ones have overwritten.
    pub(crate) fn overwritten(&self) -> u64 {
        (self.block + 1).saturating_sub(self.ring) * PER_BLOCK
    }

    /// Appends an event; a full block is written at once.
    pub(crate) fn event(&mut self, event: Event) -> io::Result<()> {
        if self.payload.len() + EVENT_BYTES > PAYLOAD {
            self.flush()?;
            self.block += 1;
            self.payload.clear();
        }
        self.payload.extend(event.to_bytes());
        self.dirty = true;
        Ok(())
    }

    /// Writes the block that is being filled.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.dirty) {
            let place = 1 + TABLES as u64 + self.block % self.ring;
            self.file.write_all_at(&block(KIND_EVENTS, self.block, &self.payload), place * BLOCK as u64)?;
        }
        Ok(())
    }

    /// Writes who is who. Names that find no room are left out, and counted in what is written of `host`.
    pub(crate) fn tables(&mut self, host: &Host, vms: Vec<RecordedVm>, names: Vec<Name>) -> io::Result<()> {
        let vms = groups(vms)?.into_iter().map(Fragment::Vms);
        let mut fragments: Vec<Fragment> = vms.chain(groups(names)?.into_iter().map(Fragment::Names)).collect();
        let rest = fragments.split_off(fragments.len().min(TABLES - 1));
        let names = |fragment: &Fragment| if let Fragment::Names(names) = fragment { names.len() } else { 0 };
        let unnamed = host.unnamed + rest.iter().map(names).sum::<usize>() as u64;
        let host = Fragment::Host(Host { unnamed, ..host.clone() });
        for (place, fragment) in (1..).zip(once(host).chain(fragments)) {
            let text = serde_json::to_vec(&fragment).map_err(io::Error::other)?;
            // A VM that alone is too big is left out, too; KVM makes none.
            if text.len() <= PAYLOAD {
                self.file.write_all_at(&block(KIND_TABLE, self.tables, &text), place * BLOCK as u64)?;
                self.tables += 1;
            }
        }
        Ok(())
    }

    /// Ends the file and gives it its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()?;
        fs::rename(&self.part, &self.path)
    }
}

/// Writes a whole recording at once, as `entrain record` does bit by bit. Its events must be in the order of time.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, recording: &Recording) -> io::Result<()> {
    // As many blocks as the events need, and one more.
    let blocks = recording.events.len() as u64 / PER_BLOCK + 1;
    let mut writer = Writer::create(path, (1 + TABLES as u64 + blocks) * BLOCK as u64)?;
    recording.events.iter().try_for_each(|event| writer.event(*event))?;
    let mut names: Vec<Name> =
        recording.names.iter().map(|(tid, (tgid, name))| Name(*tid, *tgid, name.clone())).collect();
    names.sort_by_key(|name| name.0);
    writer.tables(&recording.host, recording.vms.clone(), names)?;
    writer.finish()
}

/// Divides a list into parts that have room in a block each, as JSON.
fn groups<T: Serialize>(items: Vec<T>) -> io::Result<Vec<Vec<T>>> {
    let (mut groups, mut group, mut size) = (Vec::new(), Vec::new(), 0);
    for item in items {
        let comma = 1;
        let more = serde_json::to_vec(&item).map_err(io::Error::other)?.len() + comma;
        if size + more > ITEMS && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            size = 0;
        }
        size += more;
        group.push(item);
    }
    groups.push(group);
    Ok(groups)
}

/// What a file begins with; the rest of its block is a hole.
pub(crate) fn header() -> [u8; BLOCK_HEAD] {
    let mut header = [0; BLOCK_HEAD];
    header[0..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    header[10..12].copy_from_slice(&MINOR.to_le_bytes());
    header[12..16].copy_from_slice(&(BLOCK as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(TABLES as u32).to_le_bytes());
    header
}

/// A block as it is in the file, as far as it is used; its number says which of two is newer.
pub(crate) fn block(kind: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_HEAD];
    block[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
    block[4..8].copy_from_slice(&kind.to_le_bytes());
    block[8..16].copy_from_slice(&number.to_le_bytes());
    block[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let crc = checksum(&block, payload);
    block[28..32].copy_from_slice(&crc.to_le_bytes());
    block.extend_from_slice(payload);
    block
}
