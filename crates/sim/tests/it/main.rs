//! One program for all of the crate's integration tests: each would link the whole crate again, some 25 MB on disk.

mod attach;
mod bandwidth;
mod basics;
mod caches;
mod changes;
mod eevdf;
mod faults;
mod fleet;
mod growth;
mod guest;
mod host_cost;
mod hotplug;
mod invariants;
mod kicks;
mod peers;
mod processes;
mod races;
mod rcu;
mod replay;
mod search;
mod shares;
mod shares_full;
mod sleeping;
mod timers;
mod trace;
mod yields;
