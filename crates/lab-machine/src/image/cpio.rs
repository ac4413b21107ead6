//! Writes initramfs archives: cpio of the kind "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    path::Path,
};

const FILE: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const LINK: u32 = 0o120_000;
const DEVICE: u32 = 0o020_000;

/// An archive that is being written. Paths have no leading slash; folders come into being with what lies in them.
pub struct Writer<W: Write> {
    out: W,
    inode: u32,
    written: usize,
    folders: BTreeSet<String>,
}

impl<W: Write> Writer<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0, written: 0, folders: BTreeSet::new() }
    }

    /// Adds a folder and those that it lies in.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return Ok(());
        }
        self.parents(path)?;
        self.header(path, FOLDER | 0o755, 0, (0, 0))
    }

    /// Adds a file with that content.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.header(path, FILE | mode, content.len() as u64, (0, 0))?;
        self.bytes(content)?;
        self.pad()
    }

    /// Adds a copy of the file `from` (symbolic links are followed).
    pub fn copy(&mut self, path: &str, mode: u32, from: &Path) -> io::Result<()> {
        let mut source = fs::File::open(from)?;
        let size = source.metadata()?.len();
        self.parents(path)?;
        self.header(path, FILE | mode, size, (0, 0))?;
        let copied = io::copy(&mut Read::by_ref(&mut source).take(size), &mut self.out)?;
        if copied != size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file shrank while it was copied"));
        }
        self.written += size as usize;
        self.pad()
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        self.header(path, LINK | 0o777, target.len() as u64, (0, 0))?;
        self.bytes(target.as_bytes())?;
        self.pad()
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.parents(path)?;
        self.header(path, DEVICE | 0o600, 0, (major, minor))
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.header("TRAILER!!!", 0, 0, (0, 0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(parent, _)| self.folder(parent))
    }

    fn header(&mut self, path: &str, mode: u32, size: u64, device: (u32, u32)) -> io::Result<()> {
        let size = u32::try_from(size).map_err(|_| io::Error::other("an initramfs cannot hold files of 4 GiB"))?;
        self.inode += 1;
        // magic ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, path.len() as u32 + 1, 0];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08x}"));
        }
        head.push_str(path);
        head.push('\0');
        self.bytes(head.as_bytes())?;
        self.pad()
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    /// Names and contents begin at multiples of 4.
    fn pad(&mut self) -> io::Result<()> {
        self.bytes(&[0; 3][..self.written.next_multiple_of(4) - self.written])
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_archive_begins_and_ends_as_the_format_says() {
        let mut w = Writer::new(Vec::new());
        w.file("a/b/c", 0o644, b"hello").unwrap();
        w.link("a/l", "b/c").unwrap();
        let bytes = w.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5); // a, a/b, a/b/c, a/l, trailer
        assert!(text.find("a/b\0").unwrap() < text.find("a/b/c\0").unwrap());
    }

    #[test]
    fn cpio_can_unpack_it() {
        // An independent reader, where there is one (the toolchain root has none).
        let dir = tempfile::tempdir().unwrap();
        let mut w = Writer::new(Vec::new());
        w.file("bin/x", 0o755, b"#!/bin/sh\n").unwrap();
        w.link("sbin", "bin").unwrap();
        let bytes = w.finish().unwrap();
        let child = Command::new("cpio").args(["-id", "--quiet"]).current_dir(dir.path()).stdin(Stdio::piped()).spawn();
        let Ok(mut child) = child else { return };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read(dir.path().join("sbin/x")).unwrap(), b"#!/bin/sh\n");
    }
}
