//! Reads a recording: any bytes at all give a recording or an error, and need memory in proportion to their number.

use std::collections::HashMap;

use thiserror::Error;

use super::{
    BLOCK, BLOCK_HEAD, BLOCK_MAGIC, Fragment, Host, KIND_EVENTS, KIND_TABLE, MAGIC, MAJOR, Name, RecordedVm, checksum,
};
use crate::event::{EVENT_BYTES, Event};

/// Why bytes are no recording that this version can read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// They do not begin as one.
    #[error("this is no recording of `entrain record`")]
    Foreign,
    /// A later format.
    #[error(
        "this recording has format {0}, this version of entrain reads format {MAJOR}: use the version that wrote it"
    )]
    Newer(u16),
    /// A header that no version writes.
    #[error("the header is damaged: it tells of blocks of {0} bytes")]
    Header(u32),
    /// No block is whole.
    #[error("nothing in this recording is readable: it was cut off, or all of its {0} blocks are damaged")]
    Empty(usize),
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// About the whole; empty where that block is lost.
    pub host: Host,
    /// The host's VMs.
    pub vms: Vec<RecordedVm>,
    /// Thread -> its process and its name.
    pub names: HashMap<u32, (u32, String)>,
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Blocks that were there but not whole.
    pub damaged: usize,
    /// Blocks of events between the first and the last that are not there.
    pub missing: u64,
}

/// Reads a recording.
///
/// # Errors
/// When it is none, is of a later format, or nothing of it can be read. A file that is damaged in part is no error:
/// see [`Recording::damaged`].
pub fn parse(bytes: &[u8]) -> Result<Recording, ParseError> {
    let header = bytes.get(..BLOCK_HEAD).filter(|header| header.starts_with(&MAGIC)).ok_or(ParseError::Foreign)?;
    let major = u16::from_le_bytes([header[8], header[9]]);
    if major != MAJOR {
        return Err(ParseError::Newer(major));
    }
    let size = word(header, 12);
    if size as usize != BLOCK {
        return Err(ParseError::Header(size));
    }
    let mut recording = Recording::default();
    let mut whole: Vec<(u64, &[u8])> = Vec::new();
    let mut tables: Vec<(u64, Fragment)> = Vec::new();
    let mut seen = 0;
    for block in bytes.chunks(BLOCK).skip(1) {
        // Places that were never used are holes: zeros.
        if block.len() < BLOCK_HEAD || word(block, 0) == 0 {
            continue;
        }
        seen += 1;
        match content(block) {
            Some((KIND_EVENTS, number, payload)) => whole.push((number, payload)),
            Some((KIND_TABLE, number, payload)) => match serde_json::from_slice(payload) {
                Ok(fragment) => tables.push((number, fragment)),
                // A later version's.
                Err(_) => recording.damaged += 1,
            },
            Some(_) => {}
            None => recording.damaged += 1,
        }
    }
    if whole.is_empty() && tables.is_empty() {
        return Err(ParseError::Empty(seen));
    }
    whole.sort_by_key(|(number, _)| *number);
    whole.dedup_by_key(|(number, _)| *number);
    if let (Some((first, _)), Some((last, _))) = (whole.first(), whole.last()) {
        recording.missing = (last - first).saturating_sub(whole.len() as u64 - 1);
    }
    for (_, payload) in whole {
        let events = payload.chunks_exact(EVENT_BYTES);
        recording.events.extend(events.filter_map(|bytes| Event::from_bytes(bytes.try_into().ok()?)));
    }
    // Events of different pCPUs can overtake one another on their way.
    recording.events.sort_by_key(|event| event.ns);
    tables.sort_by_key(|(number, _)| *number);
    for (_, fragment) in tables {
        recording.take(fragment);
    }
    Ok(recording)
}

impl Recording {
    fn take(&mut self, fragment: Fragment) {
        match fragment {
            Fragment::Host(host) => {
                self.host = host;
                let host = &mut self.host;
                let texts = [&mut host.version, &mut host.kernel, &mut host.arch];
                texts.into_iter().chain(&mut host.unseen).for_each(printable);
            }
            Fragment::Vms(mut vms) => {
                vms.iter_mut().for_each(|vm| printable(&mut vm.name));
                self.vms.extend(vms);
            }
            Fragment::Names(names) => self.names.extend(names.into_iter().map(|Name(tid, tgid, mut name)| {
                printable(&mut name);
                (tid, (tgid, name))
            })),
        }
    }
}

/// Every process chooses the names of its threads, and reports show them to root's terminal: no escape sequences.
fn printable(text: &mut String) {
    let odd = |c| !entrain_system::is_plain(c);
    if text.contains(odd) {
        *text = text.replace(odd, "\u{fffd}");
    }
}

/// Kind, number and content of a block; `None` when it is not whole.
fn content(block: &[u8]) -> Option<(u32, u64, &[u8])> {
    let (head, rest) = block.split_at_checked(BLOCK_HEAD)?;
    let payload = rest.get(..word(head, 16) as usize)?;
    let good = word(head, 0) == BLOCK_MAGIC && word(head, 28) == checksum(head, payload);
    good.then(|| (word(head, 4), u64::from(word(head, 8)) | u64::from(word(head, 12)) << 32, payload))
}

/// A little-endian word; the caller has checked that it is there.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::super::{TABLES, Writer, block, header};
    use super::*;
    use crate::event::Kind;
    use proptest::prelude::*;

    fn event(ns: u64) -> Event {
        Event { ns, kind: Kind::Spin, flags: 0, cpu: 1, tid: 2, other: 3, arg: 4 }
    }

    /// The bytes of a file of at most `mib` MiB with `count` events, and the writer's count of overwritten ones.
    fn file(mib: u64, count: u64) -> (Vec<u8>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        let mut writer = Writer::create(&path, mib << 20).unwrap();
        for ns in 0..count {
            writer.event(event(ns)).unwrap();
        }
        let vm = RecordedVm { name: "web".into(), pid: 9, chosen: true, vcpus: vec![(0, 2)], ..RecordedVm::default() };
        let names: Vec<Name> = (0..5000).map(|tid| Name(tid, 1, format!("thread{tid}"))).collect();
        writer.tables(&Host { pcpus: 4, ..Host::default() }, vec![vm], names).unwrap();
        let overwritten = writer.overwritten();
        writer.finish().unwrap();
        (std::fs::read(path).unwrap(), overwritten)
    }

    #[test]
    fn what_was_written_is_read() {
        let (bytes, overwritten) = file(4, 5000);
        let recording = parse(&bytes).unwrap();
        assert_eq!((recording.events.len(), overwritten, recording.damaged), (5000, 0, 0));
        assert_eq!((recording.host.pcpus, recording.vms.len(), recording.names.len()), (4, 1, 5000));
        assert_eq!(recording.events[4321], event(4321));
        assert_eq!(recording.host.unnamed, 0);
    }

    #[test]
    fn a_whole_recording_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        let recording = Recording {
            host: Host { pcpus: 4, complete: true, ..Host::default() },
            vms: vec![RecordedVm { name: "web".into(), pid: 9, chosen: true, vcpus: vec![(0, 2)], counter: None }],
            names: [(2, (1, "CPU 0/KVM".to_owned()))].into(),
            events: (0..50_000).map(event).collect(),
            ..Recording::default()
        };
        super::super::write(&path, &recording).unwrap();
        assert_eq!(parse(&std::fs::read(&path).unwrap()).unwrap(), recording);
    }

    #[test]
    fn long_names_fill_the_tables_and_those_without_room_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        let mut writer = Writer::create(&path, 2 << 20).unwrap();
        let names = (4_000_000..4_026_000).map(|tid| Name(tid, tid, "\"".repeat(15))).collect();
        writer.tables(&Host { unnamed: 1, ..Host::default() }, vec![], names).unwrap();
        writer.finish().unwrap();
        let recording = parse(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!((recording.damaged, recording.names.len() as u64 + recording.host.unnamed), (0, 26_001));
        assert!(recording.names.len() > 17_000, "{}", recording.names.len());
    }

    #[test]
    fn two_recorders_do_not_write_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        let mut first = Writer::create(&path, 2 << 20).unwrap();
        first.event(event(1)).unwrap();
        assert!(Writer::create(&path, 2 << 20).err().unwrap().to_string().contains("another recorder"));
        first.flush().unwrap();
        // A recorder that was killed leaves its file; the next one begins it anew.
        drop(first);
        Writer::create(&path, 2 << 20).unwrap().finish().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), header());
    }

    #[test]
    fn the_newest_events_stay_and_the_size_is_kept() {
        let (bytes, overwritten) = file(2, 100_000);
        assert!(bytes.len() <= 2 << 20);
        let recording = parse(&bytes).unwrap();
        assert_eq!(recording.events.last().unwrap().ns, 99_999);
        assert_eq!(recording.events.len() as u64 + overwritten, 100_000);
        assert_eq!(recording.missing, 0);
    }

    #[test]
    fn a_file_that_was_cut_or_damaged_gives_the_rest() {
        let (mut bytes, _) = file(4, 10_000);
        bytes.truncate(bytes.len() - 1000);
        let place = BLOCK * (1 + TABLES + 1) + 500;
        bytes[place] ^= 1;
        let recording = parse(&bytes).unwrap();
        assert_eq!(recording.damaged, 2);
        assert_eq!(recording.missing, 1);
        assert!(recording.events.len() > 4000);
    }

    #[test]
    fn errors_say_what_it_is() {
        assert_eq!(parse(b"<!doctype html> and more than thirty-two bytes"), Err(ParseError::Foreign));
        let (mut bytes, _) = file(2, 10);
        assert!(matches!(parse(&bytes[..BLOCK]), Err(ParseError::Empty(0))));
        bytes[8] = 9;
        assert!(parse(&bytes).unwrap_err().to_string().contains("format 9"));
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let mut bytes = header().to_vec();
        bytes.resize(BLOCK, 0);
        let name = Fragment::Names(vec![Name(7, 7, "\u{1b}]0;root\u{7}".into())]);
        bytes.extend(block(KIND_TABLE, 0, &serde_json::to_vec(&name).unwrap()));
        assert_eq!(parse(&bytes).unwrap().names[&7].1, "\u{fffd}]0;root\u{fffd}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..4000), forge in any::<bool>()) {
            if forge && bytes.len() > 40 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 1, 0]);
                let mut long = vec![0; BLOCK];
                long[..BLOCK_HEAD].copy_from_slice(&bytes[..BLOCK_HEAD]);
                long.extend(&bytes[BLOCK_HEAD..]);
                bytes = long;
            }
            let _ = parse(&bytes);
        }
    }
}
