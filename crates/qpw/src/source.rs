//! The module's source, DKMS description and systemd unit, as part of the program.

use std::io;
use std::path::Path;

macro_rules! files {
    ($($folder:literal / $name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name)))),*]
    };
}

/// What kbuild needs: name and text.
pub const FILES: &[(&str, &str)] = files![
    "module" / "Kbuild",
    "module" / "qpw.h",
    "module" / "layout.h",
    "module" / "main.c",
    "module" / "hot.c",
    "module" / "symbols.c",
    "module" / "cpus.c",
    "module" / "lru.c",
    "module" / "slub.c",
    "module" / "sheaves.c",
    "module" / "cpu_slab.c",
    "module" / "policy.c",
    "module" / "memcg.c",
    "module" / "queue.c",
    "module" / "entrain_qpw.h",
    "module" / "stats.c",
];

/// What DKMS and systemd need besides.
const EXTRAS: &[(&str, &str)] = files!["dist" / "dkms.conf", "dist" / "check.sh", "dist" / "entrain-qpw.service"];

/// A module of somebody else's that uses the pattern, for `example/` in the folder that the module was built in.
pub const EXAMPLE: &[(&str, &str)] = files!["example" / "Kbuild", "example" / "entrain_qpw_example.c"];

/// Writes what kbuild needs into `dir`, which is made if it is missing.
///
/// # Errors
/// Those of the file system.
pub fn write(dir: &Path) -> io::Result<()> {
    write_all(dir, FILES, Path::new("entrain"))
}

/// Writes a DKMS source folder, `dir/entrain-qpw-VERSION`, with the systemd unit in it, which runs `program`; returns that
/// folder.
///
/// # Errors
/// Those of the file system.
pub fn write_dkms(dir: &Path, program: &Path) -> io::Result<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir.join(concat!("entrain-qpw-", env!("CARGO_PKG_VERSION")));
    write_all(&dir, FILES, program)?;
    write_all(&dir, EXTRAS, program)?;
    std::fs::set_permissions(dir.join("check.sh"), std::fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

fn write_all(dir: &Path, files: &[(&str, &str)], program: &Path) -> io::Result<()> {
    let program = program.display().to_string();
    std::fs::create_dir_all(dir)?;
    for (name, text) in files {
        std::fs::write(
            dir.join(name),
            text.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("@PROGRAM@", &program),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kbuild_lists_every_c_file() {
        let kbuild = FILES[0].1;
        for (name, _) in FILES.iter().filter(|(name, _)| name.ends_with(".c")) {
            assert!(kbuild.contains(&name.replace(".c", ".o")), "{name}");
        }
    }

    #[test]
    fn dkms_folder_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let made = write_dkms(dir.path(), Path::new("/usr/bin/entrain")).unwrap();
        let text = std::fs::read_to_string(made.join("dkms.conf")).unwrap();
        assert!(text.contains(env!("CARGO_PKG_VERSION")) && !text.contains("@VERSION@"));
        assert!(made.join("Kbuild").exists());
        // Issue 24: it named /usr/local/bin, where packages install nothing.
        let unit = std::fs::read_to_string(made.join("entrain-qpw.service")).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/entrain isolate qpw load\n") && !unit.contains('@'), "{unit}");
    }
}
