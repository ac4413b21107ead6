//! Compiles the BPF programs: what slows the CPUs down, and what records where threads ran.

fn main() {
    entrain_bpf_build::skeleton("slow");
    entrain_bpf_build::Skeleton::of("record").plain(&["record_event", "record_kind"]).build();
}
