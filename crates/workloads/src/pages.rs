//! Anonymous private memory, page by page: what the loads touch, lock, give back and let guests run in.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// A mapping of its own, none of whose pages is there before it is touched. Threads may share it: every access is atomic.
#[derive(Debug)]
pub(crate) struct Pages {
    base: *mut u8,
    count: usize,
    page_size: usize,
}

// SAFETY: the mapping belongs to no thread, and its bytes are reached by atomic accesses only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `count` pages.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        // SAFETY: sysconf takes a plain number.
        let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice changes no memory that is in use.
        let base = unsafe { libc::mmap(ptr::null_mut(), count * page_size, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(error.kind(), format!("cannot map {count} pages: {error}")));
        }
        Ok(Self { base: base.cast(), count, page_size })
    }

    /// The same, without huge pages: with those, single pages never change hands. A kernel that has none refuses, and then
    /// there are none to avoid.
    pub(crate) fn small(count: usize) -> io::Result<Self> {
        let this = Self::new(count)?;
        // SAFETY: the range is the mapping's; the advice changes no content.
        unsafe { libc::madvise(this.base.cast(), this.len(), libc::MADV_NOHUGEPAGE) };
        Ok(this)
    }

    /// Bytes of all pages.
    pub(crate) fn len(&self) -> usize {
        self.count * self.page_size
    }

    /// Bytes of a page.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Words of eight bytes in a page.
    pub(crate) fn words(&self) -> usize {
        self.page_size / 8
    }

    /// Where a page begins.
    pub(crate) fn address(&self, page: usize) -> usize {
        self.byte(page, 0) as usize
    }

    fn byte(&self, page: usize, offset: usize) -> *mut u8 {
        assert!(page < self.count && offset < self.page_size, "page {page} of {}", self.count);
        // SAFETY: inside the mapping, by the line above.
        unsafe { self.base.add(page * self.page_size + offset) }
    }

    /// Writes to a page, so that it is there.
    pub(crate) fn touch(&self, page: usize) {
        // SAFETY: a byte of the mapping, which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.byte(page, 0)) }.store(1, Relaxed);
    }

    /// Writes to all pages.
    pub(crate) fn touch_all(&self) {
        (0..self.count).for_each(|page| self.touch(page));
    }

    /// Reads from a page.
    pub(crate) fn look(&self, page: usize) {
        // SAFETY: a byte of the mapping, which lives as long as `self`.
        black_box(unsafe { AtomicU8::from_ptr(self.byte(page, 0)) }.load(Relaxed));
    }

    /// A word of a page.
    pub(crate) fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        // SAFETY: eight bytes of the mapping, aligned as the page is, that live as long as `self`.
        unsafe { AtomicU64::from_ptr(self.byte(page, word * 8).cast()) }
    }

    /// The number of the frame behind a page: the low 55 bits of its entry (Documentation/admin-guide/mm/pagemap.rst).
    /// `None` if there is none, or the kernel does not tell it: that takes root.
    ///
    /// # Errors
    /// If `pagemap`, which is /proc/self/pagemap, cannot be read.
    pub(crate) fn frame(&self, pagemap: &File, page: usize) -> io::Result<Option<u64>> {
        let mut entry = [0u8; 8];
        pagemap.read_exact_at(&mut entry, (self.address(page) / self.page_size * 8) as u64)?;
        let entry = u64::from_ne_bytes(entry);
        let (present, frame) = (entry >> 63 == 1, entry & ((1 << 55) - 1));
        Ok((present && frame != 0).then_some(frame))
    }

    /// Gives a page back to the kernel; the next access takes another one, of zeroes.
    ///
    /// # Errors
    /// As madvise(2).
    pub(crate) fn give_back(&self, page: usize) -> io::Result<()> {
        // SAFETY: a page of the mapping; that its content is gone is what the caller wants.
        match unsafe { libc::madvise(self.byte(page, 0).cast(), self.page_size, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::other(format!("cannot give a page back: {}", io::Error::last_os_error()))),
        }
    }

    /// Locks each page when it is touched.
    ///
    /// # Errors
    /// As mlock2(2).
    pub(crate) fn lock_on_fault(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's; locking changes no content.
        match unsafe { libc::mlock2(self.base.cast(), self.len(), libc::MLOCK_ONFAULT as _) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody who borrowed from it is left.
        unsafe { libc::munmap(self.base.cast(), self.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_given_back_is_empty() {
        let pages = Pages::small(2).unwrap();
        pages.word(1, 3).store(7, Relaxed);
        pages.give_back(0).unwrap();
        assert_eq!(pages.word(1, 3).load(Relaxed), 7);
        pages.give_back(1).unwrap();
        assert_eq!(pages.word(1, 3).load(Relaxed), 0);
        assert_eq!(pages.len(), 2 * pages.words() * 8);
    }

    #[test]
    #[should_panic(expected = "page 2 of 2")]
    fn nothing_outside_the_mapping_is_touched() {
        Pages::new(2).unwrap().touch(2);
    }
}
