//! Which file systems a VM's memory may lie on: tmpfs (memfd among it) and hugetlbfs, whose files are memory.
//!
//! The file system itself is not asked. One in user space (FUSE) or on a network answers when its owner likes, and the
//! daemon would wait; the kernel's own list of mounts tells the kind of a device without them. A file of any other kind is
//! refused: its pages go to a disk or a server that the host would wait for, and nobody keeps a VM's memory there.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;

use entrain_system::Root;
use rustix::fs::{AtFlags, MemfdFlags, StatxFlags, memfd_create, statx};

use super::region::FileId;

/// Bytes of a list of mounts that are read: a user may make 100,000 mounts in a namespace of his own.
const MOUNTS: u64 = 1 << 20;

/// The file behind a descriptor, as the kernel has it in memory: nothing is asked of its file system.
pub(super) fn id_of(file: impl AsFd) -> std::io::Result<FileId> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, "", flags, StatxFlags::INO)?;
    Ok(FileId { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino })
}

/// Whether files of this device are memory. `pid`: whose mounts are looked at beside the daemon's own. Only as long as a
/// file of the device is held open does the answer stay true: the number of one that is gone is given to another.
pub(super) fn is_memory(root: &Root, pid: i32, device: (u32, u32)) -> bool {
    // The kernel's own mounts, where memfd has its files, are in nobody's list.
    let huge =
        [MemfdFlags::HUGETLB, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB];
    let own = std::iter::once(MemfdFlags::empty()).chain(huge).any(|flags| {
        let id = memfd_create("entrain", flags | MemfdFlags::CLOEXEC).map(id_of);
        matches!(id, Ok(Ok(id)) if id.device == device)
    });
    own || ["self".to_owned(), pid.to_string()].iter().any(|process| {
        let list = File::open(root.path(format!("proc/{process}/mountinfo")));
        list.is_ok_and(|list| mounted_memory(list, device))
    })
}

/// Whether a list of mounts (proc_pid_mountinfo(5)) has the device as tmpfs or hugetlbfs.
fn mounted_memory(list: impl Read, device: (u32, u32)) -> bool {
    let device = format!("{}:{}", device.0, device.1);
    let kind = |line: &str| {
        let mut words = line.split(' ');
        let kind = (words.nth(2)? == device).then(|| words.skip_while(|word| *word != "-").nth(1))??;
        Some(matches!(kind, "tmpfs" | "hugetlbfs"))
    };
    let lines = BufReader::new(list.take(MOUNTS)).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| kind(&String::from_utf8_lossy(&line))).next() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_mounts_tells_the_kind_of_a_device() {
        let list = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
                    37 35 0:31 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
                    38 35 0:32 / /dev/hugepages rw shared:4 propagate_from:2 - hugetlbfs hugetlbfs rw\n\
                    39 35 0:33 / /mnt/- - rw - fuse.x tmpfs rw\nnonsense\n";
        let memory = |minor, major| mounted_memory(list.as_bytes(), (major, minor));
        assert!(memory(31, 0) && memory(32, 0));
        assert!(!memory(0, 98) && !memory(33, 0) && !memory(99, 0));
        assert!(!mounted_memory(
            [&b" "[..], &vec![b'x'; 2 << 20], b"\n37 35 0:31 / / rw - tmpfs t rw\n"].concat().as_slice(),
            (0, 31)
        ));
    }

    #[test]
    fn a_memfd_is_memory_and_a_program_is_not() {
        let device = |file: &File| id_of(file).expect("held open").device;
        let memfd = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd"));
        let pid = std::process::id() as i32;
        assert!(is_memory(&Root::live(), pid, device(&memfd)));
        assert!(!is_memory(&Root::live(), pid, device(&File::open("/proc/self/maps").expect("there"))));
    }
}
