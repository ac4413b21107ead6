//! Which shared libraries a program needs, found in a tree of unpacked packages.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use object::{
    Architecture, Object, ObjectSection,
    elf::{self, FileHeader64},
    read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader},
};

use crate::{LabError, Result, machine::Arch};

type Header = FileHeader64<object::Endianness>;

/// The libraries (and the loader) that `programs` need, as path in the tree → file. Paths have no leading slash.
///
/// Packages of today's Debian put all libraries below `usr/lib`.
pub fn libraries(tree: &Path, arch: Arch, programs: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    let triplet = format!("{}-linux-gnu", arch.name());
    let mut found = BTreeMap::new();
    let mut queue: Vec<PathBuf> = programs.to_vec();
    while let Some(program) = queue.pop() {
        let needs = needs(&program)?;
        let mut folders = vec![format!("usr/lib/{triplet}"), "usr/lib".to_owned()];
        folders.extend(needs.runpath.iter().map(|p| p.trim_start_matches('/').to_owned()));
        for name in needs.libraries {
            if found.keys().any(|path: &String| path.rsplit('/').next() == Some(&name)) {
                continue;
            }
            let place = folders.iter().map(|f| format!("{f}/{name}")).find(|p| tree.join(p).exists());
            let place = place.ok_or_else(|| LabError::Missing {
                what: format!("{} needs {name}, which no unpacked package holds", program.display()),
                advice: "run 'entrain lab clean' and try again".into(),
            })?;
            queue.push(tree.join(&place));
            found.insert(place.clone(), tree.join(place));
        }
        if let Some(loader) = needs.loader {
            // "/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-x86-64.so.2": both folders are links into /usr.
            let path = format!("usr/{}", loader.trim_start_matches('/'));
            let name = loader.rsplit('/').next().unwrap_or_default();
            let file =
                [tree.join(&path), tree.join(format!("usr/lib/{triplet}/{name}"))].into_iter().find(|p| p.exists());
            let file = file.ok_or_else(|| LabError::Missing {
                what: format!("{} needs the loader {loader}, which no unpacked package holds", program.display()),
                advice: "run 'entrain lab clean' and try again".into(),
            })?;
            found.insert(path, file);
        }
    }
    Ok(found)
}

#[derive(Debug, Default)]
struct Needs {
    libraries: Vec<String>,
    runpath: Vec<String>,
    loader: Option<String>,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| LabError::io(path, e))
}

fn broken(path: &Path, e: impl std::fmt::Display) -> LabError {
    LabError::Invalid(format!("{}: not a 64-bit ELF file that the lab can read: {e}", path.display()))
}

fn needs(path: &Path) -> Result<Needs> {
    let data = read(path)?;
    let header = Header::parse(&*data).map_err(|e| broken(path, e))?;
    let endian = header.endian().map_err(|e| broken(path, e))?;
    let mut needs = Needs::default();
    for segment in header.program_headers(endian, &*data).map_err(|e| broken(path, e))? {
        if let Ok(Some(loader)) = segment.interpreter(endian, &*data) {
            needs.loader = Some(String::from_utf8_lossy(loader).into_owned());
        }
    }
    let sections = header.sections(endian, &*data).map_err(|e| broken(path, e))?;
    let Some((entries, link)) = sections.dynamic(endian, &*data).map_err(|e| broken(path, e))? else {
        return Ok(needs);
    };
    let strings = sections.strings(endian, &*data, link).map_err(|e| broken(path, e))?;
    for entry in entries {
        let tag = entry.tag(endian);
        if ![elf::DT_NEEDED, elf::DT_RUNPATH, elf::DT_RPATH].contains(&tag) {
            continue;
        }
        let text = entry.string(endian, strings).map_err(|e| broken(path, e))?;
        let text = String::from_utf8_lossy(text).into_owned();
        if tag == elf::DT_NEEDED {
            needs.libraries.push(text);
        } else {
            needs.runpath.extend(text.split(':').map(str::to_owned));
        }
    }
    Ok(needs)
}

/// Is this a program of that architecture?
pub fn is_for(path: &Path, arch: Arch) -> bool {
    let Ok(data) = fs::read(path) else { return false };
    let Ok(file) = ElfFile64::<object::Endianness>::parse(&*data) else { return false };
    match arch {
        Arch::Aarch64 => file.architecture() == Architecture::Aarch64,
        Arch::X86_64 => file.architecture() == Architecture::X86_64,
    }
}

/// The names of busybox' applets: a run of strings in its read-only data that begins with "[" and "[[".
pub fn busybox_applets(path: &Path) -> Result<Vec<String>> {
    let data = read(path)?;
    let file = ElfFile64::<object::Endianness>::parse(&*data).map_err(|e| broken(path, e))?;
    let section = file.section_by_name(".rodata").ok_or_else(|| broken(path, "no .rodata"))?;
    let bytes = section.data().map_err(|e| broken(path, e))?;
    let begin = b"[\0[[\0";
    let start = bytes.windows(begin.len()).position(|w| w == begin).ok_or_else(|| broken(path, "no applets"))?;
    Ok(bytes[start..]
        .split(|b| *b == 0)
        .take_while(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}
