//! A VM's memory as its VMM has it: from the VMM's addresses to the file that backs them.
//!
//! The VMM is another user's, and may change its mappings between any two system calls made here. What is read is taken
//! for bytes that anybody may have written; what is written goes through [`ram_file`], which proves whose memory it is.

mod filesystem;
mod pages;
mod ram_file;
mod region;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use entrain_system::Root;
use rustix::fs::{Mode, OFlags, openat};

pub(crate) use pages::Piece;
pub(crate) use ram_file::Mapped;
use ram_file::RamFile;
pub(crate) use region::Region;

const PAGE: u64 = 4096;
/// Pages of one batch that may turn out unreadable before the rest of it is given up.
const FAULTS: u32 = 8;

/// System calls for all processes' memory, for the fuzz targets.
#[cfg(feature = "fake")]
pub(crate) static ALL_CALLS: AtomicU64 = AtomicU64::new(0);

/// The first 32 bytes of a page.
pub(crate) type Head = [u64; 4];

/// The memory of one VMM process.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    root: Root,
    pid: i32,
    /// The process's folder in /proc: while it is open, the number can't come to mean another process.
    folder: OwnedFd,
    maps: File,
    pagemap: File,
    /// Devices of files that were met, and whether their files are memory.
    kinds: Mutex<Vec<((u32, u32), bool)>>,
    /// System calls made for it, for whoever holds them against a bound.
    calls: AtomicU64,
    #[cfg(test)]
    hook: Hook,
}

/// What a test does between two system calls.
#[cfg(test)]
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnMut() + Send>>>);

#[cfg(test)]
impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl ProcessMemory {
    /// The memory of process `pid`, and of none that gets its number later.
    pub(crate) fn of(root: &Root, pid: i32) -> io::Result<Self> {
        let directory = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = openat(rustix::fs::CWD, root.path(format!("proc/{pid}")), directory, Mode::empty())?;
        let open = |name| openat(&folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from);
        let (maps, pagemap) = (open("maps")?, open("pagemap")?);
        Ok(Self {
            root: root.clone(),
            pid,
            folder,
            maps,
            pagemap,
            kinds: Mutex::default(),
            calls: AtomicU64::new(0),
            #[cfg(test)]
            hook: Hook::default(),
        })
    }

    /// The mapping that holds all of `length` bytes at `hva`.
    pub(crate) fn region(&self, hva: u64, length: u64) -> io::Result<Option<Region>> {
        self.count_call();
        Region::at(&self.maps, hva, length)
    }

    /// System calls made so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn count_call(&self) {
        self.calls.fetch_add(1, Relaxed);
        #[cfg(feature = "fake")]
        ALL_CALLS.fetch_add(1, Relaxed);
    }

    /// Here the VMM may do anything; a test does.
    fn between_calls(&self) {
        #[cfg(test)]
        if let Some(hook) = self.hook.0.lock().unwrap().as_mut() {
            hook();
        }
    }

    /// Copies bytes out of the process; an error when any of them cannot be read.
    pub(crate) fn copy(&self, hva: u64, into: &mut [u8]) -> io::Result<()> {
        let length = into.len();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: hva as *mut libc::c_void, iov_len: length };
        // SAFETY: `local` is `into`; the remote address is the kernel's to check.
        let got = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        self.count_call();
        match got {
            -1 => Err(io::Error::last_os_error()),
            n if n as usize == length => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Maps the file's own memory behind `length` bytes at `hva`, which must not cross a page. Refused where it is not
    /// shared memory that the process itself may write.
    pub(crate) fn map(&self, hva: u64, length: u64) -> io::Result<Mapped> {
        RamFile::of(self, hva, length)?.map()
    }

    /// Which pages from `from` on are present in the VMM's page table, and neither swapped out nor the page of zeros:
    /// `most` at most, below `to`. What cannot be a VM's memory is passed over.
    pub(crate) fn present_in(&self, from: u64, to: u64, most: u64) -> io::Result<Piece> {
        self.count_call();
        let Some(region) = Region::at_or_above(&self.maps, from)?.filter(|region| region.start < to) else {
            return Ok(Piece { pages: Vec::new(), end: to });
        };
        let (start, end) = (region.start.max(from), region.end.min(to));
        if !region.is_readable() || !self.may_be_ram(&region) {
            return Ok(Piece { pages: Vec::new(), end });
        }
        self.count_call();
        pages::present(&self.pagemap, start, end, most)
    }

    /// Whether a VM's memory can be there: memory of the VMM's own, or a file of memory. Reading anything else may wait
    /// for a disk, a server or another user's program.
    pub(crate) fn may_be_ram(&self, region: &Region) -> bool {
        let Some(file) = region.file else { return true };
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.iter().find(|(device, _)| *device == file.device).map(|(_, memory)| *memory);
        known.unwrap_or_else(|| {
            let memory = filesystem::is_memory(&self.root, self.pid, file.device);
            kinds.push((file.device, memory));
            memory
        })
    }

    /// Whether the page at `hva` is in the VMM's page table, or swapped out. A page that is not may be fetched from another
    /// host when it is touched (post-copy migration, userfaultfd), for which the daemon must not wait; and in a mapping of
    /// one's own it would be taken for an empty one. Memory that is no VM's counts as absent, too.
    pub(crate) fn is_present(&self, hva: u64) -> io::Result<bool> {
        let Some(region) = self.region(hva, 1)? else { return Ok(false) };
        self.count_call();
        Ok(self.may_be_ram(&region) && pages::is_there(&self.pagemap, hva)?)
    }

    /// Reads the first 32 bytes of each of the pages; pages that cannot be read count as zeros.
    pub(crate) fn heads(&self, pages: &[u64]) -> io::Result<Vec<Head>> {
        let mut heads = vec![Head::default(); pages.len()];
        let (mut done, mut faults) = (0, 0);
        // Where page after page cannot be read (their VMM takes them away meanwhile), the rest is left for another time.
        while done < pages.len() && faults < FAULTS {
            let batch = (pages.len() - done).min(libc::UIO_MAXIOV as usize);
            let remote: Vec<_> = pages[done..done + batch]
                .iter()
                .map(|&hva| libc::iovec { iov_base: hva as *mut libc::c_void, iov_len: size_of::<Head>() })
                .collect();
            let local = libc::iovec { iov_base: heads[done..].as_mut_ptr().cast(), iov_len: batch * size_of::<Head>() };
            // SAFETY: `local` is `batch` elements of `heads`; remote addresses are the kernel's to check.
            let got = unsafe { libc::process_vm_readv(self.pid, &local, 1, remote.as_ptr(), batch as u64, 0) };
            self.count_call();
            match got {
                -1 if io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) => {
                    return Err(io::Error::last_os_error());
                }
                n if n < 0 || (n as usize) < batch * size_of::<Head>() => {
                    // A page in the middle could not be read: go on behind it.
                    done += n.max(0) as usize / size_of::<Head>() + 1;
                    faults += 1;
                }
                _ => done += batch,
            }
        }
        Ok(heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

    fn own() -> ProcessMemory {
        ProcessMemory::of(&Root::live(), std::process::id() as i32).unwrap()
    }

    /// Maps `file` at `base`, or anywhere.
    fn map_at(base: *mut libc::c_void, length: u64, prot: ProtFlags, file: impl AsFd) -> *mut libc::c_void {
        let fixed = if base.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: a fresh mapping, or one in the place of a mapping of this test's, which nobody holds a reference into.
        unsafe { mmap(base, length as usize, prot, MapFlags::SHARED | fixed, file, 0).unwrap() }
    }

    fn memfd(pages: u64) -> File {
        let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(pages * PAGE).unwrap();
        file
    }

    const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    #[test]
    fn what_the_vmm_may_not_write_nobody_writes_for_it() {
        let file = memfd(1);
        let read_only = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        let memory = own();
        let written =
            |base: *mut libc::c_void| memory.region(base as u64, PAGE).unwrap().unwrap().written_file().is_some();
        let base = map_at(std::ptr::null_mut(), PAGE, BOTH, &file);
        assert!(written(base));
        // SAFETY: this test's own mapping.
        unsafe { mprotect(base, PAGE as usize, MprotectFlags::READ).unwrap() };
        assert!(!written(base) && memory.map(base as u64, PAGE).is_err());
        map_at(base, PAGE, ProtFlags::READ, &read_only);
        assert!(!written(base) && memory.map(base as u64, PAGE).is_err());
        // SAFETY: as above.
        unsafe { munmap(base, PAGE as usize).unwrap() };
        assert!(memory.map(base as u64, PAGE).is_err(), "nothing is there");
        let disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        disk.set_len(PAGE).unwrap();
        let base = map_at(std::ptr::null_mut(), PAGE, BOTH, &disk);
        let error = memory.map(base as u64, PAGE).unwrap_err().to_string();
        assert!(written(base) && error.contains("tmpfs"), "a file on a disk: {error}");
        // SAFETY: as above.
        unsafe { munmap(base, PAGE as usize).unwrap() };
    }

    /// Mappings that are swapped before any of the daemon's system calls: the host writes to the VMM's own memory, or to
    /// nothing. The canary is a file of the same kind that the VMM has only opened for reading.
    #[test]
    fn no_swap_of_mappings_makes_the_host_write_what_the_vmm_may_only_read() {
        const ATTEMPTS: usize = 1_500;
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let canary = folder.path().join("canary");
        let text: Vec<u8> = (0..PAGE).map(|i| (i * 31 + 7) as u8).collect();
        std::fs::write(&canary, &text).unwrap();
        let read_only = File::open(&canary).unwrap();
        let ram = memfd(1);
        let base = map_at(std::ptr::null_mut(), PAGE, BOTH, &ram) as usize;
        let place = || base as *mut libc::c_void;
        let memory = own();
        let (mut mapped, mut refused) = (0, 0);
        for attempt in 0..ATTEMPTS {
            map_at(place(), PAGE, BOTH, &ram);
            // Swapped before the call number `at`, and back before number `back`, if there are so many.
            let (at, back) = (attempt % 6, attempt % 6 + 1 + attempt / 6 % 4);
            let (mut call, files) = (0, (read_only.try_clone().unwrap(), ram.try_clone().unwrap()));
            let swap = move || {
                if call == at {
                    map_at(base as *mut libc::c_void, PAGE, ProtFlags::READ, &files.0);
                } else if call == back {
                    map_at(base as *mut libc::c_void, PAGE, BOTH, &files.1);
                }
                call += 1;
            };
            *memory.hook.0.lock().unwrap() = Some(Box::new(swap));
            match memory.map(base as u64, PAGE) {
                Ok(host) => {
                    // SAFETY: a page that was mapped for writing just now, of a file that nobody truncates.
                    unsafe { (host.address() as *mut u64).write_volatile(attempt as u64) };
                    mapped += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return eprintln!("skipped: needs root");
                }
                Err(_) => refused += 1,
            }
            assert_eq!(std::fs::read(&canary).unwrap(), text, "attempt {attempt}, swapped before call {at}");
        }
        assert!(mapped >= ATTEMPTS / 10 && refused >= ATTEMPTS / 10, "{mapped} mapped, {refused} refused");
        // SAFETY: this test's own mapping.
        unsafe { munmap(place(), PAGE as usize).unwrap() };
    }

    #[test]
    fn reads_and_maps_its_own_memory() {
        let base = map_at(std::ptr::null_mut(), 3 * PAGE, BOTH, memfd(3));
        let words = base.cast::<u64>();
        // SAFETY: inside the mapping above.
        unsafe { words.add(512).write_volatile(0x1122) };
        let memory = own();
        let hva = base as u64 + PAGE;
        let mut copy = [0; 8];
        memory.copy(hva, &mut copy).unwrap();
        assert_eq!(u64::from_le_bytes(copy), 0x1122);
        assert!(memory.is_present(hva + 8).unwrap() && !memory.is_present(hva + PAGE).unwrap());
        assert_eq!(memory.heads(&[hva, 0x10, base as u64]).unwrap(), [[0x1122, 0, 0, 0], [0; 4], [0; 4]]);
        assert!(memory.copy(16, &mut copy).is_err());
        match memory.map(hva, 4096) {
            // SAFETY: the mapping is alive, and the test's file is not truncated.
            Ok(mapped) => assert_eq!(unsafe { (mapped.address() as *const u64).read_volatile() }, 0x1122),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "needs root"),
        }
        // SAFETY: as mapped above.
        unsafe { munmap(base, 3 * PAGE as usize).unwrap() };
    }
}
