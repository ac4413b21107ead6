//! Compiles the BPF programs of `entrain record`.

fn main() {
    // The daemon's table of vCPUs, which the programs read when there is a daemon.
    println!("cargo:rerun-if-changed=../host/src/bpf/interface.h");
    entrain_bpf_build::skeleton("record");
}
