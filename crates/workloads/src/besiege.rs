//! `besiege`: an unprivileged user's VM on a KVM host, made to mislead and to hold up whoever looks into it.
//!
//! A tiny virtual machine whose page of memory holds an offer of Entrain's channel, good in every word. While its vCPU
//! halts, another thread puts a second file in its place and back, again and again (`--swap`): a canary that this process
//! has open for reading only. Whoever writes to the page through the process's mappings at the wrong moment changes the
//! canary, which is compared at the end. Beside that: descriptors of the same VM by the hundred thousand, mappings,
//! vCPUs by the thousand, each in a thread of its own, vCPUs that ring, offers that are taken back and made anew, memory
//! slots that come and go, and memory that never comes.

mod hang;
mod replug;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use entrain_channel::page::{DOORBELL_NR, HeaderValues, MAGIC0, MAGIC1, PAGE_SIZE, Page, VERSION};
use entrain_channel::protocol::Guest;
use entrain_channel::word::Seed;
use entrain_workloads::catalog;

use crate::kvm::{Kvm, MEMORY_AT, Vcpu, Vm};
use crate::pages::Pages;
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase};
use crate::vms::{self, HALT_FOR_EVER, halting};

/// On a KVM host: a VM whose owner misleads and holds up whoever looks into it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Put a file that may only be read in the place of the VM's memory and back, again and again
    #[arg(long)]
    swap: bool,
    /// Descriptors of the same VM, beside its own
    #[arg(long, default_value_t = 0, value_name = "N")]
    descriptors: u32,
    /// Mappings beside those that a process has
    #[arg(long, default_value_t = 0, value_name = "N")]
    mappings: u32,
    /// vCPUs in further VMs of this process; each has run, and halts
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=16384), value_name = "N")]
    vcpus: u32,
    /// vCPUs in one further VM that ring the doorbell without a pause (aarch64)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=512), value_name = "N")]
    ring: u32,
    /// Take the offer back and make another, two hundred times a second
    #[arg(long, conflicts_with = "swap")]
    circle: bool,
    /// Plug memory slots in and out without a pause: RAM, and memory of a device
    #[arg(long)]
    replug: bool,
    /// MiB of further memory of the VM, none of it there
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    sparse: usize,
    /// MiB of further memory of the VM, all of it there
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    dense: usize,
    /// Have a memory slot and the command line on a file system (FUSE) that never answers; takes root
    #[arg(long)]
    hang: bool,
    /// Be this user once all files are open
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Makes the command line longer, and nothing else
    #[arg(hide = true)]
    padding: Vec<String>,
}

/// Where in the page the guest's code stands: in space that the channel leaves free.
const CODE: usize = 0x400;
/// vCPUs of each of the further VMs; KVM has had room for as many on all architectures.
const VCPUS_A_VM: u32 = 256;
/// A thread that drives a vCPU needs little.
const STACK: usize = 64 << 10;
/// Pages that never come, and where the VM has them.
const HANGING: usize = 1024;
const HANGING_AT: u64 = 1 << 36;
const SPARSE_AT: u64 = 1 << 37;
const DENSE_AT: u64 = 1 << 38;
/// Above those that are plugged in and out.
const HANGING_SLOT: u32 = replug::SLOTS + 1;
/// wfe; b .-4
const RING_FOR_EVER: &[u8] = &[0x5f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17];
/// A new offer is made after so many swaps.
const OFFER: u64 = 64;

/// The page of the VM's memory and what is put in its place.
struct Ground {
    at: usize,
    ram: File,
    canary: File,
    before: [u8; PAGE_SIZE],
}

impl Ground {
    fn new() -> Result<Self> {
        let (ram, canary) = (memfd("ram")?, memfd("canary")?);
        ram.set_len(PAGE_SIZE as u64)?;
        let before = std::array::from_fn(|i| (i * 31 + 7) as u8);
        std::io::Write::write_all(&mut &canary, &before)?;
        // Open for reading only, as another's file would be.
        let canary = File::open(format!("/proc/self/fd/{}", canary.as_raw_fd())).context("cannot open the canary")?;
        let mut ground = Self { at: 0, ram, canary, before };
        ground.at = ground.map(true)?;
        Ok(ground)
    }

    /// Puts the RAM or the canary in its place.
    fn map(&self, own: bool) -> io::Result<usize> {
        let (file, access) = match own {
            true => (&self.ram, libc::PROT_READ | libc::PROT_WRITE),
            false => (&self.canary, libc::PROT_READ),
        };
        let flags = libc::MAP_SHARED | if self.at == 0 { 0 } else { libc::MAP_FIXED };
        // SAFETY: a fresh place, or this ground's own, whose bytes are reached by atomic accesses only.
        let got = unsafe { libc::mmap(self.at as *mut _, PAGE_SIZE, access, flags, file.as_raw_fd(), 0) };
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }

    fn canary_changed(&self) -> Result<bool> {
        let mut now = [0; PAGE_SIZE];
        std::os::unix::fs::FileExt::read_exact_at(&self.canary, &mut now, 0).context("cannot read the canary")?;
        Ok(now != self.before)
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let ground = Ground::new()?;
    // SAFETY: a whole, aligned page that stays mapped; this pointer is used while the RAM is in its place.
    let page = unsafe { &*(ground.at as *const Page) };
    let mut guest = Guest::new(std::process::id());
    offer(page, &mut guest, 1);
    let code = ground.at + CODE;
    // SAFETY: inside the page, which no guest runs yet.
    unsafe { ptr::copy_nonoverlapping(HALT_FOR_EVER.as_ptr(), code as *mut u8, HALT_FOR_EVER.len()) };
    let kvm = Kvm::open().context("cannot open /dev/kvm")?;
    let descriptors = Descriptors::allow(args.descriptors);
    let hanging = args.hang.then(|| hang::Hanging::new(HANGING)).transpose()?;
    args.user.map_or(Ok(()), become_user)?;
    // Before there is a VM: whoever finds that looks for its name.
    hanging.as_ref().map_or(Ok(()), hang::Hanging::be_the_command_line)?;
    let vm = kvm.create_vm_at(MEMORY_AT, ground.at, PAGE_SIZE).context("cannot create a VM")?;
    let vcpu = vm.create_vcpu(0, MEMORY_AT + CODE as u64).context("cannot create a vCPU")?;
    let device = vcpu.shared();
    drive(vcpu)?;
    let halting = halting().context("cannot allocate the further VMs' page")?;
    let _vms = more_vcpus(&kvm, &halting, args.vcpus)?;
    let ringing = ringing().context("cannot allocate the ringing VM's page")?;
    let _ringing = more_bells(&kvm, &ringing, args.ring)?;
    let _descriptors = descriptors.open(vm.file());
    more_mappings(args.mappings)?;
    for (mib, slot, at, touch) in [(args.sparse, 0, SPARSE_AT, false), (args.dense, 1, DENSE_AT, true)] {
        if mib > 0 {
            let memory = more_memory(mib << 20, touch).context("cannot allocate the further memory")?;
            vm.set_slot(HANGING_SLOT + 1 + slot, at, memory, mib << 20).context("cannot plug in the further memory")?;
        }
    }
    if let Some(hanging) = &hanging {
        vm.set_slot(HANGING_SLOT, HANGING_AT, hanging.at, hanging.length).context("cannot plug in that memory")?;
    }

    let (phase, swaps, replugs) = (Phase::default(), Counter::many(1), Counter::many(1));
    let replugging = AtomicBool::new(args.replug);
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| {
            while phase.wait_start() && phase.running() && replugging.load(Relaxed) {
                match replug::circle(&vm, halting.address(0), device, halting.page_size()) {
                    Ok(()) => replugs[0].add(1),
                    Err(_) => replugging.store(false, Relaxed),
                }
            }
        });
        scope.spawn(|| {
            let mut count = 0;
            while phase.wait_start() && phase.running() {
                if args.swap && ground.map(false).and_then(|_| ground.map(true)).is_ok() {
                    count += 1;
                    swaps[0].add(1);
                    if count % OFFER == 0 {
                        offer(page, &mut guest, count + 1);
                    }
                } else {
                    if args.circle {
                        count += 1;
                        offer(page, &mut guest, count + 1);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        session.measure(&phase, || [&swaps, &replugs].map(|counter| Counter::values(counter)[0]), |_, _| Ok(()))
    })?;
    ensure!(!args.replug || replugging.load(Relaxed), "KVM refused a memory slot: {}", io::Error::last_os_error());
    let changed = ground.canary_changed()?;
    let rate = |of: usize| (measured.after[of] - measured.before[of]) as f64 / measured.seconds;
    session.out.metric(&catalog::SWAPS, rate(0))?;
    session.out.metric(&catalog::REPLUGS, rate(1) * f64::from(2 * replug::SLOTS))?;
    session.out.metric(&catalog::CANARY, f64::from(u8::from(changed)))?;
    session.out.end(measured.reason, measured.seconds)?;
    Ok(if changed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The offer of a guest with one vCPU, as an honest agent makes it.
fn offer(page: &Page, guest: &mut Guest, cookie: u64) {
    guest.force(page);
    guest.scrub(page);
    let header = HeaderValues {
        magic: [MAGIC0, MAGIC1],
        version: VERSION,
        nr_vcpus: 1,
        cookie,
        gpa: MEMORY_AT,
        boot_id: 1,
        vcpu_hwid: u32::MAX,
        ..HeaderValues::default()
    };
    page.directory[0].store(MEMORY_AT, Relaxed);
    guest.offer(page, Seed::from_random(cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15)), header);
}

fn memfd(name: &str) -> Result<File> {
    let name = std::ffi::CString::new(name).expect("no zero in it");
    // SAFETY: a name that ends with a zero; the result is a new descriptor.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("cannot make a file in memory");
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Lets a vCPU run in a thread of its own, which ends with the process: a halt has no other end here.
fn drive(mut vcpu: Vcpu) -> Result<()> {
    let run = move || {
        while vcpu.run_to_exit().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::Builder::new().stack_size(STACK).spawn(run).map(drop).context("cannot start a vCPU's thread")
}

/// VMs with `count` vCPUs in all, which read `memory`. All have begun to run.
fn more_vcpus(kvm: &Kvm, memory: &Pages, count: u32) -> Result<Vec<Vm>> {
    let mut vms = Vec::new();
    let mut left = count;
    while left > 0 {
        let (vm, vcpus) = vms::vm(kvm, left.min(VCPUS_A_VM), memory)?;
        left -= vcpus.len() as u32;
        vms.push(vm);
        vcpus.into_iter().try_for_each(drive)?;
    }
    Ok(vms)
}

/// The page of the vCPUs that ring: they name the page itself.
fn ringing() -> io::Result<Pages> {
    let pages = Pages::new(1)?;
    let mut word = [0; 8];
    word[..RING_FOR_EVER.len()].copy_from_slice(RING_FOR_EVER);
    pages.word(0, 0).store(u64::from_ne_bytes(word), Relaxed);
    Ok(pages)
}

/// A VM with `count` vCPUs that ring.
fn more_bells(kvm: &Kvm, memory: &Pages, count: u32) -> Result<Option<Vm>> {
    if count == 0 {
        return Ok(None);
    }
    let vm = kvm.create_vm(MEMORY_AT, memory).context("cannot create a VM")?;
    let registers = [DOORBELL_NR, MEMORY_AT, 1, MAGIC1, VERSION.into()];
    for id in 0..count {
        drive(vm.create_user_vcpu(id, MEMORY_AT, &registers).context("cannot create a vCPU that rings")?)?;
    }
    Ok(Some(vm))
}

/// From now on this process is that user's, as a VMM's of an unprivileged user is.
fn become_user(user: u32) -> Result<()> {
    // SAFETY: plain numbers; the C library has all threads of the process follow. The last call has /proc show it as any
    // other process of that user.
    let done = unsafe {
        libc::setgroups(0, ptr::null()) == 0
            && libc::setresgid(user, user, user) == 0
            && libc::setresuid(user, user, user) == 0
            && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
    };
    ensure!(done, "cannot become user {user}: {}", io::Error::last_os_error());
    Ok(())
}

/// So many descriptors of one file, or as many as the system lets a process have.
struct Descriptors(u32);

impl Descriptors {
    /// Raises the limit, for which there has to be the right still.
    fn allow(count: u32) -> Self {
        let limit = libc::rlimit { rlim_cur: u64::from(count) + 1024, rlim_max: u64::from(count) + 1024 };
        if count > 0 {
            // SAFETY: a valid struct that outlives the call. Without the right to raise it, it stays as it is.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        }
        Self(count)
    }

    fn open(self, file: &OwnedFd) -> Vec<OwnedFd> {
        (0..self.0).map_while(|_| file.try_clone().ok()).collect()
    }
}

/// Shared memory of no file, as a guest's is; each page has something in it if it is to be there. It stays mapped.
fn more_memory(length: usize, touch: bool) -> io::Result<usize> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    for page in (0..if touch { length } else { 0 }).step_by(PAGE_SIZE) {
        // SAFETY: inside the mapping above, which nobody else uses.
        unsafe { base.byte_add(page).cast::<u64>().write(page as u64 | 1) };
    }
    Ok(base as usize)
}

/// Mappings that the kernel cannot join: every second page may not be read.
fn more_mappings(count: u32) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let length = count as usize * PAGE_SIZE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).context("cannot map memory");
    }
    for page in (0..count as usize).step_by(2) {
        // SAFETY: inside the mapping above, which nobody uses. Where no more are allowed, there are enough.
        if unsafe { libc::mprotect(base.byte_add(page * PAGE_SIZE), PAGE_SIZE, libc::PROT_NONE) } != 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canary_is_read_only_and_the_ram_holds_an_offer() {
        let ground = Ground::new().expect("memory");
        // SAFETY: as in `run`.
        let page = unsafe { &*(ground.at as *const Page) };
        offer(page, &mut Guest::new(1), 7);
        assert_eq!(page.header.cookie.load(Relaxed), 7);
        assert!(
            entrain_channel::word::Link::from_raw(page.link.link.load(Relaxed))
                .is_some_and(|link| link.state == entrain_channel::word::LinkState::Offered)
        );
        assert_eq!(ground.map(false).expect("mapped"), ground.at);
        assert_ne!(page.header.cookie.load(Relaxed), 7);
        ground.map(true).expect("mapped");
        assert_eq!(page.header.cookie.load(Relaxed), 7, "the same memory as before");
        assert!(!ground.canary_changed().expect("readable"));
        assert!(std::io::Write::write_all(&mut &ground.canary, b"x").is_err());
    }

    #[test]
    fn descriptors_and_mappings_are_made() {
        let ground = Ground::new().expect("memory");
        let file = OwnedFd::from(ground.ram.try_clone().expect("a copy"));
        assert_eq!(Descriptors::allow(100).open(&file).len(), 100);
        let lines = || std::fs::read_to_string("/proc/self/maps").expect("readable").lines().count();
        let before = lines();
        more_mappings(100).expect("some");
        assert!(lines() >= before + 90);
    }
}
