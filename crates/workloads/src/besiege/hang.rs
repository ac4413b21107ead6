//! Memory that never comes: a file of a FUSE file system that answers everything but reads.
//!
//! The kernel's protocol, as far as one file needs it (linux/fuse.h). The file system is mounted for as long as it takes to
//! open the file, and ends with this process, which lets go of whoever waits for a page.

use std::ffi::CString;
use std::fs::{File, OpenOptions, create_dir, remove_dir};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};

use super::PAGE_SIZE;

/// Memory that lies in such a file.
#[derive(Debug)]
pub(super) struct Hanging {
    pub(super) at: usize,
    pub(super) length: usize,
}

/// Requests (enum fuse_opcode).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// struct fuse_in_header: length, request, its number, node, who asks.
const REQUEST: usize = 40;
/// What the kernel wants to be read at once, with the longest write that INIT allows.
const BUFFER: usize = 64 << 10;
/// The one file's number; the folder's is 1.
const FILE: u64 = 2;

impl Hanging {
    /// Maps so many pages. Takes root, for the mount.
    pub(super) fn new(pages: usize) -> Result<Self> {
        let length = pages * PAGE_SIZE;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").context("cannot open /dev/fuse")?;
        let folder = std::env::temp_dir().join(format!("entrain-besiege-{}", std::process::id()));
        create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = mount(&device, &folder).and_then(|()| {
            let server = device.try_clone()?;
            std::thread::Builder::new().name("fuse".into()).spawn(move || serve(server, length))?;
            let file = OpenOptions::new().read(true).write(true).open(folder.join("memory"));
            // SAFETY: a path that ends with a zero; who has the file open keeps the file system.
            unsafe { libc::umount2(c_path(&folder).as_ptr(), libc::MNT_DETACH) };
            file
        });
        let _ = remove_dir(&folder);
        let file = file.context("cannot mount a file system of FUSE")?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice, which this process never touches.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        ensure!(at != libc::MAP_FAILED, "cannot map the file of FUSE: {}", io::Error::last_os_error());
        Ok(Self { at: at as usize, length })
    }

    /// Has the kernel look there for this process's command line. Needs no right.
    pub(super) fn be_the_command_line(&self) -> Result<()> {
        let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
        let map = mm_map(&stat, self.at as u64, self.length as u64).context("/proc/self/stat has another shape")?;
        // SAFETY: the kernel reads a struct of this size, which is alive; nobody here reads the command line any more.
        let set = unsafe { libc::prctl(libc::PR_SET_MM, PR_SET_MM_MAP, &raw const map, size_of::<MmMap>(), 0) };
        ensure!(set == 0, "cannot move the command line: {}", io::Error::last_os_error());
        Ok(())
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in it")
}

fn mount(device: &File, folder: &Path) -> io::Result<()> {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options).expect("no zero in it");
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let (name, kind) = (c"besiege", c"fuse");
    // SAFETY: strings that end with a zero and outlive the call.
    let mounted =
        unsafe { libc::mount(name.as_ptr(), c_path(folder).as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    if mounted == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Answers until the file system is gone.
fn serve(mut device: File, length: usize) {
    let mut request = vec![0; BUFFER];
    loop {
        match device.read(&mut request) {
            Ok(count) if count >= REQUEST => {
                if let Some(reply) = answer(&request[..count], length) {
                    let _ = device.write_all(&reply);
                }
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => {}
            _ => return,
        }
    }
}

/// The reply to a request: struct fuse_out_header and what follows. `None`: there is none, ever.
fn answer(request: &[u8], length: usize) -> Option<Vec<u8>> {
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let mut body: Vec<u8> = Vec::new();
    let mut put = |bytes: &[u8]| body.extend_from_slice(bytes);
    let mut error = 0;
    match word(4) {
        READ | FORGET | BATCH_FORGET | INTERRUPT => return None,
        INIT => {
            // Version 7.31; no readahead, no flags; 16 bits each of background requests; writes of a page; times in ns.
            [7, 31, 0, 0, 0, PAGE_SIZE as u32, 1].iter().for_each(|word: &u32| put(&word.to_ne_bytes()));
            put(&[0; 36]);
        }
        LOOKUP => {
            // Node and generation; valid for an hour, and so are its attributes.
            [FILE, 0, 3600, 3600, 0].iter().for_each(|word: &u64| put(&word.to_ne_bytes()));
            put(&attributes(FILE, length));
        }
        GETATTR => {
            [3600_u64, 0].iter().for_each(|word| put(&word.to_ne_bytes()));
            let node = u64::from(word(16)) | u64::from(word(20)) << 32;
            put(&attributes(node, length));
        }
        OPEN => put(&[0; 16]),
        _ => error = -libc::ENOSYS,
    }
    let mut reply = Vec::with_capacity(16 + body.len());
    reply.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    reply.extend_from_slice(&error.to_ne_bytes());
    reply.extend_from_slice(&request[8..16]);
    reply.extend_from_slice(&body);
    Some(reply)
}

/// struct fuse_attr, on a little-endian computer as on any other.
fn attributes(node: u64, length: usize) -> Vec<u8> {
    let mode = if node == FILE { libc::S_IFREG | 0o666 } else { libc::S_IFDIR | 0o777 };
    let mut bytes = Vec::new();
    // Number, size, blocks, three times.
    [node, length as u64, length as u64 / 512, 0, 0, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    // Their nanoseconds, mode, links, owner, device, size of a block, flags.
    let words = [0, 0, 0, mode, 1, 0, 0, 0, PAGE_SIZE as u32, 0];
    words.iter().for_each(|word: &u32| bytes.extend(word.to_ne_bytes()));
    bytes
}

/// `prctl(PR_SET_MM, …)`: the whole of struct prctl_mm_map at once.
const PR_SET_MM_MAP: libc::c_ulong = 14;

/// struct prctl_mm_map
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct MmMap {
    code: [u64; 2],
    data: [u64; 2],
    heap: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// As the process has it by its `/proc/PID/stat`, but for the arguments.
fn mm_map(stat: &str, at: u64, length: u64) -> Option<MmMap> {
    // The second field is a name in parentheses; the third follows the last of them.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // SAFETY: asks for the end of the heap and moves nothing.
    let heap_end = unsafe { libc::sbrk(0) } as u64;
    Some(MmMap {
        code: [field(26)?, field(27)?],
        data: [field(45)?, field(46)?],
        heap: [field(47)?, heap_end],
        stack: field(28)?,
        arguments: [at, at + length],
        environment: [field(50)?, field(51)?],
        auxv: 0,
        auxv_size: 0,
        exe_fd: u32::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u32, node: u64) -> Vec<u8> {
        let mut bytes = vec![0; REQUEST];
        bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
        bytes[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        bytes
    }

    #[test]
    fn replies_have_the_kernel_s_sizes_and_reads_have_none() {
        let length = |kind, node| answer(&request(kind, node), PAGE_SIZE).map(|reply| reply.len());
        assert_eq!(length(INIT, 0), Some(16 + 64));
        assert_eq!(length(LOOKUP, 1), Some(16 + 128));
        assert_eq!(length(GETATTR, 1), Some(16 + 104));
        assert_eq!(length(OPEN, 2), Some(16 + 16));
        assert_eq!(length(READ, 2), None);
        let other = answer(&request(99, 2), PAGE_SIZE).expect("refused");
        assert_eq!(other[..8], [16_u32.to_ne_bytes(), (-libc::ENOSYS).to_ne_bytes()].concat());
        assert_eq!(other[8..], 77_u64.to_ne_bytes());
    }

    #[test]
    fn the_command_line_moves_and_all_else_stays() {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("readable");
        let map = mm_map(&stat, 1 << 20, 4096).expect("its shape");
        assert_eq!(map.arguments, [1 << 20, (1 << 20) + 4096]);
        assert!(map.code[0] < map.code[1] && map.heap[0] <= map.heap[1] && map.environment[0] <= map.environment[1]);
        assert_eq!(size_of::<MmMap>(), 104, "as the kernel has it");
    }
}
