//! A VM's memory as its VMM has it: from the VMM's addresses to the file that backs them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::ptr::NonNull;

use entrain_system::Root;
use entrain_system::maps::{self, Mapping};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const PAGE: u64 = 4096;

/// Whether a mapping is shared memory of a file that the process itself may write. Whoever maps another's file read-only
/// must not have it written by a daemon with more rights.
pub(crate) fn writes_reach_others(mapping: &Mapping) -> bool {
    mapping.shared && mapping.writable && mapping.file
}

/// The memory of one VMM process.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    pid: i32,
    folder: PathBuf,
    regions: Vec<Mapping>,
}

impl ProcessMemory {
    /// Reads the map of process `pid`.
    pub(crate) fn read(root: &Root, pid: i32) -> entrain_system::Result<Self> {
        Ok(Self { pid, folder: root.path(format!("proc/{pid}")), regions: maps::of(root, pid)? })
    }

    /// The region that holds all of `length` bytes at `hva`.
    pub(crate) fn region(&self, hva: u64, length: u64) -> Option<&Mapping> {
        self.regions.iter().find(|r| hva >= r.start && hva.checked_add(length).is_some_and(|end| end <= r.end))
    }

    /// Copies bytes out of the process; an error when any of them cannot be read.
    pub(crate) fn copy(&self, hva: u64, into: &mut [u8]) -> io::Result<()> {
        let length = into.len();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: hva as *mut libc::c_void, iov_len: length };
        // SAFETY: `local` is `into`; the remote address is the kernel's to check.
        let got = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        match got {
            -1 => Err(io::Error::last_os_error()),
            n if n as usize == length => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Maps the file's own memory behind `length` bytes at `hva`, which must not cross a page.
    pub(crate) fn map(&self, hva: u64, length: u64) -> io::Result<Mapped> {
        let region = self
            .region(hva, length)
            .filter(|region| writes_reach_others(region))
            .ok_or_else(|| io::Error::other("not in a shared mapping of a file"))?;
        let link = self.folder.join("map_files").join(region.map_file());
        let file = OpenOptions::new().read(true).write(true).open(link)?;
        Mapped::new(&file, region.offset + (hva - region.start))
    }

    /// Which pages of `count` from `hva` are present or swapped out: those that have been written or read at all.
    pub(crate) fn present(&self, hva: u64, count: usize) -> io::Result<Vec<bool>> {
        use std::os::unix::fs::FileExt;
        let mut entries = vec![0; count * 8];
        let file = File::open(self.folder.join("pagemap"))?;
        file.read_exact_at(&mut entries, hva / PAGE * 8)?;
        // Bits 63 (present) and 62 (swapped) stand in the last byte of the little-endian entry.
        Ok(entries.chunks_exact(8).map(|entry| entry[7] & 0xc0 != 0).collect())
    }

    /// Whether the page at `hva` is in the VMM's page table. A page that is not may be fetched from another host when it is
    /// touched (post-copy migration, userfaultfd), for which the daemon must not wait; and in a mapping of one's own it
    /// would be taken for an empty one.
    pub(crate) fn is_present(&self, hva: u64) -> io::Result<bool> {
        Ok(self.present(hva, 1)?[0])
    }

    /// Reads the first 16 bytes of each of the pages; pages that cannot be read count as zeros.
    pub(crate) fn heads(&self, pages: &[u64]) -> io::Result<Vec<[u64; 2]>> {
        let mut heads = vec![[0u64; 2]; pages.len()];
        let mut done = 0;
        while done < pages.len() {
            let batch = (pages.len() - done).min(libc::UIO_MAXIOV as usize);
            let remote: Vec<_> = pages[done..done + batch]
                .iter()
                .map(|&hva| libc::iovec { iov_base: hva as *mut libc::c_void, iov_len: 16 })
                .collect();
            let local = libc::iovec { iov_base: heads[done..].as_mut_ptr().cast(), iov_len: batch * 16 };
            // SAFETY: `local` is `batch` elements of `heads`; remote addresses are the kernel's to check.
            let got = unsafe { libc::process_vm_readv(self.pid, &local, 1, remote.as_ptr(), batch as u64, 0) };
            match got {
                -1 if io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) => {
                    return Err(io::Error::last_os_error());
                }
                -1 => done += 1,
                // A page in the middle could not be read: go on behind it.
                n if (n as usize) < batch * 16 => done += n as usize / 16 + 1,
                _ => done += batch,
            }
        }
        Ok(heads)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vmm_may_not_write_nobody_writes_for_it() {
        let text = "7f0000000000-7f0020000000 rw-s 00200000 00:01 1033 /memfd:memory-backend-memfd (deleted)\n\
                    7f0030000000-7f0030001000 rw-p 00000000 00:00 0 \nnonsense\n\
                    7f0040000000-7f0040001000 r--s 00000000 00:01 1034 /memfd:another's (deleted)\n";
        assert_eq!(maps::parse(text).iter().map(writes_reach_others).collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn reads_and_maps_its_own_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * PAGE).unwrap();
        // SAFETY: a fresh mapping.
        let base = unsafe {
            mmap(std::ptr::null_mut(), 3 * 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
                .unwrap()
        };
        let words = base.cast::<u64>();
        // SAFETY: inside the mapping above.
        unsafe { words.add(512).write_volatile(0x1122) };
        let memory = ProcessMemory::read(&Root::live(), std::process::id() as i32).unwrap();
        let hva = base as u64 + PAGE;
        let mut copy = [0; 8];
        memory.copy(hva, &mut copy).unwrap();
        assert_eq!(u64::from_le_bytes(copy), 0x1122);
        assert!(memory.is_present(hva + 8).unwrap() && !memory.is_present(hva + PAGE).unwrap());
        assert_eq!(memory.heads(&[hva, 0x10, base as u64]).unwrap(), vec![[0x1122, 0], [0, 0], [0, 0]]);
        assert!(memory.copy(16, &mut copy).is_err());
        match memory.map(hva, 4096) {
            // SAFETY: the mapping is alive, and the test's file is not truncated.
            Ok(mapped) => assert_eq!(unsafe { (mapped.address() as *const u64).read_volatile() }, 0x1122),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "needs root"),
        }
        // SAFETY: as mapped above.
        unsafe { munmap(base, 3 * 4096).unwrap() };
    }
}
