//! Compiles the host's BPF programs.

use entrain_bpf_build::Skeleton;

fn main() {
    Skeleton::of("discover")
        .plain(&["entrain_found", "entrain_found_kind", "entrain_list_args", "entrain_look_args"])
        .build();
    Skeleton::of("observe")
        .plain(&["entrain_vcpu", "entrain_vm", "entrain_slot", "entrain_pcpu"])
        .plain(&["entrain_event", "entrain_event_kind", "entrain_wait", "entrain_wait_key", "entrain_wait_cause"])
        .plain(&["entrain_track_args", "entrain_link_args", "entrain_link_op"])
        .plain(&["entrain_tick_args", "entrain_selftest_args"])
        .build();
    Skeleton::of("watch").build();
    Skeleton::of("sched")
        .plain(&["sched_class", "sched_stats", "sched_public", "sched_arrange_args"])
        .plain(&["sched_perf_cpu", "entrain_util", "entrain_perf_level"])
        .build();
}
