//! A file of `entrain record`, which may come from another machine: the bytes as they are, and as blocks of a file.
//!
//! A block in the fuzzer's bytes is: its kind (1 table, 2 events), its number (the upper four bits set: times 2^56), two
//! bytes of length (little-endian), its content. A block of a file has 64 KiB and a checksum, which is too much to guess.

use entrain_record::untrusted::{file, recording};

pub(crate) fn run(data: &[u8]) {
    recording(data);
    recording(&compose(data));
}

fn compose(data: &[u8]) -> Vec<u8> {
    let mut rest = data;
    file(std::iter::from_fn(|| {
        let (&[kind, number, low, high], content) = rest.split_first_chunk()?;
        let (content, after) = content.split_at(usize::from(u16::from_le_bytes([low, high])).min(content.len()));
        rest = after;
        let number = u64::from(number);
        Some((u32::from(kind), if number >= 0xf0 { number << 56 } else { number }, content))
    }))
}

/// How many vCPUs the kept recording of two VMs tells of: otherwise the target would only test refusals.
pub fn seed() -> usize {
    recording(&compose(include_bytes!("../corpus/recording/two-vms")))
}
