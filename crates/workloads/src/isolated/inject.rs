//! `isolated inject`: interruptions of one kind, made on purpose, a known number of times, by a thread with a known name.

use super::{become_fifo, check, name_thread};
use crate::cpu;
use crate::membarrier;
use crate::output::Output;
use anyhow::{Context, Result};
use entrain_system::Root;
use entrain_workloads::catalog::{Better, Metric};
use entrain_workloads::probe::schedstat;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Interrupts a CPU in one way, so many times
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    kind: Kind,
    /// The CPU to interrupt
    #[arg(long)]
    cpu: usize,
    /// Another isolated CPU: `kthread` moves a task from one to the other and back
    #[arg(long)]
    other: usize,
    /// The CPU that interrupts it
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// How often
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// The kinds, and what the one who causes them is called.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A work item (vm.stat_refresh), sent by inject-work
    Work,
    /// A function call IPI (membarrier), sent by inject-call
    Call,
    /// A reschedule IPI (a real-time task is woken), sent by inject-resched
    Resched,
    /// Another task, woken by inject-task
    Task,
    /// The migration thread, woken by inject-kthread
    Kthread,
}

static INJECTED: Metric =
    Metric { name: "injected", unit: "1", better: Better::Neither, about: "interruptions made, on both CPUs together" };

/// Time between two of them: the CPU is back at its own task by then.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) fn run(args: &Args) -> Result<()> {
    cpu::pin(args.from)?;
    let end = AtomicBool::new(false);
    let thread = AtomicI32::new(0);
    let injected = std::thread::scope(|scope| {
        // All but the work item need a task that runs there, in a process of this one's memory.
        scope.spawn(|| {
            let _ = name_thread("inject-victim");
            if cpu::pin(args.cpu).is_ok() {
                // SAFETY: takes no arguments and touches no memory of ours.
                thread.store(unsafe { libc::gettid() }, Ordering::Release);
            }
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(PAUSE * 10);
        let result = inject(args, &thread);
        end.store(true, Ordering::Relaxed);
        result
    })?;
    Output::new(args.json).metric(&INJECTED, f64::from(injected))?;
    Ok(())
}

fn inject(args: &Args, victim: &AtomicI32) -> Result<u32> {
    let victim = victim.load(Ordering::Acquire);
    anyhow::ensure!(victim != 0, "no task could be pinned to CPU {}", args.cpu);
    match args.kind {
        Kind::Work => {
            name_thread("inject-work")?;
            // One on each CPU.
            Ok(2 * each(args, || Ok(fs::write("/proc/sys/vm/stat_refresh", "1")?))?)
        }
        Kind::Call => {
            membarrier::register()?;
            name_thread("inject-call")?;
            each(args, || Ok(membarrier::interrupt()?))
        }
        Kind::Resched => wake(args, "inject-resched", Some(10)),
        Kind::Task => wake(args, "inject-task", None),
        Kind::Kthread => {
            let threads = [migration_thread(args.cpu)?, migration_thread(args.other)?];
            let told = threads.iter().all(|pid| times_run(*pid).is_some());
            anyhow::ensure!(told, "this kernel does not tell how often a task ran (/proc/PID/schedstat)");
            name_thread("inject-kthread")?;
            let mut made = 0;
            for _ in 0..args.times {
                for cpu in [args.other, args.cpu] {
                    // A task that something else keeps from running just then is moved without that thread.
                    let before = threads.map(times_run);
                    move_to(victim, cpu)?;
                    made += u32::from(threads.map(times_run) != before);
                }
            }
            Ok(made)
        }
    }
}

fn each(args: &Args, act: impl Fn() -> Result<()>) -> Result<u32> {
    for _ in 0..args.times {
        act()?;
        std::thread::sleep(PAUSE);
    }
    Ok(args.times)
}

/// Wakes a task on the CPU and waits until it has run.
fn wake(args: &Args, name: &str, fifo: Option<i32>) -> Result<u32> {
    let (ask, asked): (SyncSender<()>, Receiver<()>) = sync_channel(1);
    let (tell, told) = sync_channel::<i32>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || -> Result<()> {
            name_thread("inject-woken")?;
            cpu::pin(args.cpu)?;
            fifo.map(become_fifo).transpose()?;
            // SAFETY: takes no arguments and touches no memory of ours.
            let me = unsafe { libc::gettid() };
            tell.send(me)?;
            while asked.recv().is_ok() {
                tell.send(me)?;
            }
            Ok(())
        });
        let sleeper = told.recv().context("the task to be woken could not be set up")?;
        std::thread::sleep(PAUSE * 10);
        name_thread(name)?;
        let woken = each(args, || {
            // On a busy computer it may not have come that far; who is awake is not woken.
            while !sleeps(sleeper)? {
                std::thread::sleep(PAUSE);
            }
            ask.send(())?;
            told.recv().context("the task that is woken has ended").map(drop)
        });
        // The last wake-up, which ends it, is nobody's.
        name_thread("inject-end")?;
        drop(ask);
        woken
    })
}

/// Whether a thread of this process sleeps.
fn sleeps(thread: i32) -> Result<bool> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    // The name before the state stands in parentheses and may hold anything.
    Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S')))
}

/// The kernel thread that moves running tasks away from a CPU.
fn migration_thread(cpu: usize) -> Result<u32> {
    let name = format!("migration/{cpu}");
    let root = Root::live();
    let named = |pid: &u32| root.trimmed(format!("proc/{pid}/comm")).is_some_and(|comm| comm == name);
    let mut pids = root.list("proc").into_iter().filter_map(|name| name.parse().ok());
    pids.find(named).with_context(|| format!("there is no kernel thread {name}"))
}

/// How often a task has been given a CPU.
fn times_run(pid: u32) -> Option<u64> {
    schedstat(&Root::live(), &format!("proc/{pid}")).map(|[_, _, runs]| runs)
}

/// Moves a thread to a CPU, and waits until it is there.
fn move_to(thread: i32, cpu: usize) -> Result<()> {
    // SAFETY: cpu_set_t is plain data, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET checks its index against the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the size given is that of the set.
    check(unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &set) }.into(), "sched_setaffinity")?;
    std::thread::sleep(PAUSE);
    Ok(())
}
