//! BPF array maps seen as memory.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A `BPF_F_MMAPABLE` array map, mapped. Entries are copied in and out, as BPF programs change them at any moment.
#[derive(Debug)]
pub struct ArrayView<T> {
    base: NonNull<u8>,
    bytes: usize,
    entries: usize,
    stride: usize,
    marker: PhantomData<T>,
}

// SAFETY: the view owns its mapping, which any thread may use; entries are only copied.
unsafe impl<T: Send> Send for ArrayView<T> {}

impl<T: Copy> ArrayView<T> {
    /// Maps an array map of `entries` values of type `T`.
    ///
    /// # Safety
    /// `T` is `repr(C)`, has the layout of the map's value, and every bit pattern is one of its values.
    pub unsafe fn new(map: impl AsFd, entries: usize) -> Result<Self, Errno> {
        // The kernel rounds each value up to 8 bytes and the whole up to pages.
        let stride = size_of::<T>().next_multiple_of(8);
        let bytes = (stride * entries).next_multiple_of(rustix::param::page_size());
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, map.as_fd(), 0)?
        };
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(Self { base, bytes, entries, stride, marker: PhantomData })
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// A copy of entry `index`.
    ///
    /// # Panics
    /// When `index` is not below [`ArrayView::entries`].
    pub fn get(&self, index: usize) -> T {
        // SAFETY: in bounds by `at`; volatile since BPF programs write meanwhile, and any bits are a `T`.
        unsafe { self.at(index).read_volatile() }
    }

    /// Overwrites entry `index`.
    ///
    /// # Panics
    /// When `index` is not below [`ArrayView::entries`].
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: in bounds by `at`; the mapping is shared and writable.
        unsafe { self.at(index).write_volatile(value) }
    }

    /// The address of entry `index`, for the update of one field with `write_volatile`.
    ///
    /// # Panics
    /// When `index` is not below [`ArrayView::entries`].
    pub fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: within the mapping, which holds `entries` values of `stride` bytes.
        unsafe { self.base.as_ptr().add(index * self.stride).cast() }
    }
}

impl<T> Drop for ArrayView<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody holds a reference into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
