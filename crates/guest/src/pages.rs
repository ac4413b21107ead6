//! The pages of the channel as the guest owns them: elements of one mmapable array map, pinned so that they outlive the
//! agent, until the host has let go.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::Acquire;

use entrain_channel::page::{PAGE_SIZE, Page};
use entrain_channel::word::{Link, LinkState, Seed};
use libbpf_rs::{MapCore, MapHandle, MapType};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{GuestError, Result};
use crate::system::pin_folder;

/// What unpacks the host's words in a page; `None` while no host publishes there.
pub(crate) fn paired_seed(page: &Page) -> Option<Seed> {
    let link = Link::from_raw(page.link.link.load(Acquire))?;
    Seed::from_raw(page.link.seed.load(Acquire)).filter(|_| link.state == LinkState::Paired)
}

/// The pages of all vCPUs, mapped.
#[derive(Debug)]
pub struct Pages {
    map: MapHandle,
    pin: PathBuf,
    base: *mut u8,
    count: usize,
}

impl Pages {
    /// Makes pages for `count` vCPUs and pins them below `bpffs`.
    pub fn create(bpffs: &Path, count: usize) -> Result<Self> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let mut map =
            MapHandle::create(MapType::Array, Some("entrain_pages"), 4, PAGE_SIZE as u32, count as u32, &options)
                .map_err(GuestError::bpf("the pages could not be allocated"))?;
        let folder = pin_folder(bpffs);
        fs::create_dir_all(&folder).map_err(|source| GuestError::File { path: folder.clone(), source })?;
        let pin = folder.join("pages");
        map.pin(&pin).map_err(GuestError::bpf("the pages could not be pinned in the BPF file system"))?;
        Self::over(map, pin, count, true)
    }

    /// The pages that an agent has pinned; `None` if there are none.
    pub fn open(bpffs: &Path, write: bool) -> Result<Option<Self>> {
        let pin = pin_folder(bpffs).join("pages");
        if !pin.exists() {
            return Ok(None);
        }
        let map = MapHandle::from_pinned_path(&pin).map_err(GuestError::bpf("the pinned pages could not be opened"))?;
        let count = map.max_entries() as usize;
        if map.map_type() != MapType::Array || map.value_size() as usize != PAGE_SIZE || count == 0 {
            let found = format!("a map of type {:?} with values of {} bytes", map.map_type(), map.value_size());
            return Err(GuestError::Unexpected { path: pin, found });
        }
        Self::over(map, pin, count, write).map(Some)
    }

    fn over(map: MapHandle, pin: PathBuf, count: usize, write: bool) -> Result<Self> {
        let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice; it overlaps nothing.
        let base = unsafe { mmap(ptr::null_mut(), count * PAGE_SIZE, access, MapFlags::SHARED, map.as_fd(), 0) }
            .map_err(GuestError::system("the pages could not be mapped"))?;
        Ok(Self { map, pin, base: base.cast(), count })
    }

    /// How many vCPUs have a page.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The map, for BPF programs that use the pages.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// The page of a vCPU.
    ///
    /// # Panics
    /// If there is no such vCPU.
    pub fn page(&self, vcpu: usize) -> &Page {
        assert!(vcpu < self.count, "vCPU {vcpu} of {}", self.count);
        // SAFETY: within the mapping, which lives as long as `self`; written through only if it was mapped for writing,
        // which the callers that write have asked for.
        unsafe { Page::at(self.base.add(vcpu * PAGE_SIZE)) }
    }

    /// Every page, by vCPU number.
    pub fn iter(&self) -> impl Iterator<Item = &Page> {
        (0..self.count).map(|vcpu| self.page(vcpu))
    }

    /// The guest-physical address of every page. Pages of a BPF map are never moved, swapped or ballooned, so these hold
    /// as long as the map.
    pub fn addresses(&self) -> Result<Vec<u64>> {
        const PATH: &str = "/proc/self/pagemap";
        let file = |source: io::Error| GuestError::File { path: PATH.into(), source };
        let pagemap = File::open(PATH).map_err(file)?;
        (0..self.count)
            .map(|vcpu| {
                let page = self.page(vcpu);
                // Only a page that was touched is in the page table.
                page.link.link.load(std::sync::atomic::Ordering::Relaxed);
                let mut entry = [0; 8];
                let number = ptr::from_ref(page) as usize / PAGE_SIZE;
                pagemap.read_exact_at(&mut entry, number as u64 * 8).map_err(file)?;
                physical(u64::from_le_bytes(entry)).ok_or_else(|| GuestError::Unexpected {
                    path: PATH.into(),
                    found: format!("{:#x} for the page of vCPU {vcpu}", u64::from_le_bytes(entry)),
                })
            })
            .collect()
    }

    /// Unpins the pages and frees them. The caller has scrubbed every page.
    pub fn free(mut self) -> Result<()> {
        let pin = self.pin.clone();
        self.map.unpin(&pin).map_err(GuestError::bpf("the pages could not be unpinned"))?;
        // Ours alone; anything else in it is not.
        let _ = fs::remove_dir(pin.parent().unwrap_or(&pin));
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.cast(), self.count * PAGE_SIZE) };
    }
}

/// The address in an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst): bit 63 present, bits 0-54 the frame.
/// The frame is 0 for whoever may not see it.
fn physical(entry: u64) -> Option<u64> {
    let frame = entry & ((1 << 55) - 1);
    (entry >> 63 == 1 && frame != 0).then_some(frame * PAGE_SIZE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_present_visible_frames_are_addresses() {
        assert_eq!(physical(1 << 63 | 0x283b), Some(0x283_b000));
        assert_eq!(physical(1 << 63 | 1 << 55 | 0x283b), Some(0x283_b000));
        assert_eq!(physical(0x283b), None);
        assert_eq!(physical(1 << 63), None);
    }
}
