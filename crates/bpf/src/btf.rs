//! The names in a kernel's type information (BTF), enough to tell which types and tracepoints it has.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Bytes of a BTF header: magic u16, version u8, flags u8, hdr_len, type_off, type_len, str_off, str_len u32.
const HEADER: usize = 24;
const MAGIC: u16 = 0xeb9f;

/// Every name in the BTF of the kernel and of some of its modules.
///
/// A name says less than a type, but names of struct members, enumerators and `btf_trace_*` typedefs only stand there
/// when the type itself does.
#[derive(Debug, Default)]
pub struct BtfNames {
    names: HashSet<Vec<u8>>,
}

impl BtfNames {
    /// Reads `vmlinux` and the named modules from `folder` (`/sys/kernel/btf`). `None` when the kernel itself has none;
    /// modules that are missing (not loaded, or built in) are skipped.
    pub fn read(folder: &Path, modules: &[&str]) -> Option<Self> {
        let mut names = Self::default();
        names.add(&fs::read(folder.join("vmlinux")).ok()?)?;
        for module in modules {
            if let Ok(data) = fs::read(folder.join(module)) {
                names.add(&data)?;
            }
        }
        Some(names)
    }

    /// Whether the name occurs.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name.as_bytes())
    }

    fn add(&mut self, data: &[u8]) -> Option<()> {
        let word = |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize);
        if data.len() < HEADER || u16::from_le_bytes([data[0], data[1]]) != MAGIC {
            return None;
        }
        let start = word(4)?.checked_add(word(16)?)?;
        let strings = data.get(start..start.checked_add(word(20)?)?)?;
        self.names.extend(strings.split(|&byte| byte == 0).map(<[u8]>::to_vec));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn btf(strings: &[u8]) -> Vec<u8> {
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, 0, 0, strings.len() as u32] {
            data.extend(word.to_le_bytes());
        }
        data.extend(strings);
        data
    }

    #[test]
    fn finds_names_of_kernel_and_modules() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("vmlinux"), btf(b"\0task_struct\0BPF_UPTR\0")).unwrap();
        fs::write(dir.path().join("kvm"), btf(b"\0kvm\0")).unwrap();
        let names = BtfNames::read(dir.path(), &["kvm", "absent"]).unwrap();
        assert!(names.has("BPF_UPTR") && names.has("kvm") && !names.has("UPTR"));
    }

    #[test]
    fn a_truncated_file_is_no_btf() {
        let dir = tempfile::tempdir().unwrap();
        let mut data = btf(b"\0name\0");
        data.truncate(26);
        fs::write(dir.path().join("vmlinux"), data).unwrap();
        assert!(BtfNames::read(dir.path(), &[]).is_none());
    }
}
