//! Which pages a process has in memory, by `PAGEMAP_SCAN` (Linux 6.7; pairing itself needs 6.13). It walks page tables and
//! touches no page; device memory (PFN maps) it passes over.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::PAGE;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Arg>() as u64) << 16 | (b'f' as u64) << 8 | 16;

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;

/// Addresses that one call walks at most: 65,536 entries of page tables, well below a millisecond.
const SPAN: u64 = 256 << 20;
/// Runs of pages that one call returns at most.
const RUNS: usize = 256;

/// The kernel's struct pm_scan_arg.
#[repr(C)]
#[derive(Default)]
struct Arg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The kernel's struct page_region.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// Pages of a part of the memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Addresses of those that are there.
    pub(crate) pages: Vec<u64>,
    /// How far it was looked.
    pub(crate) end: u64,
}

/// Pages in `start..end` that are in memory: `most` at most, and no more than [`SPAN`] looked at. The bounds are those of a
/// mapping.
pub(super) fn present(pagemap: &File, start: u64, end: u64, most: u64) -> io::Result<Piece> {
    let start = start / PAGE * PAGE;
    let arg = Arg {
        start,
        end: end.min(start.saturating_add(SPAN)),
        max_pages: most,
        category_inverted: SWAPPED | ZERO,
        category_mask: PRESENT | SWAPPED | ZERO,
        return_mask: PRESENT,
        ..Arg::default()
    };
    let (runs, end) = scan(pagemap, arg)?;
    let pages = runs.iter().flat_map(|run| (run.start..run.end).step_by(PAGE as usize)).collect();
    Ok(Piece { pages, end })
}

/// Whether the page at `hva` is in memory, or swapped out.
pub(super) fn is_there(pagemap: &File, hva: u64) -> io::Result<bool> {
    let start = hva / PAGE * PAGE;
    let any = PRESENT | SWAPPED;
    let arg =
        Arg { start, end: start.saturating_add(PAGE), category_anyof_mask: any, return_mask: any, ..Arg::default() };
    Ok(!scan(pagemap, arg)?.0.is_empty())
}

fn scan(pagemap: &File, mut arg: Arg) -> io::Result<(Vec<Run>, u64)> {
    let mut runs = vec![Run::default(); RUNS];
    arg.size = size_of::<Arg>() as u64;
    arg.vec = runs.as_mut_ptr() as u64;
    arg.vec_len = runs.len() as u64;
    // SAFETY: the struct is the kernel's, with its size in it; `vec` is as long as it says.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
    if found < 0 {
        return Err(io::Error::last_os_error());
    }
    runs.truncate(found as usize);
    // No call without progress, whatever the kernel says.
    Ok((runs, arg.walk_end.clamp((arg.start + PAGE).min(arg.end), arg.end)))
}
