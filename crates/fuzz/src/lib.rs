//! Fuzz targets: one for every parser of bytes that a guest, a VMM or a user chooses. See docs/fuzzing.md.
//!
//! Each is a function of bytes that panics when something is wrong. The binary gives them to libFuzzer; the test
//! `corpus` runs them over the kept corpus with an ordinary build.

mod frames;
mod memory;
mod names;
mod page;
mod policy;
mod recording;
mod text;

/// A function of a fuzzer's bytes.
pub type Target = fn(&[u8]);

/// All targets by name, which is also their folder in `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("classes", text::classes),
    ("experiment", text::experiment),
    ("frames", frames::run),
    ("memory", memory::run),
    ("names", names::run),
    ("page", page::run),
    ("policy", policy::run),
    ("recording", recording::run),
    ("status", text::status),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

pub use memory::seed as memory_seed;
pub use page::seed as page_seed;
pub use recording::seed as recording_seed;
