//! The host's scheduler alone, without the daemon: for work on the scheduler itself.
//!
//! `schedule [NAME=VALUE]…` loads it with these tunables, prints a line of JSON per second with the host's counters,
//! and ends on SIGTERM, SIGINT or when the kernel ends the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use entrain_host::schedule::{Options, Scheduler};

fn main() -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let tune = args.iter();
    let tune = tune.filter_map(|arg| arg.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))).collect();
    let scheduler = Scheduler::start(&Options { tune, ..Options::default() })?;
    println!("{}", serde_json::json!({ "started": true, "complexity": scheduler.complexity() }));
    let mut ticks = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        ticks += 1;
        if let Some(ended) = scheduler.ended() {
            anyhow::bail!("the scheduler ended ({}): {}", ended.kind, ended.why);
        }
        if ticks % 10 == 0 {
            println!("{}", serde_json::to_string(&scheduler.total())?);
        }
    }
    println!("{}", serde_json::to_string(&scheduler.total())?);
    Ok(())
}
