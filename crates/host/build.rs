//! Compiles the host's BPF programs.

fn main() {
    entrain_bpf_build::skeleton("discover");
    entrain_bpf_build::skeleton("observe");
    entrain_bpf_build::skeleton("sched");
}
