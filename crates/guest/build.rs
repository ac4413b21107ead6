//! Compiles the BPF programs of the guest.

fn main() {
    entrain_bpf_build::skeleton("register");
    entrain_bpf_build::skeleton("sched");
    entrain_bpf_build::skeleton("selftest");
}
