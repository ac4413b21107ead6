//! Where the bytes of a recording enter, as the fuzz targets of crates/fuzz reach it: all that `entrain report` does with a
//! file, and what must hold of it as assertions.

use crate::analysis::Analysis;
use crate::event::EVENT_BYTES;
use crate::file::{self, BLOCK, BLOCK_HEAD, parse};
use crate::report;

/// Puts a file together of blocks (kind, number, content), each with the right checksum, which no fuzzer would guess.
pub fn file<'a>(blocks: impl Iterator<Item = (u32, u64, &'a [u8])>) -> Vec<u8> {
    let mut bytes = file::header().to_vec();
    for (kind, number, content) in blocks {
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes.extend(file::block(kind, number, &content[..content.len().min(BLOCK - BLOCK_HEAD)]));
    }
    bytes
}

/// A file's bytes, read, analysed and shown in every form. Returns how many vCPUs it tells of.
pub fn recording(bytes: &[u8]) -> usize {
    let recording = match parse(bytes) {
        Ok(recording) => recording,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1, "an error is one line");
            return 0;
        }
    };
    assert!(recording.events.len() * EVENT_BYTES <= bytes.len(), "memory in proportion to the file");
    assert!(recording.events.is_sorted_by_key(|event| event.ns));
    let analysis = Analysis::of(&recording);
    let vcpus = || analysis.vms.iter().flat_map(|vm| &vm.vcpus);
    for vcpu in vcpus() {
        assert_eq!(vcpu.times.total(), analysis.span_ns, "each moment is in one state");
        assert!(vcpu.segments.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
    let text = report::text(&analysis);
    assert!(
        !text.contains(|c: char| !entrain_system::is_plain(c) && c != '\n'),
        "nothing in a name reaches the terminal as a command"
    );
    let page = report::html(&analysis);
    assert!(["<script", "<img", "<a "].iter().all(|tag| !page.contains(tag)), "no name becomes markup");
    let mut trace = Vec::new();
    report::perfetto_text(&analysis, &mut trace).expect("memory takes all");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(trace["traceEvents"].is_array());
    serde_json::to_string(&analysis).expect("every figure has a form in JSON");
    vcpus().count()
}
