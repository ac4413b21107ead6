//! A process's memory map, `/proc/PID/maps`.

use crate::{Result, Root};

/// One line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last; not below `start`.
    pub end: u64,
    /// The process may write it.
    pub writable: bool,
    /// Others that map the same file see what is written here.
    pub shared: bool,
    /// Bytes into the file.
    pub offset: u64,
    /// A file stands behind it.
    pub file: bool,
    /// Its name as the kernel writes it: line breaks as `\012`, ` (deleted)` behind a file without a name. The process
    /// and its user choose it. Empty where there is none.
    pub path: String,
}

impl Mapping {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Its name in `/proc/PID/map_files`.
    pub fn map_file(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.as_bytes();
        let offset = words.next()?;
        let inode = words.nth(1)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        (start <= end).then_some(Self {
            start,
            end,
            writable: permissions.get(1) == Some(&b'w'),
            shared: permissions.get(3) == Some(&b's'),
            offset: number(offset)?,
            file: inode != "0",
            path: words.next().unwrap_or_default().trim().to_owned(),
        })
    }
}

/// Parses the file; lines that cannot be understood are left out.
pub fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(Mapping::parse).collect()
}

/// The map of a process.
pub fn of(root: &Root, pid: i32) -> Result<Vec<Mapping>> {
    Ok(parse(&root.read(format!("proc/{pid}/maps"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_are_parsed() {
        let text = "7f0000000000-7f0020000000 rw-s 00200000 00:01 1033 /memfd:memory-backend-memfd (deleted)\n\
                    7f0030000000-7f0030001000 rw-p 00000000 00:00 0 \nnonsense\n\
                    7f0040000000-7f0040001000 r--s 00000000 00:01 1034 /memfd:another's (deleted)\n";
        let mappings = parse(text);
        assert_eq!(mappings.len(), 3);
        let ram = Mapping {
            start: 0x7f00_0000_0000,
            end: 0x7f00_2000_0000,
            writable: true,
            shared: true,
            offset: 0x20_0000,
            file: true,
            path: "/memfd:memory-backend-memfd (deleted)".into(),
        };
        assert_eq!(mappings[0], ram);
        assert!(!mappings[1].shared && !mappings[1].file && mappings[1].path.is_empty());
        assert!(mappings[2].shared && !mappings[2].writable);
    }

    #[test]
    fn low_addresses_have_no_zeros_in_map_files() {
        let [mapping] = &parse("00400000-00452000 r-xp 00000000 08:02 173521     /usr/bin/dbus-daemon\n")[..] else {
            panic!("one mapping");
        };
        assert_eq!((mapping.map_file().as_str(), mapping.bytes()), ("400000-452000", 0x5_2000));
        assert_eq!(mapping.path, "/usr/bin/dbus-daemon");
    }

    proptest! {
        #[test]
        fn any_text_parses(text in ".{0,400}") {
            parse(&text);
        }

        #[test]
        fn no_mapping_ends_before_it_starts(start in any::<u64>(), end in any::<u64>(), name in "\\PC{0,20}") {
            for mapping in parse(&format!("{start:08x}-{end:08x} rw-s 0 00:01 7 {name}\n")) {
                prop_assert_eq!(mapping.bytes(), end - start);
            }
        }
    }
}
