//! As much of KVM's interface as vCPUs that only halt need (Documentation/virt/kvm/api.rst). The published bindings are
//! under a licence that does not go together with this program's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::pages::Pages;

/// A request without, with a read, with a written argument, as the kernel's _IO, _IOR and _IOW; KVM's type is 0xae.
const fn request(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xae << 8 | number
}

const NONE: u64 = 0;
const WRITE: u64 = 1;
const READ: u64 = 2;

const CREATE_VM: u64 = request(NONE, 0x01, 0);
const GET_VCPU_MMAP_SIZE: u64 = request(NONE, 0x04, 0);
const CREATE_VCPU: u64 = request(NONE, 0x41, 0);
const SET_USER_MEMORY_REGION: u64 = request(WRITE, 0x46, size_of::<MemoryRegion>());
const RUN: u64 = request(NONE, 0x80, 0);

/// Exit reasons.
const EXIT_IO: u32 = 2;
const EXIT_HLT: u32 = 5;
const EXIT_MMIO: u32 = 6;
const EXIT_INTR: u32 = 10;

/// Where the tiny guests' memory, a page, begins: a multiple of any page size, within the reach of x86's real mode.
pub(crate) const MEMORY_AT: u64 = if cfg!(target_arch = "aarch64") { 0x1_0000 } else { 0x1000 };

/// Why a guest handed over to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It reached for a port or an address that KVM does not serve.
    Access,
    /// A signal came, or it halted.
    Interrupted,
    /// Anything else, by KVM's number.
    Other(u32),
}

/// struct kvm_userspace_memory_region
#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    size: u64,
    address: u64,
}

/// # Safety
/// The argument must be what the request takes: a number, or the address of memory of the kind and size that it names,
/// which nobody else uses during the call.
unsafe fn ioctl(file: RawFd, request: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: by this function's contract.
    match unsafe { libc::ioctl(file, request as _, argument) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// For requests that hand out a file.
///
/// # Safety
/// As [`ioctl`], and the request's result must be a new file descriptor.
unsafe fn new_file(file: RawFd, request: u64, argument: usize) -> io::Result<OwnedFd> {
    // SAFETY: by this function's contract, both.
    Ok(unsafe { OwnedFd::from_raw_fd(ioctl(file, request, argument)?) })
}

/// /dev/kvm
pub(crate) struct Kvm(File);

impl Kvm {
    pub(crate) fn open() -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open("/dev/kvm").map(Self)
    }

    /// A virtual machine whose memory at `guest_address` is `memory`, which must outlive it.
    pub(crate) fn create_vm(&self, guest_address: u64, memory: &Pages) -> io::Result<Vm> {
        self.create_vm_at(guest_address, memory.address(0), memory.len())
    }

    /// The same with memory of `length` bytes at `address`, which must stay mapped: whatever is there.
    pub(crate) fn create_vm_at(&self, guest_address: u64, address: usize, length: usize) -> io::Result<Vm> {
        // SAFETY: the argument is a number, the machine's type; the result is a file.
        let vm = unsafe { new_file(self.0.as_raw_fd(), CREATE_VM, 0)? };
        // SAFETY: as above, without an argument; the result is a size.
        let run_size = unsafe { ioctl(self.0.as_raw_fd(), GET_VCPU_MMAP_SIZE, 0)? } as usize;
        let vm = Vm { file: vm, run_size };
        vm.set_slot(0, guest_address, address, length)?;
        arch::prepare(&vm)?;
        Ok(vm)
    }
}

/// A virtual machine.
pub(crate) struct Vm {
    file: OwnedFd,
    run_size: usize,
}

impl Vm {
    /// Its descriptor.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Plugs in `length` bytes of memory at `address`, which must stay mapped, as this slot; 0 bytes unplug it.
    pub(crate) fn set_slot(&self, slot: u32, guest_address: u64, address: usize, length: usize) -> io::Result<()> {
        let (size, address) = (length as u64, address as u64);
        let region = MemoryRegion { slot, flags: 0, guest_address, size, address };
        // SAFETY: the region is alive and of the request's kind. What the guest does to the memory, it does to bytes that
        // are reached by atomic accesses only.
        unsafe { ioctl(self.file.as_raw_fd(), SET_USER_MEMORY_REGION, &raw const region as usize) }.map(drop)
    }

    /// A vCPU that executes `start` in user mode with these values in its first registers.
    ///
    /// # Errors
    /// As KVM's; also where this program knows no such vCPU (x86_64: that would take page tables).
    pub(crate) fn create_user_vcpu(&self, id: u32, start: u64, registers: &[u64]) -> io::Result<Vcpu> {
        let vcpu = self.create_vcpu(id, start)?;
        arch::enter_user_mode(&vcpu, registers)?;
        Ok(vcpu)
    }

    /// A vCPU that begins to execute at `start`.
    pub(crate) fn create_vcpu(&self, id: u32, start: u64) -> io::Result<Vcpu> {
        // SAFETY: the argument is a number; the result is a file.
        let file = unsafe { new_file(self.file.as_raw_fd(), CREATE_VCPU, id as usize)? };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place of the kernel's choice, of the size that the kernel names for it.
        let run = unsafe { libc::mmap(ptr::null_mut(), self.run_size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if run == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let vcpu = Vcpu { file, run: run.cast(), run_size: self.run_size };
        arch::begin_at(self, &vcpu, start)?;
        Ok(vcpu)
    }
}

/// A vCPU.
pub(crate) struct Vcpu {
    file: OwnedFd,
    run: *mut u32,
    run_size: usize,
}

// SAFETY: KVM lets any thread drive a vCPU, one at a time; `run` takes it by `&mut`.
unsafe impl Send for Vcpu {}

impl Vcpu {
    /// Where its struct kvm_run is mapped: memory of no file system.
    pub(crate) fn shared(&self) -> usize {
        self.run as usize
    }

    /// Lets the guest run until it halts or a signal comes.
    ///
    /// # Errors
    /// As KVM_RUN; also when the guest left for another reason.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        match self.run_to_exit()? {
            Exit::Interrupted => Ok(()),
            other => Err(io::Error::other(format!("a guest that only halts left for another reason: {other:?}"))),
        }
    }

    /// Lets the guest run until it leaves.
    ///
    /// # Errors
    /// As KVM_RUN.
    pub(crate) fn run_to_exit(&mut self) -> io::Result<Exit> {
        // SAFETY: takes no argument; the guest's memory outlives the vCPU.
        match unsafe { ioctl(self.file.as_raw_fd(), RUN, 0) } {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => Ok(Exit::Interrupted),
            Err(error) => Err(error),
            Ok(_) => Ok(match self.exit_reason() {
                // Without an interrupt controller x86 hands a halt to the VMM.
                EXIT_HLT | EXIT_INTR => Exit::Interrupted,
                EXIT_IO | EXIT_MMIO => Exit::Access,
                reason => Exit::Other(reason),
            }),
        }
    }

    /// struct kvm_run: three bytes, their padding to eight, then the reason.
    fn exit_reason(&self) -> u32 {
        // SAFETY: the third word of the mapping, aligned, which the kernel writes only during KVM_RUN.
        unsafe { AtomicU32::from_ptr(self.run.add(2)) }.load(Relaxed)
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        // SAFETY: the mapping is this vCPU's.
        unsafe { libc::munmap(self.run.cast(), self.run_size) };
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::{READ, Vcpu, Vm, WRITE, ioctl, request};
    use std::io;
    use std::os::fd::AsRawFd;

    /// struct kvm_vcpu_init
    #[repr(C)]
    #[derive(Default)]
    struct Init {
        target: u32,
        features: [u32; 7],
    }

    /// struct kvm_one_reg
    #[repr(C)]
    struct OneReg {
        id: u64,
        address: u64,
    }

    const SET_ONE_REG: u64 = request(WRITE, 0xac, size_of::<OneReg>());
    const VCPU_INIT: u64 = request(WRITE, 0xae, size_of::<Init>());
    const PREFERRED_TARGET: u64 = request(READ, 0xaf, size_of::<Init>());
    /// KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE | word 64 of struct kvm_regs: the program counter.
    const PC: u64 = 0x6030_0000_0010_0040;
    /// The same of words 0 and 66: the first register, two words each, and the state, here user mode without interrupts.
    const X0: u64 = PC - 64;
    const PSTATE: u64 = PC + 2;
    const USER_MODE: u64 = 0x3c0;

    pub(super) fn prepare(_vm: &Vm) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn begin_at(vm: &Vm, vcpu: &Vcpu, start: u64) -> io::Result<()> {
        let mut init = Init::default();
        // SAFETY: each argument is alive during its call and of its request's kind.
        unsafe {
            ioctl(vm.file.as_raw_fd(), PREFERRED_TARGET, &raw mut init as usize)?;
            ioctl(vcpu.file.as_raw_fd(), VCPU_INIT, &raw const init as usize)?;
        }
        set(vcpu, PC, start)
    }

    pub(super) fn enter_user_mode(vcpu: &Vcpu, registers: &[u64]) -> io::Result<()> {
        for (nth, value) in registers.iter().enumerate() {
            set(vcpu, X0 + 2 * nth as u64, *value)?;
        }
        set(vcpu, PSTATE, USER_MODE)
    }

    fn set(vcpu: &Vcpu, id: u64, value: u64) -> io::Result<()> {
        let register = OneReg { id, address: &raw const value as u64 };
        // SAFETY: the argument is alive during the call and of the request's kind, and so is the value that it names.
        unsafe { ioctl(vcpu.file.as_raw_fd(), SET_ONE_REG, &raw const register as usize) }.map(drop)
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::{NONE, READ, Vcpu, Vm, WRITE, ioctl, request};
    use std::io;
    use std::os::fd::AsRawFd;

    /// struct kvm_regs: sixteen general registers, rip, rflags.
    #[repr(C)]
    #[derive(Default)]
    struct Regs {
        general: [u64; 16],
        rip: u64,
        rflags: u64,
    }

    /// struct kvm_sregs, of which only the begin of its first segment, the code's, matters here.
    #[repr(C)]
    struct Sregs {
        code_base: u64,
        code_limit: u32,
        code_selector: u16,
        rest: [u8; 298],
    }

    const SET_TSS_ADDR: u64 = request(NONE, 0x47, 0);
    const CREATE_IRQCHIP: u64 = request(NONE, 0x60, 0);
    const SET_REGS: u64 = request(WRITE, 0x82, size_of::<Regs>());
    const GET_SREGS: u64 = request(READ, 0x83, size_of::<Sregs>());
    const SET_SREGS: u64 = request(WRITE, 0x84, size_of::<Sregs>());
    const SET_MP_STATE: u64 = request(WRITE, 0x99, size_of::<u32>());
    static RUNNABLE: u32 = 0;
    /// Where Intel keeps a page for real mode: above the guests' memory, below 4 GiB.
    const TSS: usize = 0xfffb_d000;

    /// With an interrupt controller in the kernel a halt stays there.
    pub(super) fn prepare(vm: &Vm) -> io::Result<()> {
        // SAFETY: both take a number or nothing.
        unsafe {
            ioctl(vm.file.as_raw_fd(), SET_TSS_ADDR, TSS)?;
            ioctl(vm.file.as_raw_fd(), CREATE_IRQCHIP, 0)?;
        }
        Ok(())
    }

    pub(super) fn begin_at(_vm: &Vm, vcpu: &Vcpu, start: u64) -> io::Result<()> {
        let file = vcpu.file.as_raw_fd();
        let mut segments = Sregs { code_base: 0, code_limit: 0, code_selector: 0, rest: [0; 298] };
        // Bit 1 of the flags is always set; interrupts stay off, so that nothing but the host wakes it.
        let registers = Regs { rip: start, rflags: 2, ..Default::default() };
        // SAFETY: each argument is alive during its call and of its request's kind.
        unsafe {
            ioctl(file, GET_SREGS, &raw mut segments as usize)?;
            (segments.code_base, segments.code_selector) = (0, 0);
            ioctl(file, SET_SREGS, &raw const segments as usize)?;
            ioctl(file, SET_REGS, &raw const registers as usize)?;
            // All but the first would wait for the first to start them.
            ioctl(file, SET_MP_STATE, &raw const RUNNABLE as usize)?;
        }
        Ok(())
    }

    pub(super) fn enter_user_mode(_vcpu: &Vcpu, _registers: &[u64]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "on x86_64 user mode takes page tables, which these VMs lack"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers in linux/kvm.h: a size that is wrong changes them.
    #[test]
    fn the_requests_are_the_kernels() {
        assert_eq!((CREATE_VM, CREATE_VCPU, RUN), (0xae01, 0xae41, 0xae80));
        assert_eq!(SET_USER_MEMORY_REGION, 0x4020_ae46);
    }
}
