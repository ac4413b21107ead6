//! `record`: where heavy threads ran, on a machine with big and small CPUs.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use entrain_bpf::{Error, Step};
use entrain_cpufreq_emulation::placement::{Kind, Record, Stretch, stretches};
use libbpf_rs::RingBufferBuilder;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::machine::Cpu;
use skeleton::types::{record_event, record_kind};

/// The skeleton that the build script makes of the BPF program.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/record.skel.rs"));
}

/// Between two looks at the buffer, which holds 32,768 events; each takes a CPU from those that are followed.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct Arguments {
    /// A thread to follow; may be repeated
    #[arg(long = "thread", value_name = "TID", required = true)]
    threads: Vec<u32>,
    /// How long, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    seconds: f64,
    /// Unbroken work of this length makes a thread heavy, in ms
    #[arg(long, default_value_t = 300, value_name = "MS")]
    heavy: u64,
    /// Time that a thread has to come to a big CPU before its share counts, in ms
    #[arg(long, default_value_t = 20, value_name = "MS")]
    grace: u64,
}

/// Follows the threads, then prints figures as JSON lines.
pub(crate) fn run(args: &Arguments, cpus: &[Cpu], stop: &Arc<AtomicBool>) -> Result<()> {
    let most = cpus.iter().map(|cpu| cpu.capacity).max().unwrap_or(0);
    let big: Vec<u32> = cpus.iter().filter(|cpu| cpu.capacity == most).map(|cpu| cpu.number).collect();
    ensure!(big.len() < cpus.len(), "all CPUs of this machine are equally big");
    let records = follow(args, stop)?;
    let found = stretches(&records, &big, args.heavy * 1_000_000, args.grace * 1_000_000);
    print(&found, args.grace * 1_000_000);
    Ok(())
}

fn follow(args: &Arguments, stop: &Arc<AtomicBool>) -> Result<Vec<Record>> {
    // The object lives as long as the process.
    let storage = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = skeleton::RecordSkelBuilder::default().open(storage).map_err(Error::at(Step::Open, "record"))?;
    let rodata = open.maps.rodata_data.as_deref_mut().context("the BPF program has no read-only data")?;
    ensure!(args.threads.len() <= rodata.threads.len(), "at most {} threads can be followed", rodata.threads.len());
    rodata.threads[..args.threads.len()].copy_from_slice(&args.threads);
    rodata.nr_threads = args.threads.len() as u32;
    let mut skel = open.load().map_err(Error::at(Step::Load, "record"))?;
    let records = RefCell::new(Vec::new());
    let mut builder = RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        records.borrow_mut().extend(parse(bytes));
        0
    };
    builder.add(&skel.maps.events, take).map_err(Error::at(Step::Run, "events"))?;
    let ring = builder.build().map_err(Error::at(Step::Run, "events"))?;
    let mut links = Vec::new();
    for prog in skel.object().progs_mut() {
        let name = prog.name().to_string_lossy().into_owned();
        links.push(prog.attach().map_err(Error::at(Step::Attach, &name))?);
    }
    println!("{{\"event\":\"start\"}}");
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        ring.consume().map_err(Error::at(Step::Run, "events"))?;
    }
    drop(links);
    ring.consume().map_err(Error::at(Step::Run, "events"))?;
    drop(ring);
    let lost = skel.maps.bss_data.as_deref_mut().map_or(0, |bss| bss.lost);
    ensure!(lost == 0, "{lost} switches did not fit into the buffer: the record has holes");
    let mut records = records.into_inner();
    records.sort_by_key(|record: &Record| record.at_ns);
    Ok(records)
}

/// `None` for what the BPF program does not tell.
fn parse(bytes: &[u8]) -> Option<Record> {
    let event: record_event = bytemuck::try_pod_read_unaligned(bytes).ok()?;
    let kind = match event.kind {
        record_kind::RECORD_RUNS => Kind::Runs,
        record_kind::RECORD_PREEMPTED => Kind::Preempted,
        record_kind::RECORD_SLEEPS => Kind::Sleeps,
        record_kind::RECORD_WAKES => Kind::Wakes,
        _ => return None,
    };
    Some(Record { at_ns: event.at_ns, slot: event.slot, cpu: event.cpu, kind })
}

fn print(found: &[Stretch], grace_ns: u64) {
    let figure = |name: &str, value: f64, unit: &str| {
        println!("{}", serde_json::json!({"metric": name, "value": value, "unit": unit}));
    };
    figure("stretches", found.len() as f64, "1");
    let counted: u64 = found.iter().map(|one| one.length_ns.saturating_sub(grace_ns)).sum();
    if counted == 0 {
        return;
    }
    let on_big: u64 = found.iter().map(|one| one.on_big_ns).sum();
    let mut until: Vec<u64> = found.iter().map(|one| one.until_big_ns).collect();
    until.sort_unstable();
    figure("heavy_on_big", 100.0 * on_big as f64 / counted as f64, "%");
    figure("until_big_p50", until[until.len() / 2] as f64 / 1e6, "ms");
    figure("until_big_max", until[until.len() - 1] as f64 / 1e6, "ms");
}
