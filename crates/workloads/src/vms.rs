//! `vms`: many tiny virtual machines whose vCPUs do nothing but halt and be woken.
//!
//! What it is for: whatever watches the vCPUs of a host does some work for each of their switches, and it must not do more
//! of it because there are more VMs. Real guests are too big to have dozens of on an emulated host; these are real to KVM
//! all the same: a VM each, with a page of memory and a loop around the instruction that waits for an interrupt. A timer
//! per vCPU sends its thread a signal, which takes the thread out of its halt in KVM; it then enters the guest again.
//! `--rate` is that of all vCPUs together, so that more VMs don't mean more switches.

use crate::clock::now_ns;
use crate::output::{latencies, quantile_us};
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase, total};
use anyhow::{Context, Result, bail, ensure};
use entrain_workloads::catalog;
use hdrhistogram::Histogram;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::io;
use std::process::ExitCode;
use std::ptr;

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

/// Where the guests' memory begins, and its size: a page on both architectures.
const BASE: u64 = 0x1000;
const SIZE: usize = 4096;
/// Real-time signals begin at 32; the first few belong to the C library.
const SIGNAL: i32 = 40;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    ensure!(args.rate.is_finite() && (0.1..=1e6).contains(&args.rate), "--rate must lie between 0.1 and 1,000,000");
    ignore_wakes().context("cannot set up the signal that wakes vCPUs")?;
    let kvm = Kvm::new().context("cannot open /dev/kvm")?;
    let memory = Memory::new().context("cannot allocate the guests' page")?;
    let vms: Vec<_> = (0..args.vms).map(|_| vm(&kvm, args.vcpus, &memory)).collect::<Result<_>>()?;
    let period_ns = (1e9 * f64::from(args.vms * args.vcpus) / args.rate) as u64;
    let counters = Counter::many((args.vms * args.vcpus) as usize);
    let phase = Phase::default();
    let (measured, late) = std::thread::scope(|scope| -> Result<_> {
        let (_files, vcpus): (Vec<VmFd>, Vec<Vec<VcpuFd>>) = vms.into_iter().unzip();
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
    vcpu: &mut VcpuFd,
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
        match vcpu.run() {
            // Without an interrupt controller x86 hands a halt to the VMM: it is entered again, and its timer rings later.
            Ok(VcpuExit::Hlt | VcpuExit::Intr) => {}
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Ok(other) => bail!("a guest that only halts left for another reason: {other:?}"),
            Err(error) => return Err(error).context("KVM_RUN failed"),
        }
        counter.add(1);
        if phase.measuring() {
            let now = now_ns();
            late.saturating_record(((now.saturating_sub(start_ns)) % period_ns).max(1));
        }
    }
    Ok(late)
}

/// The page that all guests share: they only read it.
struct Memory(*mut u8);

impl Memory {
    fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let page = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), SIZE, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the code is shorter than the page, which is ours alone until a vCPU runs.
        unsafe { ptr::copy_nonoverlapping(arch::HALT_FOR_EVER.as_ptr(), page.cast::<u8>(), arch::HALT_FOR_EVER.len()) };
        Ok(Self(page.cast()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; the VMs that used it are gone when this is dropped, being declared after it.
        unsafe { libc::munmap(self.0.cast(), SIZE) };
    }
}

/// One virtual machine and its vCPUs. Whoever looks for VMs finds them by both files.
fn vm(kvm: &Kvm, vcpus: u32, memory: &Memory) -> Result<(VmFd, Vec<VcpuFd>)> {
    let vm = kvm.create_vm().context("cannot create a VM")?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: BASE,
        memory_size: SIZE as u64,
        userspace_addr: memory.0 as u64,
    };
    // SAFETY: the mapping outlives the VM (see Memory's drop), and the guest only reads it.
    unsafe { vm.set_user_memory_region(region) }.context("cannot give a VM its memory")?;
    arch::prepare(&vm)?;
    let vcpus = (0..vcpus).map(|id| arch::vcpu(&vm, id)).collect::<Result<_>>()?;
    Ok((vm, vcpus))
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::BASE;
    use anyhow::{Context, Result};
    use kvm_bindings::kvm_vcpu_init;
    use kvm_ioctls::{VcpuFd, VmFd};

    /// wfi; b .-4
    pub(super) const HALT_FOR_EVER: &[u8] = &[0x7f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17];
    /// KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE | word 64 of struct kvm_regs: the program counter.
    const PC: u64 = 0x6030_0000_0010_0040;

    pub(super) fn prepare(_vm: &VmFd) -> Result<()> {
        Ok(())
    }

    pub(super) fn vcpu(vm: &VmFd, id: u32) -> Result<VcpuFd> {
        let vcpu = vm.create_vcpu(u64::from(id)).context("cannot create a vCPU")?;
        let mut init = kvm_vcpu_init::default();
        vm.get_preferred_target(&mut init).context("cannot ask for the vCPUs' kind")?;
        vcpu.vcpu_init(&init).context("cannot initialize a vCPU")?;
        vcpu.set_one_reg(PC, &BASE.to_le_bytes()).context("cannot set a vCPU's program counter")?;
        Ok(vcpu)
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::BASE;
    use anyhow::{Context, Result};
    use kvm_bindings::{KVM_MP_STATE_RUNNABLE, kvm_mp_state, kvm_regs};
    use kvm_ioctls::{VcpuFd, VmFd};

    /// hlt; jmp .-3
    pub(super) const HALT_FOR_EVER: &[u8] = &[0xf4, 0xeb, 0xfd];

    /// With an interrupt controller in the kernel a halt stays there.
    pub(super) fn prepare(vm: &VmFd) -> Result<()> {
        // Where Intel keeps a page for real mode: above the guests' memory, below 4 GiB.
        vm.set_tss_address(0xfffb_d000).context("cannot set the address of the task state segment")?;
        vm.create_irq_chip().context("cannot create an interrupt controller")
    }

    pub(super) fn vcpu(vm: &VmFd, id: u32) -> Result<VcpuFd> {
        let vcpu = vm.create_vcpu(u64::from(id)).context("cannot create a vCPU")?;
        let mut segments = vcpu.get_sregs().context("cannot read a vCPU's segments")?;
        segments.cs.base = 0;
        segments.cs.selector = 0;
        vcpu.set_sregs(&segments).context("cannot set a vCPU's segments")?;
        // Bit 1 of the flags is always set; interrupts stay off, so that nothing but the host wakes it.
        let registers = kvm_regs { rip: BASE, rflags: 2, ..Default::default() };
        vcpu.set_regs(&registers).context("cannot set a vCPU's registers")?;
        // All but the first would wait for the first to start them.
        vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE }).context("cannot start a vCPU")?;
        Ok(vcpu)
    }
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
