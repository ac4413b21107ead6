//! What the machines boot: a kernel, and initramfs images for host machine and guests.
//!
//! The guests' kernel and image lie as files in the host machine's image. Images are small, since every byte is copied
//! by an emulated CPU, and not compressed, since unpacking costs it more than copying.
use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{DefaultHasher, Hasher},
    io::{self, BufWriter},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use self::{cpio::Writer, programs::Wanted};
use crate::{
    Cache, LabError, Progress, Result,
    archive::{Archive, Kernel, RELEASE, Release},
    cache::Hold,
    machine::{Arch, MachineSpec, recipe},
};

pub mod cpio;
pub mod elf;
mod kernel_file;
pub mod modules;
pub mod own;
pub mod own_kernel;
pub mod peers;
pub mod programs;
mod qpw;

const INIT: &str = include_str!("init.sh");
/// Images that were wanted within this time are probably wanted again; of the others [`KEPT`] stay.
const YOUNG: Duration = Duration::from_secs(3600);
/// Images kept for the next run.
const KEPT: usize = 4;

/// Where a host machine keeps the modules that it does not load by itself.
const EXTRA_MODULES: &str = "usr/lib/entrain/extra";

/// What a host machine boots.
#[derive(Clone, Debug)]
pub struct Images {
    /// Kernel of host machine and guests.
    pub kernel: PathBuf,
    /// Its release.
    pub release: String,
    /// The host machine's initramfs, with the guests' inside.
    pub initrd: PathBuf,
    /// Keeps other labs from removing them.
    pub hold: Hold,
}

/// Everything that images are made of.
struct Parts {
    arch: Arch,
    kernel: Kernel,
    /// The guests', where that is another.
    guest_kernel: Option<Kernel>,
    /// Tells the modules of one's own apart from build to build.
    stamp: String,
    /// QEMU and busybox.
    base: PathBuf,
    wanted: Vec<Wanted>,
    own: Vec<(&'static str, PathBuf)>,
    /// Kernel modules that the guests load.
    guest_modules: Vec<String>,
    /// Kernel modules that lie there unloaded.
    extra: Vec<String>,
    /// Whether guests run there, which need KVM.
    nested: bool,
    /// The built livepatch module of `entrain isolate qpw`.
    qpw: Option<PathBuf>,
    /// What makes a host machine's CPUs as slow as their emulated frequency; None where they have none.
    emulation: Option<(&'static str, PathBuf)>,
}

/// Makes the images of a machine, or finds them in the cache.
pub fn prepare(cache: &Cache, spec: &MachineSpec, progress: &dyn Progress) -> Result<Images> {
    let archive = Archive::new(cache, spec.arch);
    let of_archive =
        |image: &Path| image.to_string_lossy().parse::<Release>().is_ok() || own_kernel::of_archive(image).is_some();
    let own_image = spec.kernel.as_ref().filter(|image| !of_archive(image));
    let kernel_of = |image: Option<&PathBuf>, modules: Option<&Path>| match image {
        None => archive.kernel(spec.rt, None, progress),
        Some(image) => match (image.to_string_lossy().parse::<Release>(), own_kernel::of_archive(image)) {
            (Ok(release), _) => archive.kernel_of(release, spec.rt, progress),
            (Err(()), Some(series)) => archive.kernel(spec.rt, Some(series), progress),
            (Err(()), None) => own_kernel::find(image, modules, spec.arch),
        },
    };
    let kernel = kernel_of(spec.kernel.as_ref(), spec.modules.as_deref())?;
    let guest_kernel = spec.guest_kernel.as_ref().map(|image| kernel_of(Some(image), None)).transpose()?;
    let qemu = match spec.arch {
        Arch::Aarch64 => "qemu-system-arm",
        Arch::X86_64 => "qemu-system-x86",
    };
    let base = archive.tree("machine", RELEASE, &[qemu, "busybox-static"], progress)?;
    let wanted = programs::fetch(cache, spec.arch, &spec.programs, progress)?;
    // Debian's modules never change under their release's name; those that the user builds do.
    let stamp = match (own_image, &kernel.modules) {
        (Some(_), Some(folder)) => modules::stamp(folder)?,
        _ => String::new(),
    };
    let emulation = spec.frequency.as_ref().map(|_| own::emulation(spec.arch)).transpose()?;
    let qpw = match (spec.qpw, own_image, &kernel.modules) {
        (false, _, _) => None,
        (true, Some(_), Some(folder)) => {
            Some(qpw::own_module(cache, spec.arch, &kernel.release, folder, &stamp, progress)?)
        }
        (true, _, _) => Some(qpw::module(cache, &archive, spec.arch, &kernel.release, progress)?),
    };
    let parts = Parts {
        arch: spec.arch,
        own: own::programs(spec.arch)?,
        kernel,
        guest_kernel,
        stamp,
        base,
        wanted,
        extra: spec.extra_modules.clone(),
        guest_modules: spec.guest_modules.clone(),
        nested: spec.nested,
        qpw,
        emulation,
    };
    let key = format!("{}-{}", spec.arch, parts.digest()?);
    let (folder, hold) = cache.held("images", &key, |dir| {
        progress.step(&format!("building the images of host machine and guests ({})", spec.arch));
        parts.build(dir)
    })?;
    prune(cache, YOUNG, KEPT);
    Ok(Images { kernel: folder.join("kernel"), release: parts.kernel.release, initrd: folder.join("host.cpio"), hold })
}

impl Parts {
    /// Tells whether an image in the cache is of these very parts.
    fn digest(&self) -> Result<String> {
        // Not cryptographic: nobody gains by making two of his own builds look alike.
        let mut hasher = DefaultHasher::new();
        hasher.write(INIT.as_bytes());
        hasher.write(self.stamp.as_bytes());
        hasher.write(&[u8::from(self.nested)]);
        hasher.write(entrain_lab_rtos::IMAGE);
        hasher.write(entrain_lab_rtos::RUN.as_bytes());
        let mut files = vec![self.kernel.image.clone(), self.kernel.config.clone(), self.base.join(".packages")];
        files.extend(self.kernel.modules.as_ref().map(|m| m.join("modules.builtin")).filter(|p| p.exists()));
        files.extend(self.guest_kernel.iter().flat_map(|kernel| [kernel.image.clone(), kernel.config.clone()]));
        files.extend(self.own.iter().chain(&self.emulation).map(|(_, path)| path.clone()));
        files.extend(self.qpw.clone());
        for name in &self.extra {
            hasher.write(name.as_bytes());
        }
        for name in &self.guest_modules {
            hasher.write(b"guest ");
            hasher.write(name.as_bytes());
        }
        for wanted in &self.wanted {
            hasher.write(wanted.program.as_bytes());
            files.extend([wanted.tree.join(".packages"), wanted.file.clone()]);
        }
        for path in files {
            hasher.write(&fs::read(&path).map_err(|e| LabError::io(path, e))?);
        }
        Ok(format!("{:016x}", hasher.finish()))
    }

    fn build(&self, dir: &Path) -> Result<()> {
        let scratch = tempfile::tempdir_in(dir).map_err(|e| LabError::io(dir, e))?;
        let kernel = dir.join("kernel");
        fs::copy(&self.kernel.image, &kernel).map_err(|e| LabError::io(&kernel, e))?;
        let guest = scratch.path().join("guest.cpio");
        let of_guests = self.guest_kernel.as_ref().unwrap_or(&self.kernel);
        // The lab's console and agent; kernels before 7.x have them as modules.
        let guest_modules: Vec<&str> = ["virtio_mmio", "virtio_console"]
            .into_iter()
            .chain(self.guest_modules.iter().map(String::as_str))
            .collect();
        self.write(&guest, scratch.path(), of_guests, &guest_modules, |_, _| Ok(()))?;
        let mut host_modules = vec!["virtio_pci", "virtio_console"];
        host_modules.extend_from_slice(match self.arch {
            // The driver of the emulated frequency hardware.
            Arch::Aarch64 if self.emulation.is_some() => &["qcom_cpufreq_hw"],
            Arch::Aarch64 => &[],
            Arch::X86_64 if self.nested => &["kvm_amd", "kvm_intel"],
            Arch::X86_64 => &[],
        });
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let extra = match &self.kernel.modules {
            Some(folder) => modules::resolve(folder, &extra, scratch.path())?,
            None => Vec::new(),
        };
        self.write(&dir.join("host.cpio"), scratch.path(), &self.kernel, &host_modules, |w, programs| {
            let bare = |path: &'static str| path.trim_start_matches('/');
            w.copy(bare(recipe::GUEST_KERNEL), 0o644, &of_guests.image)?;
            w.copy(bare(recipe::GUEST_INITRD), 0o644, &guest)?;
            for module in &extra {
                let name = module.file_name().unwrap_or_default().to_string_lossy();
                w.copy(&format!("{EXTRA_MODULES}/{name}"), 0o644, module)?;
            }
            if let Some(module) = &self.qpw {
                w.copy(&format!("var/lib/entrain/qpw/{}/entrain_qpw.ko", self.kernel.release), 0o644, module)?;
                let example = module.with_file_name(qpw::EXAMPLE_FILE);
                if example.exists() {
                    w.copy(&format!("{EXTRA_MODULES}/{}", qpw::EXAMPLE_FILE), 0o644, &example)?;
                }
            }
            // Its programs are for that architecture alone, and small.
            if self.arch == Arch::Aarch64 {
                w.file(entrain_lab_rtos::PLACE, 0o644, entrain_lab_rtos::IMAGE)?;
                w.file("usr/bin/entrain-rtos", 0o755, entrain_lab_rtos::RUN.as_bytes())?;
            }
            let qemu = format!("usr/bin/qemu-system-{}", self.arch);
            w.copy(&qemu, 0o755, &self.base.join(&qemu))?;
            programs.push((self.base.clone(), self.base.join(&qemu)));
            for path in firmware(self.arch) {
                let from = self.base.join(path);
                if from.exists() {
                    w.copy(path, 0o644, &from)?;
                }
            }
            Ok(())
        })
    }

    /// Writes one image; `more` adds to it, and names the programs (with their trees) whose libraries are needed.
    fn write(
        &self,
        path: &Path,
        scratch: &Path,
        kernel: &Kernel,
        wanted_modules: &[&str],
        more: impl FnOnce(&mut Writer<BufWriter<File>>, &mut Vec<(PathBuf, PathBuf)>) -> io::Result<()>,
    ) -> Result<()> {
        // The same module of two kernels is two files.
        let unpacked = tempfile::tempdir_in(scratch).map_err(|e| LabError::io(scratch, e))?;
        let modules = match &kernel.modules {
            Some(folder) => modules::resolve(folder, wanted_modules, unpacked.path())?,
            None => Vec::new(),
        };
        let busybox = self.base.join("usr/bin/busybox");
        let applets = elf::busybox_applets(&busybox)?;
        let mut dynamic = Vec::new();
        let file = File::create(path).map_err(|e| LabError::io(path, e))?;
        let mut w = Writer::new(BufWriter::new(file));
        let fill = |w: &mut Writer<BufWriter<File>>, dynamic: &mut Vec<(PathBuf, PathBuf)>| -> io::Result<()> {
            for folder in ["dev", "proc", "sys", "run", "tmp", "root", "etc", "usr/lib", "usr/lib64", "usr/sbin"] {
                w.folder(folder)?;
            }
            for name in ["bin", "sbin", "lib", "lib64"] {
                w.link(name, &format!("usr/{name}"))?;
            }
            w.device("dev/console", 5, 1)?;
            w.file("init", 0o755, INIT.as_bytes())?;
            w.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
            w.file("etc/group", 0o644, b"root:x:0:\n")?;
            w.copy("usr/bin/busybox", 0o755, &busybox)?;
            // libbpf reads the kernel's configuration there (Kconfig externs of BPF programs).
            if kernel.config.exists() {
                w.copy(&format!("boot/config-{}", kernel.release), 0o644, &kernel.config)?;
            }
            for (name, from) in self.own.iter().chain(&self.emulation) {
                w.copy(&format!("usr/bin/{name}"), 0o755, from)?;
            }
            for (number, module) in modules.iter().enumerate() {
                let name = module.file_name().unwrap_or_default().to_string_lossy();
                w.copy(&format!("usr/lib/entrain/modules/{number:02}-{name}"), 0o644, module)?;
            }
            for wanted in &self.wanted {
                w.copy(&format!("usr/bin/{}", wanted.program), 0o755, &wanted.file)?;
                dynamic.push((wanted.tree.clone(), wanted.file.clone()));
                for (place, from) in &wanted.data {
                    w.copy(place, 0o644, from)?;
                }
            }
            more(w, dynamic)?;
            let taken: Vec<&str> = self.wanted.iter().map(|w| w.program.as_str()).collect();
            for applet in applets.iter().filter(|a| *a != "busybox" && !taken.contains(&a.as_str())) {
                w.link(&format!("usr/bin/{applet}"), "busybox")?;
            }
            Ok(())
        };
        fill(&mut w, &mut dynamic).map_err(|e| LabError::io(path, e))?;
        let mut libraries = BTreeMap::new();
        for (tree, program) in dynamic {
            // The first tree wins: all of them come from one release.
            for (place, from) in elf::libraries(&tree, self.arch, &[program])? {
                libraries.entry(place).or_insert(from);
            }
        }
        for (place, from) in libraries {
            w.copy(&place, 0o755, &from).map_err(|e| LabError::io(path, e))?;
        }
        w.finish().map(drop).map_err(|e| LabError::io(path, e))
    }
}

/// What QEMU reads when it boots a guest of ours, in Debian's places.
fn firmware(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Aarch64 => &[],
        Arch::X86_64 => &[
            "usr/share/qemu/qboot.rom",
            "usr/share/qemu/linuxboot_dma.bin",
            "usr/share/qemu/pvh.bin",
            "usr/share/qemu/kvmvapic.bin",
            "usr/share/seabios/bios-microvm.bin",
        ],
    }
}

/// Removes old images: every build of Entrain makes new ones. What a lab holds stays, however old it is.
fn prune(cache: &Cache, young: Duration, kept: usize) {
    let Ok(items) = fs::read_dir(cache.root().join("images")) else { return };
    let mut old: Vec<(SystemTime, String)> = items
        .filter_map(|item| {
            let item = item.ok()?;
            let name = item.file_name().into_string().ok().filter(|n| !n.starts_with('.'))?;
            let used = item.file_type().ok().filter(fs::FileType::is_dir).and_then(|_| cache.used("images", &name))?;
            used.elapsed().is_ok_and(|age| age >= young).then_some((used, name))
        })
        .collect();
    old.sort();
    let excess = old.len().saturating_sub(kept);
    for (_, name) in old.into_iter().take(excess) {
        match cache.forget("images", &name) {
            Ok(true) => {}
            Ok(false) => tracing::debug!("images/{name} is old, but a lab uses it"),
            Err(e) => tracing::warn!("an old image stays: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_spares_what_a_lab_holds_and_what_was_used_last() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let make = |name: &str| {
            let hold = cache.held("images", name, |_| Ok(())).unwrap().1;
            // Times that tell them apart also on file systems with coarse ones.
            std::thread::sleep(Duration::from_millis(20));
            hold
        };
        let first = make("first");
        for name in ["second", "third", "fourth"] {
            drop(make(name));
        }
        // Wanted once more, and so no longer the oldest of those that nobody holds.
        drop(make("second"));
        prune(&cache, YOUNG, 0);
        assert!(["first", "second", "third", "fourth"].iter().all(|name| cache.has("images", name)), "all are young");
        prune(&cache, Duration::ZERO, 1);
        let there = ["first", "second", "third", "fourth"].map(|name| cache.has("images", name));
        assert_eq!(there, [true, true, false, false]);
        drop(first);
        prune(&cache, Duration::ZERO, 0);
        assert!(!cache.has("images", "first"));
    }
}
