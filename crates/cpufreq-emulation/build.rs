//! Compiles the BPF programs: what slows the CPUs down, what records where threads ran, and what makes exits.

fn main() {
    entrain_bpf_build::skeleton("slow");
    entrain_bpf_build::skeleton("exits");
    entrain_bpf_build::Skeleton::of("record").plain(&["record_event", "record_kind"]).build();
}
