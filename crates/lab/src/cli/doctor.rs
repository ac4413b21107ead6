//! `entrain lab doctor`: can the lab work here, and what is missing?
use std::{fs, path::Path, process::ExitCode};

use entrain_lab_machine::{
    Cache,
    archive::{apt, tool},
    image::own,
    machine::{Arch, accel},
};

/// One look at the development machine.
struct Check {
    name: &'static str,
    /// Found, or what is wrong and what to do.
    result: Result<String, String>,
    /// The lab cannot work without it.
    needed: bool,
}

pub(super) fn run() -> anyhow::Result<ExitCode> {
    let checks = all();
    for check in &checks {
        let (mark, text) = match (&check.result, check.needed) {
            (Ok(text), _) => ("ok", text),
            (Err(text), true) => ("MISSING", text),
            (Err(text), false) => ("no", text),
        };
        println!("{mark:<8} {:<22} {text}", check.name);
    }
    let bad = checks.iter().any(|c| c.needed && c.result.is_err());
    Ok(ExitCode::from(u8::from(bad)))
}

fn all() -> Vec<Check> {
    let mut checks = vec![
        Check { name: "computer", result: computer(), needed: true },
        Check {
            name: "apt and dpkg",
            result: programs(&["apt-get", "apt-cache", "apt-config", "dpkg-deb", "xz"]),
            needed: true,
        },
        Check { name: "Debian mirror", result: apt::mirror().map_err(|e| e.to_string()), needed: true },
        Check { name: "cache", result: cache(), needed: true },
        Check { name: "memory", result: memory(), needed: true },
    ];
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let name = match arch {
            Arch::Aarch64 => "programs (aarch64)",
            Arch::X86_64 => "programs (x86_64)",
        };
        let found = own::programs(arch).map(|p| p[0].1.display().to_string()).map_err(|e| e.to_string());
        checks.push(Check { name, result: found, needed: true });
    }
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let name = match arch {
            Arch::Aarch64 => "images (aarch64)",
            Arch::X86_64 => "images (x86_64)",
        };
        checks.push(Check { name, result: images(arch), needed: false });
    }
    let kvm = Arch::native().map_or(Err("unknown architecture".into()), |arch| accel::kvm_works(arch, true));
    let kvm = kvm.map(|()| "works, with nesting: the fastest way for this architecture".into());
    checks.push(Check {
        name: "KVM",
        result: kvm.map_err(|e: String| format!("{e}; the lab emulates (TCG)")),
        needed: false,
    });
    checks
}

fn computer() -> Result<String, String> {
    let arch = std::env::consts::ARCH;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    match Arch::native() {
        Some(_) if cpus >= 2 => Ok(format!("{arch}, {cpus} CPUs")),
        Some(_) => Err(format!("{arch}, 1 CPU: host machines have 2 pCPUs; figures from one CPU mean little")),
        None => Err(format!("{arch}: the lab runs on x86_64 and aarch64")),
    }
}

fn programs(names: &[&str]) -> Result<String, String> {
    let missing: Vec<_> = names.iter().filter(|n| !tool::on_path(n)).copied().collect();
    if missing.is_empty() {
        return Ok("there".into());
    }
    Err(format!("missing: {}; the lab needs Debian 12 or 13 with these (run 'make setup' as root)", missing.join(", ")))
}

fn cache() -> Result<String, String> {
    let cache = Cache::open().map_err(|e| e.to_string())?;
    let stat = rustix::fs::statvfs(cache.root()).map_err(|e| e.to_string())?;
    let free = stat.f_bavail * stat.f_frsize / (1 << 20);
    let used = cache.size().map_err(|e| e.to_string())? / (1 << 20);
    let text = format!("{}: {used} MiB used, {free} MiB free", cache.root().display());
    // Measured: 2.6 GiB for both architectures with both flavours' kernels and a few images.
    if used + free >= 4096 {
        Ok(text)
    } else {
        Err(format!("{text}; both architectures need about 4 GiB: set XDG_CACHE_HOME"))
    }
}

fn memory() -> Result<String, String> {
    let info = fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
    let kib: u64 = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or("MemAvailable is missing in /proc/meminfo")?;
    let text = format!("{} MiB available", kib / 1024);
    if kib >= 5 << 20 { Ok(text) } else { Err(format!("{text}; a host machine takes about 5 GiB (see --memory)")) }
}

fn images(arch: Arch) -> Result<String, String> {
    let root = Cache::open().map_err(|e| e.to_string())?.root().join("kernels");
    let flavours = [arch.debian().to_owned(), format!("rt-{}", arch.debian())];
    let there: Vec<_> = flavours.iter().filter_map(|f| release(&root.join(f))).collect();
    if there.is_empty() {
        return Err("no kernel in the cache yet: the first run fetches it (about 100 MB)".into());
    }
    Ok(format!("Linux {}", there.join(", ")))
}

fn release(tree: &Path) -> Option<String> {
    let mut modules = fs::read_dir(tree.join("usr/lib/modules")).ok()?;
    Some(modules.next()?.ok()?.file_name().to_string_lossy().into_owned())
}
