//! Entrain's own measured loads: wake, lock, shootdown, tick and spin.
