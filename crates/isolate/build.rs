//! Compiles the BPF programs of `entrain isolate watch`.

fn main() {
    entrain_bpf_build::skeleton("watch");
}
