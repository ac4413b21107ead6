//! The page of `clock.h`: written here, read by the preloaded clock.

use std::{
    ffi::c_void,
    fs::File,
    io,
    ptr::{self, NonNull},
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
    time::{ClockId, clock_gettime},
};

/// As in clock.h.
const MAGIC: u64 = 0x0063_6b63_6c62_616c;
/// `rate` is a fraction of this.
const ONE: f64 = (1u64 << 32) as f64;

/// struct entrain_lab_clock of clock.h.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    seq: AtomicU64,
    computer_ns: AtomicI64,
    machine_ns: AtomicI64,
    rate: AtomicU64,
    realtime_ns: AtomicI64,
    counted: AtomicU64,
}

/// The page, shared with the process.
#[derive(Debug)]
pub(crate) struct Page {
    file: File,
    at: NonNull<Layout>,
    writer: Mutex<()>,
}

// SAFETY: the mapping belongs to no thread, and all of its words are atomic.
unsafe impl Send for Page {}
// SAFETY: as above; writers take turns by the mutex.
unsafe impl Sync for Page {}

impl Page {
    pub(crate) fn new(counted: bool) -> io::Result<Self> {
        let file = File::from(memfd_create("entrain-lab-clock-page", MemfdFlags::CLOEXEC)?);
        file.set_len(size_of::<Layout>() as u64)?;
        // SAFETY: a new mapping, at a place of the kernel's choice, of a file that was made as long as it.
        let at = unsafe {
            mmap(ptr::null_mut(), size_of::<Layout>(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)?
        };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        let page = Self { file, at, writer: Mutex::new(()) };
        let (layout, now) = (page.layout(), clock(ClockId::Monotonic));
        layout.computer_ns.store(now, Ordering::Relaxed);
        layout.machine_ns.store(now, Ordering::Relaxed);
        layout.rate.store(ONE as u64, Ordering::Relaxed);
        layout.realtime_ns.store(clock(ClockId::Realtime) - now, Ordering::Relaxed);
        layout.counted.store(u64::from(counted), Ordering::Relaxed);
        layout.magic.store(MAGIC, Ordering::Release);
        Ok(page)
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping is page-aligned, as long as a Layout, lives as long as `self`, and any bytes are a Layout.
        unsafe { self.at.as_ref() }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn set(&self, factor: f64) {
        let _turn = self.writer.lock().expect("no panic under it");
        let layout = self.layout();
        let seq = layout.seq.load(Ordering::Relaxed);
        layout.seq.store(seq + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let now = clock(ClockId::Monotonic);
        layout.machine_ns.store(self.machine_at(now), Ordering::Relaxed);
        layout.computer_ns.store(now, Ordering::Relaxed);
        layout.rate.store((ONE / factor) as u64, Ordering::Relaxed);
        layout.seq.store(seq + 2, Ordering::Release);
    }

    pub(crate) fn factor(&self) -> f64 {
        ONE / self.layout().rate.load(Ordering::Relaxed) as f64
    }

    /// Only the holder of the writer's mutex, or who has it, reads a rule that is whole.
    fn machine_at(&self, computer_ns: i64) -> i64 {
        let layout = self.layout();
        let passed = i128::from(computer_ns - layout.computer_ns.load(Ordering::Relaxed));
        let machine = (passed * i128::from(layout.rate.load(Ordering::Relaxed))) >> 32;
        layout.machine_ns.load(Ordering::Relaxed) + machine as i64
    }

    pub(crate) fn now(&self) -> Duration {
        let _turn = self.writer.lock().expect("no panic under it");
        Duration::from_nanos(self.machine_at(clock(ClockId::Monotonic)) as u64)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody who borrowed from it is left. A failure would only leak it.
        let _ = unsafe { munmap(self.at.as_ptr().cast::<c_void>(), size_of::<Layout>()) };
    }
}

fn clock(id: ClockId) -> i64 {
    let now = clock_gettime(id);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_jump_when_its_pace_changes() {
        let page = Page::new(false).unwrap();
        let mut last = page.now();
        for factor in [1.0, 1000.0, 3.0, 0.5, 40.0] {
            page.set(factor);
            assert!((page.factor() / factor - 1.0).abs() < 1e-6);
            let now = page.now();
            assert!(now >= last && now - last < Duration::from_secs(1), "{last:?} {now:?}");
            last = now;
        }
    }

    #[test]
    fn it_is_the_layout_of_the_header() {
        let header = include_str!("clock.h");
        let fields: Vec<&str> = header
            .lines()
            .filter_map(|line| line.trim().strip_prefix("uint64_t ").or(line.trim().strip_prefix("int64_t ")))
            .filter_map(|rest| rest.split(';').next())
            .collect();
        assert_eq!(fields, ["magic", "seq", "computer_ns", "machine_ns", "rate", "realtime_ns", "counted"]);
        assert_eq!(size_of::<Layout>(), 8 * fields.len());
        assert!(header.contains(&format!("{MAGIC:#x}ULL")));
    }
}
