//! Compiles the BPF programs of the guest.

fn main() {
    entrain_bpf_build::skeleton("register");
    entrain_bpf_build::skeleton("sched");
    entrain_bpf_build::skeleton("selftest");
    // The program is position-independent and static: packed, its relocations take 2 KiB instead of 134.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
