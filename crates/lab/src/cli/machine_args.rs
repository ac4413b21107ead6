//! Options that tell what machine to boot, shared by the lab's commands.
use std::{path::PathBuf, time::Duration};

use entrain_cpufreq_emulation::tables::Choice as Frequency;
use entrain_lab_machine::machine::{Accel, Arch, Cgroups, GuestSpec, MachineSpec, pace::Pace, topology::Topology};

/// The machine.
#[derive(Clone, Debug, clap::Args)]
pub struct MachineArgs {
    /// Architecture of host machine and guests: aarch64 (the reliable one) or x86_64
    #[arg(long, default_value_t = Arch::default(), value_name = "ARCH")]
    pub arch: Arch,
    /// How the host machine's CPUs are made: auto, tcg or kvm
    #[arg(long, default_value = "auto")]
    pub accel: Accel,
    /// Take the PREEMPT_RT flavour of the kernel
    #[arg(long)]
    pub rt: bool,
    /// A kernel image of your own instead of the archive's newest, debian:SERIES for the archive's newest of that series,
    /// 'running' for this computer's, or a release's own ('debian12', 'debian13')
    #[arg(long, value_name = "FILE|debian:6.12|running|RELEASE")]
    pub kernel: Option<PathBuf>,
    /// Another kernel for the guests than for the host machine, named in the same way
    #[arg(long, value_name = "FILE|running|RELEASE")]
    pub guest_kernel: Option<PathBuf>,
    /// Its modules: the folder lib/modules/RELEASE, if they do not lie beside it or in this system
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// CPUs of the host machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pcpus: u32,
    /// Their sockets, clusters (with a last-level cache each) in a socket, threads of a core, and NUMA nodes, as 2,2,1,2
    #[arg(long, value_name = "S,C,T,N", default_value = "1,1,1,1")]
    pub topology: Topology,
    /// Memory of the host machine, MiB
    #[arg(long, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u32).range(512..))]
    pub memory: u32,
    /// Emulate CPUs whose frequency can be scaled: a table and the cluster of each CPU, as chromebook:big,little (aarch64)
    #[arg(long, value_name = "TABLE:CLUSTER,…")]
    pub frequency: Option<Frequency>,
    /// Number of guests
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub guests: u32,
    /// vCPUs of each guest
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub vcpus: u32,
    /// Memory of each guest, MiB
    #[arg(long, default_value_t = 384, value_name = "MIB", value_parser = clap::value_parser!(u32).range(192..))]
    pub guest_memory: u32,
    /// A program wanted in host machine and guests: Debian's (dbench, bpftool, …), or a peer (scx_bpfland, …) that is built
    /// first; may be repeated
    #[arg(long = "program", value_name = "NAME")]
    pub programs: Vec<String>,
    /// A parameter for the host machine's kernel; may be repeated
    #[arg(long = "append", value_name = "PARAMETER")]
    pub cmdline: Vec<String>,
    /// A parameter for the guests' kernels; may be repeated
    #[arg(long = "guest-append", value_name = "PARAMETER")]
    pub guest_cmdline: Vec<String>,
    /// How many times slower than this computer's its time passes, so that its CPUs look as fast as real ones: a number, or
    /// 'auto' to measure it when the machine is up
    #[arg(long, default_value_t = Pace::default(), value_name = "N|auto")]
    pub dilation: Pace,
    /// How long host machine and guests may take to come up, in seconds, instead of the lab's own deadlines
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub boot_limit: Option<u64>,
}

impl MachineArgs {
    /// The machine that they describe.
    pub fn spec(&self) -> MachineSpec {
        let guest = |n| GuestSpec {
            memory_mib: self.guest_memory,
            cmdline: self.guest_cmdline.clone(),
            ..GuestSpec::new(format!("guest{n}"), self.vcpus)
        };
        MachineSpec {
            arch: self.arch,
            accel: self.accel,
            rt: self.rt,
            kernel: self.kernel.clone(),
            guest_kernel: self.guest_kernel.clone(),
            modules: self.modules.clone(),
            pcpus: self.pcpus,
            topology: self.topology,
            memory_mib: self.memory,
            frequency: self.frequency.clone(),
            nested: self.guests > 0,
            qpw: false,
            extra_modules: Vec::new(),
            guest_modules: Vec::new(),
            cmdline: self.cmdline.clone(),
            programs: self.programs.clone(),
            dilation: self.dilation,
            cgroups: Cgroups::default(),
            guests: (0..self.guests).map(guest).collect(),
            boot_limit: self.boot_limit.map(Duration::from_secs),
        }
    }
}
