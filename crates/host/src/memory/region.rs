//! What a VMM has at an address: one mapping, asked for by address.
//!
//! The text of `/proc/PID/maps` is as long as the VMM's user likes (65,530 mappings by default, each with a path), and a
//! copy of it is out of date when it is used. `PROCMAP_QUERY` on the same file (Linux 6.11; pairing itself needs 6.13)
//! answers for one address, in a time that does not depend on how many mappings there are.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;

const READABLE: u64 = 0x01;
const WRITABLE: u64 = 0x02;
const SHARED: u64 = 0x08;
/// Asks for the mapping at the address, or else the first one above it.
const OR_NEXT: u64 = 0x10;

/// The kernel's struct procmap_query, without what asks for names and build ids (0 = not asked for).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// A file by what no path can fake: while anybody holds it open, no other file has these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Of its file system, major and minor.
    pub(crate) device: (u32, u32),
    /// Its inode number.
    pub(crate) inode: u64,
}

/// One mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// First address.
    pub(crate) start: u64,
    /// One past the last.
    pub(crate) end: u64,
    readable: bool,
    writable: bool,
    shared: bool,
    /// Bytes into the file.
    offset: u64,
    /// `None`: memory of the process's own.
    pub(crate) file: Option<FileId>,
}

impl Region {
    /// The mapping of process whose `maps` this is that holds all of `length` bytes at `hva`.
    pub(super) fn at(maps: &File, hva: u64, length: u64) -> io::Result<Option<Self>> {
        let holds = |region: &Self| hva.checked_add(length).is_some_and(|end| end <= region.end);
        Ok(Self::query(maps, hva, 0)?.filter(holds))
    }

    /// The mapping at `hva`, or the first one above it.
    pub(super) fn at_or_above(maps: &File, hva: u64) -> io::Result<Option<Self>> {
        Self::query(maps, hva, OR_NEXT)
    }

    fn query(maps: &File, hva: u64, flags: u64) -> io::Result<Option<Self>> {
        let mut query =
            Query { size: size_of::<Query>() as u64, query_flags: flags, query_addr: hva, ..Query::default() };
        // SAFETY: the struct is the kernel's, with its size in it; no buffer for names is given.
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
        }
        let id = FileId { device: (query.dev_major, query.dev_minor), inode: query.inode };
        Ok(Some(Self {
            start: query.vma_start,
            end: query.vma_end,
            readable: query.vma_flags & READABLE != 0,
            writable: query.vma_flags & WRITABLE != 0,
            shared: query.vma_flags & SHARED != 0,
            offset: query.vma_offset,
            file: (query.inode != 0).then_some(id),
        }))
    }

    /// The file behind it, if it is shared memory of a file that the process itself may write. The kernel makes a shared
    /// mapping writable only for who has opened the file for writing: whoever maps another's file read-only must not have
    /// it written by a daemon with more rights.
    pub(crate) fn written_file(&self) -> Option<FileId> {
        self.file.filter(|_| self.shared && self.writable)
    }

    /// Whether its process may read it.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Where in the file `hva` is; only for an address inside.
    pub(super) fn file_offset(&self, hva: u64) -> u64 {
        self.offset + (hva - self.start)
    }

    /// Its name in `/proc/PID/map_files`.
    pub(super) fn map_file(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_answer_is_that_of_the_text() {
        let maps = File::open("/proc/self/maps").expect("a process sees its own");
        let text =
            entrain_system::maps::of(&entrain_system::Root::live(), std::process::id() as i32).expect("readable");
        // The heap of this process may grow meanwhile; its code does not.
        let code = text.iter().find(|mapping| mapping.file).expect("a program");
        let found = Region::at(&maps, code.start, 1).expect("asked").expect("there");
        assert_eq!((found.start, found.end, found.offset), (code.start, code.end, code.offset));
        assert_eq!((found.writable, found.shared, found.file.is_some()), (code.writable, code.shared, true));
        assert_eq!(found.map_file(), code.map_file());
        assert_eq!(Region::at(&maps, code.start, code.bytes() + 1).expect("asked"), None, "beyond its end");
        assert_eq!(Region::at(&maps, 0x10, 1).expect("asked"), None, "nothing is mapped at the first page");
        assert!(Region::at_or_above(&maps, 0x10).expect("asked").is_some_and(|region| region.start > 0x10));
    }
}
