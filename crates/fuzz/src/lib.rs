//! Fuzz targets: one for every parser of bytes that a guest, a VMM or a user chooses. See docs/fuzzing.md.
//!
//! Each is a function of bytes that panics when something is wrong. The binary gives them to libFuzzer; the test
//! `corpus` runs them over the kept corpus with an ordinary build.

pub mod cost;
mod fleet;
mod frames;
mod memory;
mod names;
mod page;
mod policy;
mod recording;
mod text;

use cost::Bound;

/// A parser, and what an input may cost.
pub struct Target {
    /// Its name, which is also its folder in `corpus/`.
    pub name: &'static str,
    run: fn(&[u8]),
    /// Of memory, by the input's length.
    pub bound: Bound,
}

impl Target {
    /// Runs it; panics when something is wrong, or costs too much.
    pub fn run(&self, data: &[u8]) -> cost::Cost {
        let cost = cost::measure(|| (self.run)(data));
        self.bound.hold(self.name, data.len(), cost);
        cost
    }
}

/// Lines, words, values of text: some allocations and some dozen bytes held for each byte, and what any input takes.
const TEXT: Bound = Bound { allocations: (2_000, 64), peak: (256 << 10, 1 << 10) };
/// Bytes that choose what is done with a fixed set of pages.
const PAGES: Bound = Bound { allocations: (20_000, 0), peak: (1 << 20, 0) };

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "classes", run: text::classes, bound: TEXT },
    Target { name: "experiment", run: text::experiment, bound: TEXT },
    Target { name: "fleet", run: fleet::run, bound: PAGES },
    Target { name: "frames", run: frames::run, bound: TEXT },
    Target { name: "memory", run: memory::run, bound: PAGES },
    Target { name: "names", run: names::run, bound: TEXT },
    Target { name: "page", run: page::run, bound: PAGES },
    Target { name: "policy", run: policy::run, bound: PAGES },
    // Four bytes make a block of 64 KiB of a file, which the target composes itself.
    Target {
        name: "recording",
        run: recording::run,
        bound: Bound { allocations: (20_000, 256), peak: (4 << 20, 128 << 10) },
    },
    Target { name: "status", run: text::status, bound: TEXT },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

pub use fleet::seed as fleet_seed;
pub use memory::seed as memory_seed;
pub use page::seed as page_seed;
pub use recording::seed as recording_seed;
