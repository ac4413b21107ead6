//! `vms`: many tiny virtual machines whose vCPUs do nothing but halt and be woken.
//!
//! What it is for: whatever watches the vCPUs of a host does some work for each of their switches, and it must not do more
//! of it because there are more VMs. Real guests are too big to have dozens of on an emulated host; these are real to KVM
//! all the same: a VM each, with a page of memory and a loop around the instruction that waits for an interrupt. A timer
//! per vCPU sends its thread a signal, which takes the thread out of its halt in KVM; it then enters the guest again.
//! `--rate` is that of all vCPUs together, so that more VMs don't mean more switches.

use crate::clock::now_ns;
use crate::kvm::{Kvm, MEMORY_AT, Vcpu, Vm};
use crate::output::{latencies, quantile_us};
use crate::pages::Pages;
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase, total};
use anyhow::{Context, Result, ensure};
use entrain_workloads::catalog;
use hdrhistogram::Histogram;
use std::io;
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

/// On a KVM host: many tiny virtual machines whose vCPUs halt and are woken
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Virtual machines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512), value_name = "N")]
    vms: u32,
    /// vCPUs of each
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    vcpus: u32,
    /// Wake-ups a second, all vCPUs together
    #[arg(long, default_value_t = 500.0, value_name = "PER_SECOND")]
    rate: f64,
}

/// wfi; b .-4
#[cfg(target_arch = "aarch64")]
pub(crate) const HALT_FOR_EVER: &[u8] = &[0x7f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17];
/// hlt; jmp .-3
#[cfg(target_arch = "x86_64")]
pub(crate) const HALT_FOR_EVER: &[u8] = &[0xf4, 0xeb, 0xfd];
/// Real-time signals begin at 32; the first few belong to the C library.
const SIGNAL: i32 = 40;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    ensure!(args.rate.is_finite() && (0.1..=1e6).contains(&args.rate), "--rate must lie between 0.1 and 1,000,000");
    ignore_wakes().context("cannot set up the signal that wakes vCPUs")?;
    let kvm = Kvm::open().context("cannot open /dev/kvm")?;
    let memory = halting().context("cannot allocate the guests' page")?;
    let vms: Vec<_> = (0..args.vms).map(|_| vm(&kvm, args.vcpus, &memory)).collect::<Result<_>>()?;
    let period_ns = (1e9 * f64::from(args.vms * args.vcpus) / args.rate) as u64;
    let counters = Counter::many((args.vms * args.vcpus) as usize);
    let phase = Phase::default();
    let (measured, late) = std::thread::scope(|scope| -> Result<_> {
        let (_files, vcpus): (Vec<Vm>, Vec<Vec<Vcpu>>) = vms.into_iter().unzip();
        let threads: Vec<_> = vcpus
            .into_iter()
            .flatten()
            .zip(&counters)
            .enumerate()
            .map(|(index, (mut vcpu, counter))| {
                let phase = &phase;
                // Spread over the period, so that they are not all woken at once.
                let first_ns = period_ns * index as u64 / u64::from(args.vms * args.vcpus);
                std::thread::Builder::new()
                    .name(format!("CPU {index}/KVM"))
                    .spawn_scoped(scope, move || halt_and_wake(&mut vcpu, phase, counter, first_ns, period_ns))
                    .context("cannot start a vCPU's thread")
            })
            .collect::<Result<_>>()
            // Those that were started wait for the start, and the scope for them.
            .inspect_err(|_| phase.stop())?;
        let measured = session.measure(&phase, || Counter::values(&counters), |_, _| Ok(()))?;
        let mut late = latencies();
        for thread in threads {
            late.add(thread.join().expect("no vCPU panics")?)?;
        }
        Ok((measured, late))
    })?;
    session.out.metric(&catalog::VCPU_WAKES, total(&measured.before, &measured.after) as f64 / measured.seconds)?;
    if !late.is_empty() {
        session.out.metric(&catalog::VCPU_LATE_P99, quantile_us(&late, 0.99))?;
    }
    session.out.end(measured.reason, measured.seconds)?;
    Ok(ExitCode::SUCCESS)
}

/// One vCPU's thread: into the guest, which halts, and out of it when the timer's signal comes; how late it came, ns.
fn halt_and_wake(
    vcpu: &mut Vcpu,
    phase: &Phase,
    counter: &Counter,
    first_ns: u64,
    period_ns: u64,
) -> Result<Histogram<u64>> {
    let mut late = latencies();
    if !phase.wait_start() {
        return Ok(late);
    }
    let start_ns = now_ns() + first_ns;
    let _timer = Timer::start(start_ns, period_ns).context("cannot start a vCPU's timer")?;
    while phase.running() {
        // A halt that came out to us is entered again, and the timer rings later.
        vcpu.run().context("KVM_RUN failed")?;
        counter.add(1);
        if phase.measuring() {
            let now = now_ns();
            late.saturating_record(((now.saturating_sub(start_ns)) % period_ns).max(1));
        }
    }
    Ok(late)
}

/// The page that all guests share: they only read it.
pub(crate) fn halting() -> io::Result<Pages> {
    let pages = Pages::new(1)?;
    let mut word = [0; 8];
    word[..HALT_FOR_EVER.len()].copy_from_slice(HALT_FOR_EVER);
    pages.word(0, 0).store(u64::from_ne_bytes(word), Relaxed);
    Ok(pages)
}

/// One virtual machine and its vCPUs. Whoever looks for VMs finds them by both files.
pub(crate) fn vm(kvm: &Kvm, vcpus: u32, memory: &Pages) -> Result<(Vm, Vec<Vcpu>)> {
    let vm = kvm.create_vm(MEMORY_AT, memory).context("cannot create a VM")?;
    let vcpus: io::Result<_> = (0..vcpus).map(|id| vm.create_vcpu(id, MEMORY_AT)).collect();
    Ok((vm, vcpus.context("cannot create a vCPU")?))
}

/// A handler that does nothing: the signal interrupts KVM_RUN, and that is all it is for.
fn ignore_wakes() -> io::Result<()> {
    extern "C" fn nothing(_signal: i32) {}
    let handler: extern "C" fn(i32) = nothing;
    // SAFETY: an all-zero sigaction is a value; the handler touches nothing, so it may run at any point.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        libc::sigaction(SIGNAL, &action, ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A timer that sends the calling thread [`SIGNAL`] for as long as it lives.
struct Timer(libc::timer_t);

impl Timer {
    fn start(first_ns: u64, period_ns: u64) -> io::Result<Self> {
        let time = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
        let setting = libc::itimerspec { it_interval: time(period_ns), it_value: time(first_ns) };
        // SAFETY: an all-zero sigevent is a value; all pointers are to values of our own.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            let timer = Self(timer);
            match libc::timer_settime(timer.0, libc::TIMER_ABSTIME, &setting, ptr::null_mut()) {
                0 => Ok(timer),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer was created by `start` and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
