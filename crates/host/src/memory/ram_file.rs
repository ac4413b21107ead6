//! The file behind a VM's memory, proven to be the VMM's own before anything is written to it, and mapped here.
//!
//! Between any two system calls of the daemon the VMM may put something else at the same address: a file that it may only
//! read, another VM's memory. So the file is first held by a descriptor that can neither read nor write it (`O_PATH`).
//! While that is open no other file can take its numbers, and the process's mapping is looked at once more: it must be a
//! shared, writable mapping of that very file. Then it is opened for writing, through the descriptor that holds it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::filesystem::{id_of, is_memory};
use super::{PAGE, ProcessMemory};

const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

fn refused(why: &'static str) -> io::Error {
    io::Error::other(why)
}

/// A file of a VM's memory and a place in it, which the VMM was seen to be able to write.
#[derive(Debug)]
pub(super) struct RamFile {
    held: OwnedFd,
    offset: u64,
}

impl RamFile {
    /// The file behind `length` bytes at `hva` of a process.
    pub(super) fn of(memory: &ProcessMemory, hva: u64, length: u64) -> io::Result<Self> {
        let look = || {
            let region = memory.region(hva, length)?;
            region.ok_or_else(|| refused("nothing is mapped there"))
        };
        let region = look()?;
        let named =
            region.written_file().ok_or_else(|| refused("not in a shared mapping of a file that the VMM may write"))?;
        memory.between_calls();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let held = openat(&memory.folder, format!("map_files/{}", region.map_file()), flags, Mode::empty())?;
        memory.between_calls();
        let id = id_of(&held)?;
        if id != named || !is_memory(&memory.root, memory.pid, id.device) {
            return Err(refused("what is mapped there is no tmpfs, memfd or hugetlbfs, or changes"));
        }
        memory.between_calls();
        let again = look()?;
        if again.written_file() != Some(id) {
            return Err(refused("what is mapped there changes"));
        }
        memory.between_calls();
        Ok(Self { held, offset: again.file_offset(hva) })
    }

    /// Maps the page, or the huge page, around the place.
    pub(super) fn map(&self) -> io::Result<Mapped> {
        let file =
            OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", self.held.as_raw_fd()))?;
        Mapped::new(&file, self.offset)
    }
}

/// A piece of a VM's RAM file, mapped in this process. It is only handed to the kernel, never read or written here: if
/// the VMM truncates the file, an access would kill the daemon, while the kernel answers with an error.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<u8>,
    length: usize,
    offset: usize,
}

// SAFETY: the mapping belongs to the process; no thread follows its address.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &File, offset: u64) -> io::Result<Self> {
        let fs = rustix::fs::fstatfs(file.as_fd())?;
        // Huge pages can only be mapped whole.
        let granule = if fs.f_type as u64 == HUGETLBFS_MAGIC { fs.f_bsize as u64 } else { PAGE };
        let start = offset / granule * granule;
        let length = granule as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, start)?
        };
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(Self { base, length, offset: (offset - start) as usize })
    }

    /// The address in this process.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64 + self.offset as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; no reference into it is ever made.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
