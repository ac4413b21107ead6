//! The lab's serial protocol: a guest under test may write anything to its port, and loads print what the lab reads.

use entrain_lab_agent::frame::{Decoder, Frame, LONGEST};
use entrain_lab_agent::message::{Event, Request};
use entrain_workloads::wire::Line;

pub(crate) fn run(data: &[u8]) {
    let whole = frames(data, usize::MAX);
    assert_eq!(whole, frames(data, 7), "a frame does not depend on how the bytes arrive");
    for frame in &whole {
        assert!(frame.body.len() <= LONGEST);
        if let Ok(event) = postcard::from_bytes::<Event>(&frame.body) {
            let again = postcard::to_stdvec(&event).expect("plain data");
            assert_eq!(postcard::from_bytes::<Event>(&again).ok(), Some(event));
        }
        let _ = postcard::from_bytes::<Request>(&frame.body);
    }
    // The bytes as bodies, too: the checksum keeps a fuzzer from most of them.
    let _ = postcard::from_bytes::<Event>(data);
    let _ = postcard::from_bytes::<Request>(data);
    for line in String::from_utf8_lossy(data).lines() {
        let _ = serde_json::from_str::<Line>(line);
    }
    // A whole frame after whatever came is found, once as much has followed as a broken head could claim.
    let last = Frame { party: 1, body: data.to_vec() };
    let mut decoder = Decoder::default();
    decoder.push(&last.encode());
    assert_eq!(decoder.next_frame(), Some(last));
}

fn frames(data: &[u8], piece: usize) -> Vec<Frame> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    for piece in data.chunks(piece.min(data.len().max(1))) {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame() {
            found.push(frame);
        }
    }
    found
}
