//! Interruptions made on purpose, on the running kernel: each must be found, with its cause and sender.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use entrain_system::Root;
use rustix::thread::{CpuSet as KernelSet, sched_setaffinity};

use super::interface::Kind;
use super::report::Row;
use super::{Watch, WatchArgs};

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn pin(cpu: u32) {
    let mut set = KernelSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).expect("the CPU is online");
}

fn membarrier(command: i32) {
    // SAFETY: membarrier touches no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A thread that holds the CPU against all ordinary tasks until `end`.
fn hold(cpu: u32, end: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let end = Arc::clone(end);
    std::thread::spawn(move || {
        pin(cpu);
        // SAFETY: all zeroes is a value of this struct of numbers.
        let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
        param.sched_priority = 1;
        // SAFETY: the struct outlives the call.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) }, 0);
        while !end.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
}

#[test]
#[ignore = "needs root, BTF and two CPUs: cargo test -p entrain-isolate -- --ignored"]
fn every_injected_interruption_is_attributed() {
    let cpu = Root::live().online_cpus().unwrap().last().expect("a CPU");
    assert!(cpu > 0, "two CPUs are needed");
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED);
    let args = WatchArgs {
        cpus: Some([cpu].into_iter().collect()),
        pid: Vec::new(),
        seconds: None,
        once: true,
        json: false,
        html: None,
        over: None,
        keep: 1,
    };
    let mut watch = Watch::start(&args).unwrap();
    pin(0);
    let end = Arc::new(AtomicBool::new(false));
    let holder = hold(cpu, &end);
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..20 {
        membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        std::thread::sleep(Duration::from_millis(2));
    }
    end.store(true, Ordering::Relaxed);
    holder.join().unwrap();
    for _ in 0..10 {
        assert!(Command::new("cat").arg("/proc/sys/vm/stat_refresh").status().unwrap().success());
    }
    watch.programs.stop();
    watch.drain().unwrap();
    let report = watch.report();
    let rows = |kind: Kind, cause: &str| -> Vec<&Row> {
        report.rows.iter().filter(|row| row.kind == kind && row.cause.starts_with(cause)).collect()
    };

    let work = rows(Kind::Work, "refresh_vm_stats");
    let of_cat: Vec<_> = work.iter().filter(|row| row.sender == "cat").collect();
    assert_eq!(of_cat.iter().map(|row| row.count).sum::<u64>(), 10, "{work:#?}");
    assert!(of_cat[0].stack.iter().any(|frame| frame == "vmstat_refresh"), "{work:#?}");
    assert!(of_cat[0].advice.remedy.is_some());

    let calls = rows(Kind::Call, "ipi_mb");
    let mine: Vec<_> = calls.iter().filter(|row| row.syscall.as_deref() == Some("membarrier")).collect();
    let count: u64 = mine.iter().filter(|row| row.pid == std::process::id()).map(|row| row.count).sum();
    assert_eq!(count, 20, "{calls:#?}");
}
