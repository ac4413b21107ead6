//! Loads a shared object into memory of its own: what dlopen() does, as often as one likes, also in a static program.
//!
//! The objects are linked with no library and bound to themselves, so that all there is to do is to copy the segments
//! and to add the base to the addresses inside.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;

use object::elf::{PF_X, R_AARCH64_RELATIVE, R_X86_64_RELATIVE};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, RelocationFlags, SegmentFlags};

use super::Side;

static HOST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/host.so"));
static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.so"));

const PAGE: usize = 4096;

/// What is to be done to load an object, worked out once.
struct Plan {
    size: usize,
    segments: Vec<(usize, &'static [u8])>,
    code: Vec<(usize, usize)>,
    relative: Vec<(usize, usize)>,
    symbols: HashMap<String, usize>,
}

impl Plan {
    fn of(side: Side) -> &'static Self {
        static PLANS: [OnceLock<Plan>; 2] = [OnceLock::new(), OnceLock::new()];
        PLANS[side as usize].get_or_init(|| Self::read(if side == Side::Host { HOST } else { GUEST }))
    }

    /// Reads an object that this crate's build script has linked: a surprise in it is a fault of the build.
    fn read(bytes: &'static [u8]) -> Self {
        let file = ElfFile64::<object::Endianness>::parse(bytes).expect("the linker writes ELF");
        let mut plan =
            Self { size: 0, segments: Vec::new(), code: Vec::new(), relative: Vec::new(), symbols: HashMap::new() };
        for segment in file.segments() {
            let (at, size) = (segment.address() as usize, segment.size() as usize);
            plan.size = plan.size.max((at + size).next_multiple_of(PAGE));
            plan.segments.push((at, segment.data().expect("segments are in the file")));
            if matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0) {
                plan.code.push((at & !(PAGE - 1), size));
            }
        }
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            match relocation.flags() {
                RelocationFlags::Elf { r_type: R_X86_64_RELATIVE | R_AARCH64_RELATIVE } => {
                    plan.relative.push((at as usize, relocation.addend() as usize));
                }
                flags => panic!("the object is not bound to itself: {flags:?}"),
            }
        }
        for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
            plan.symbols.insert(symbol.name().expect("names are text").to_owned(), symbol.address() as usize);
        }
        plan
    }
}

/// One loaded copy.
pub(super) struct Image {
    base: *mut u8,
    plan: &'static Plan,
}

impl Image {
    pub(super) fn load(side: Side) -> io::Result<Self> {
        let plan = Plan::of(side);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: anonymous memory at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { libc::mmap(null_mut(), plan.size, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let image = Self { base: base.cast::<u8>(), plan };
        for (at, bytes) in &plan.segments {
            // SAFETY: every segment ends before plan.size, the length of the mapping.
            unsafe { image.base.add(*at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        for (at, addend) in &plan.relative {
            // SAFETY: relocations lie inside the segments; they are aligned as the linker lays out pointers.
            unsafe { image.base.add(*at).cast::<*mut u8>().write(image.base.add(*addend)) };
        }
        for (at, size) in &plan.code {
            // SAFETY: the range is whole pages of this mapping, and holds nothing that is written later.
            let done = unsafe { libc::mprotect(image.base.add(*at).cast(), *size, libc::PROT_READ | libc::PROT_EXEC) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(image)
    }

    /// Address of a global.
    pub(super) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        // SAFETY: the address of a symbol lies inside the mapping.
        self.plan.symbols.get(name).map(|at| unsafe { self.base.add(*at).cast() })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping is this image's, and whoever owns the image gives out no address beyond its life.
        unsafe { libc::munmap(self.base.cast(), self.plan.size) };
    }
}
