//! Kernel modules and what they depend on.
//!
//! Debian's packages hold no modules.dep (depmod makes it at installation), so the dependencies come from the modules
//! themselves: `depends=` in their section `.modinfo`.
use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use object::{Object, ObjectSection, read::elf::ElfFile64};

use crate::{LabError, Result, archive::tool};

/// The files of `wanted` and of the modules that they need, uncompressed into `into`, in the order of loading. Modules
/// that the kernel has built in are left out.
pub fn resolve(modules: &Path, wanted: &[&str], into: &Path) -> Result<Vec<PathBuf>> {
    let builtin = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    let builtin: Vec<String> = builtin.lines().map(stem).collect();
    let mut files = HashMap::new();
    index(&modules.join("kernel"), &mut files)?;
    let mut order = Vec::new();
    for name in wanted {
        visit(&stem(name), &builtin, &files, into, &mut order)?;
    }
    Ok(order)
}

/// Tells whether modules are those of another time: their number, their sizes, and when the last one was made.
pub fn stamp(modules: &Path) -> Result<String> {
    let mut files = HashMap::new();
    index(&modules.join("kernel"), &mut files)?;
    let (mut bytes, mut last) = (0, 0);
    for path in files.values() {
        let meta = fs::metadata(path).map_err(|e| LabError::io(path, e))?;
        bytes += meta.len();
        last = last.max(meta.mtime());
    }
    Ok(format!("{} {bytes} {last}", files.len()))
}

/// A module's name: no folder, no ending, underscores for dashes.
fn stem(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().split(".ko").next().unwrap_or_default().replace('-', "_")
}

fn index(folder: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    // A kernel with all built in has none.
    if !folder.exists() {
        return Ok(());
    }
    for item in fs::read_dir(folder).map_err(|e| LabError::io(folder, e))? {
        let path = item.map_err(|e| LabError::io(folder, e))?.path();
        if path.is_dir() {
            index(&path, files)?;
        } else if path.to_string_lossy().contains(".ko") {
            files.insert(stem(&path.to_string_lossy()), path);
        }
    }
    Ok(())
}

fn visit(
    name: &str,
    builtin: &[String],
    files: &HashMap<String, PathBuf>,
    into: &Path,
    order: &mut Vec<PathBuf>,
) -> Result<()> {
    let target = into.join(format!("{name}.ko"));
    if order.contains(&target) || builtin.iter().any(|b| b == name) {
        return Ok(());
    }
    let file = files.get(name).ok_or_else(|| LabError::Missing {
        what: format!("this kernel has no module {name}, built in or not"),
        advice: "give --modules the folder lib/modules/RELEASE of that kernel".into(),
    })?;
    uncompress(file, &target)?;
    for needed in depends(&target)? {
        visit(&needed, builtin, files, into, order)?;
    }
    order.push(target);
    Ok(())
}

/// Modules come as .ko, .ko.xz, .ko.zst or .ko.gz; uncompressed here, once, and not in each boot of an emulated machine.
fn uncompress(file: &Path, target: &Path) -> Result<()> {
    let program = match file.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::copy(file, target).map(drop).map_err(|e| LabError::io(target, e)),
    };
    let out = fs::File::create(target).map_err(|e| LabError::io(target, e))?;
    let mut command = tool::command(program);
    tool::run_to(command.arg("-dc").arg(file), out, target)
}

fn depends(module: &Path) -> Result<Vec<String>> {
    let data = fs::read(module).map_err(|e| LabError::io(module, e))?;
    let broken = |e: object::Error| LabError::Invalid(format!("{}: not a kernel module: {e}", module.display()));
    let file = ElfFile64::<object::Endianness>::parse(&*data).map_err(broken)?;
    let Some(section) = file.section_by_name(".modinfo") else { return Ok(Vec::new()) };
    let info = section.data().map_err(broken)?;
    Ok(info
        .split(|b| *b == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="))
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty())
        .map(stem)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_folder_ending_and_dashes() {
        assert_eq!(stem("kernel/arch/x86/kvm/kvm-amd.ko.xz"), "kvm_amd");
        assert_eq!(stem("virtio_mmio"), "virtio_mmio");
    }

    #[test]
    fn what_is_built_in_is_left_out_and_what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("kernel")).unwrap();
        fs::write(dir.path().join("modules.builtin"), "kernel/virt/kvm/kvm.ko\n").unwrap();
        assert!(resolve(dir.path(), &["kvm"], dir.path()).unwrap().is_empty());
        let err = resolve(dir.path(), &["nosuch"], dir.path()).unwrap_err().to_string();
        assert!(err.contains("nosuch"), "{err}");
    }
}
