//! One program for all of the crate's integration tests: each would link the whole crate again, some 25 MB on disk.

mod balance;
mod bandwidth;
mod energy;
mod entitle;
mod entitle_tree;
mod guest;
mod host;
mod perf;
mod tick;
