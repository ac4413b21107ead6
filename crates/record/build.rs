//! Compiles the BPF programs of `entrain record`.

fn main() {
    // The daemon's table of vCPUs, which the programs read when there is a daemon.
    println!("cargo:rerun-if-changed=../host/src/bpf/interface.h");
    let exchanged = ["record_event", "record_kind", "record_flag", "record_name", "record_target"];
    entrain_bpf_build::Skeleton::of("record").plain(&exchanged).build();
}
