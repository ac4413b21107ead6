//! Writes a recording while it goes on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{
    BLOCK, BLOCK_HEAD, BLOCK_MAGIC, Fragment, Host, KIND_EVENTS, KIND_TABLE, MAGIC, MAJOR, MINOR, Name, RecordedVm,
    TABLES, checksum,
};
use crate::event::{EVENT_BYTES, Event};

/// Room for what a block holds.
const PAYLOAD: usize = BLOCK - BLOCK_HEAD;
/// Events of a full block.
const PER_BLOCK: u64 = (PAYLOAD / EVENT_BYTES) as u64;
/// Names in a fragment: 30 bytes each at most.
const NAMES: usize = 2000;

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
        let file = File::create(&part)?;
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

    /// Writes who is who. What finds no room is left out; returns how many names that are.
    pub(crate) fn tables(&mut self, host: &Host, vms: &[RecordedVm], names: &[Name]) -> io::Result<usize> {
        let mut fragments = vec![Fragment::Host(host.clone())];
        let mut group: Vec<RecordedVm> = Vec::new();
        let room = |group: &[RecordedVm]| group.iter().map(|vm| 120 + vm.name.len() * 6 + vm.vcpus.len() * 24).sum();
        for vm in vms {
            let size: usize = room(&group);
            if !group.is_empty() && size + room(std::slice::from_ref(vm)) > PAYLOAD {
                fragments.push(Fragment::Vms(std::mem::take(&mut group)));
            }
            group.push(vm.clone());
        }
        fragments.push(Fragment::Vms(group));
        fragments.extend(names.chunks(NAMES).map(|names| Fragment::Names(names.to_vec())));
        let mut left_out = 0;
        for (place, fragment) in fragments.iter().enumerate() {
            let text = serde_json::to_vec(fragment).map_err(io::Error::other)?;
            if place < TABLES && text.len() <= PAYLOAD {
                let block = block(KIND_TABLE, self.tables, &text);
                self.file.write_all_at(&block, (1 + place as u64) * BLOCK as u64)?;
                self.tables += 1;
            } else if let Fragment::Names(names) = fragment {
                left_out += names.len();
            }
        }
        Ok(left_out)
    }

    /// Ends the file and gives it its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()?;
        fs::rename(&self.part, &self.path)
    }
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
