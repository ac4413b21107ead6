//! Tests of the lab itself: does it work time after time, and does it end well when what it stands on breaks?
pub mod reliability;
pub mod selftest;
