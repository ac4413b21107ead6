//! What a kernel's image says of itself: its architecture, and its release.
//!
//! Layouts: Documentation/arch/arm64/booting.rst and Documentation/arch/x86/boot.rst of the kernel's source.
use std::{fs, path::Path};

use crate::{LabError, Result, machine::Arch};

/// Offset of an arm64 Image's magic, and the magic.
const ARM64: (usize, &[u8]) = (56, b"ARM\x64");
/// Of a bzImage's.
const X86: (usize, &[u8]) = (0x202, b"HdrS");
/// Where a bzImage says, in two bytes, how far behind the first 512 bytes its release stands.
const X86_RELEASE: usize = 0x20e;
/// Flags of a bzImage; bit 0: it has a 64-bit entry point.
const X86_FLAGS: usize = 0x236;
/// How Linux begins when it says who it is (`linux_banner`).
const BANNER: &[u8] = b"Linux version ";

/// The release (`uname -r`) of the kernel in that file.
///
/// # Errors
/// It is no kernel image that QEMU boots on `arch`.
pub(super) fn release(image: &Path, arch: Arch) -> Result<String> {
    if !image.is_file() {
        return Err(LabError::Missing {
            what: format!("{}: there is no such file", image.display()),
            advice: format!("give --kernel {}, or 'running'", wanted(arch)),
        });
    }
    let data = fs::read(image).map_err(|e| LabError::io(image, e))?;
    let wrong =
        |what: &str| LabError::Invalid(format!("{} is {what}: give --kernel {}", image.display(), wanted(arch)));
    let has = |data: &[u8], (place, magic): (usize, &[u8])| data.get(place..place + magic.len()) == Some(magic);
    match (arch, has(&data, ARM64), has(&data, X86)) {
        (Arch::Aarch64, true, _) => {
            find_banner(&data).ok_or_else(|| wrong("a kernel image that does not tell its release"))
        }
        (Arch::X86_64, _, true) => x86(&data).map_err(wrong),
        (Arch::Aarch64, _, true) => Err(wrong("a kernel for x86, and the machine is aarch64")),
        (Arch::X86_64, true, _) => Err(wrong("a kernel for aarch64, and the machine is x86_64")),
        _ => Err(wrong(kind(&data))),
    }
}

/// What QEMU boots.
fn wanted(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "an uncompressed Image (arch/arm64/boot/Image, Debian's vmlinuz)",
        Arch::X86_64 => "a bzImage (arch/x86/boot/bzImage, Debian's vmlinuz)",
    }
}

/// What a file that is no bootable image probably is.
fn kind(data: &[u8]) -> &'static str {
    match data {
        [0x7f, b'E', b'L', b'F', ..] => "an ELF file, perhaps vmlinux, which is not what QEMU boots",
        [0x1f, 0x8b, ..] => "compressed with gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "compressed with zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "compressed with xz",
        [b'M', b'Z', _, _, b'z', b'i', b'm', b'g', ..] => "a compressed EFI image (zboot)",
        _ => "no kernel image",
    }
}

fn x86(data: &[u8]) -> std::result::Result<String, &'static str> {
    let pair = |place: usize| Some(u16::from_le_bytes(data.get(place..place + 2)?.try_into().ok()?));
    if pair(X86_FLAGS).is_none_or(|flags| flags & 1 == 0) {
        return Err("a kernel for 32-bit x86");
    }
    let place = pair(X86_RELEASE).filter(|place| *place != 0).map(|place| usize::from(place) + 0x200);
    place.and_then(|place| word(data.get(place..)?)).ok_or("a kernel image that does not tell its release")
}

fn find_banner(data: &[u8]) -> Option<String> {
    let mut places = data.windows(BANNER.len()).enumerate().filter(|(_, window)| *window == BANNER);
    // Format strings begin alike; a release begins with a digit.
    places.find_map(|(place, _)| word(&data[place + BANNER.len()..]))
}

/// The first word, if it can be a release.
fn word(data: &[u8]) -> Option<String> {
    let end = data.iter().take(65).position(|byte| matches!(byte, b' ' | 0))?;
    let word = std::str::from_utf8(&data[..end]).ok()?;
    word.starts_with(|c: char| c.is_ascii_digit()).then(|| word.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::image) fn aarch64(release: &str) -> Vec<u8> {
        let mut data = vec![0; 4096];
        data[56..60].copy_from_slice(b"ARM\x64");
        data.extend(b"Linux version %s (%s)\0");
        data.extend(format!("Linux version {release} (someone@somewhere) #1\0").bytes());
        data
    }

    fn x86(release: &str, flags: u8) -> Vec<u8> {
        let mut data = vec![0; 0x400];
        data[0x202..0x206].copy_from_slice(b"HdrS");
        data[X86_FLAGS] = flags;
        data[X86_RELEASE..X86_RELEASE + 2].copy_from_slice(&0x200u16.to_le_bytes());
        data.extend(format!("{release} (someone@somewhere) #1\0").bytes());
        data
    }

    fn told(data: &[u8], arch: Arch) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), data).unwrap();
        release(file.path(), arch).unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn images_tell_their_release() {
        assert_eq!(told(&aarch64("7.3.4+deb13-arm64"), Arch::Aarch64), "7.3.4+deb13-arm64");
        assert_eq!(told(&x86("7.3.4+deb13-amd64", 1), Arch::X86_64), "7.3.4+deb13-amd64");
    }

    #[test]
    fn what_is_no_image_for_the_machine_is_told() {
        assert!(told(&aarch64("7.3.4"), Arch::X86_64).contains("for aarch64"));
        assert!(told(&x86("7.3.4", 1), Arch::Aarch64).contains("for x86"));
        assert!(told(&x86("7.3.4", 0), Arch::X86_64).contains("32-bit"));
        assert!(told(b"\x7fELF....", Arch::X86_64).contains("ELF"));
        assert!(told(b"\x1f\x8b", Arch::Aarch64).contains("gzip"));
        assert!(told(b"", Arch::Aarch64).contains("no kernel image"));
        assert!(release(Path::new("/nowhere"), Arch::Aarch64).unwrap_err().to_string().contains("no such file"));
    }
}
