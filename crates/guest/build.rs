//! Compiles the BPF programs of the guest.

use entrain_bpf_build::Skeleton;

fn main() {
    // Contexts of programs that the agent calls.
    Skeleton::of("register").plain(&["entrain_survey", "entrain_peek", "entrain_depth"]).build();
    Skeleton::of("selftest").plain(&["entrain_hammer"]).build();
    Skeleton::of("spins").build();
    Skeleton::of("loads").build();
    Skeleton::of("sched").derive("sched_stats", "serde::Serialize, PartialEq, Eq").build();
    // The program is position-independent and static: packed, its relocations take 2 KiB instead of 134.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
