//! Compiles the BPF program that slows CPUs down.

fn main() {
    entrain_bpf_build::skeleton("slow");
}
