//! Compiles the BPF programs of `entrain isolate watch`.

fn main() {
    let exchanged = ["watch_key", "watch_kind", "watch_total", "watch_event", "watch_lost"];
    entrain_bpf_build::Skeleton::of("watch").plain(&exchanged).build();
}
