//! What the kernel tells of the BPF programs that are loaded.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use crate::figures::ProgramStatus;

/// Whether the kernel counts the run time of BPF programs at all; it costs two clock readings a run.
pub(crate) fn counted() -> bool {
    fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim() == "1")
}

/// The kernel's figures of all programs of a loaded object.
pub(crate) fn programs(object: &libbpf_rs::Object) -> Vec<ProgramStatus> {
    let status = |(name, info): (String, libbpf_sys::bpf_prog_info)| ProgramStatus {
        name,
        runs: info.run_cnt,
        run_ns: info.run_time_ns,
        missed: info.recursion_misses,
    };
    infos(object).map(status).collect()
}

/// What the kernel tells of each program of a loaded object, with the program's name; one it tells nothing of is left
/// out.
pub(crate) fn infos(object: &libbpf_rs::Object) -> impl Iterator<Item = (String, libbpf_sys::bpf_prog_info)> + '_ {
    object.progs().filter_map(|program| {
        let fd = program.as_fd().as_raw_fd();
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut size = size_of_val(&info) as u32;
        // SAFETY: the kernel fills at most `size` bytes of `info`, which is plain data.
        let result = unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &mut size) };
        (result == 0).then(|| (program.name().to_string_lossy().into_owned(), info))
    })
}
