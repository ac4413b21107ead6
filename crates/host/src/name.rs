//! What a VM is called.

use std::fs::File;
use std::io::Read;

use entrain_system::{Root, is_plain};

/// Bytes of a command line that are looked at: the kernel lets a user's be hundreds of megabytes long, and a VMM has its
/// name among the first words.
const LINE: u64 = 64 << 10;

/// A name for people: what the VMM was given as `-name`, `--name` or `--id`, else the program's name; with the pid.
pub fn name(root: &Root, pid: i32) -> String {
    let comm = root.text(format!("proc/{pid}/comm")).unwrap_or_default();
    let mut line = Vec::new();
    if let Ok(file) = File::open(root.path(format!("proc/{pid}/cmdline"))) {
        // What was read until an error is what there is.
        let _ = file.take(LINE).read_to_end(&mut line);
    }
    chosen_name(&comm, &line).unwrap_or_else(|| format!("pid {pid}"))
}

/// The name in a process's `comm` and `cmdline`, which are the VMM's and its user's choice and go to logs, terminals and
/// labels: at most 40 characters, all of them [`is_plain`]. `None` where nothing is left.
pub(crate) fn chosen_name(comm: &str, line: &[u8]) -> Option<String> {
    let words: Vec<String> = line.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let named = words.windows(2).find(|pair| matches!(pair[0].as_str(), "-name" | "--name" | "--id"));
    let named = named.map(|pair| {
        let value = pair[1].split(',').next().unwrap_or_default();
        value.strip_prefix("guest=").unwrap_or(value).to_owned()
    });
    let text = named.filter(|name| !name.is_empty()).unwrap_or_else(|| comm.trim().to_owned());
    let clean: String = text.chars().filter(|c| is_plain(*c)).take(40).collect();
    (!clean.is_empty()).then_some(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::Machine;

    #[test]
    fn names_come_from_the_command_line_and_carry_no_control_characters() {
        let machine = Machine::default();
        let put = |pid: i32, comm: &str, line: &[u8]| {
            machine.put(&format!("proc/{pid}/comm"), comm);
            machine.put(&format!("proc/{pid}/cmdline"), line);
        };
        put(1, "qemu-system-x86\n", b"qemu\0-name\0guest=web1,debug-threads=on\0-m\x00512\0");
        put(2, "firecracker\n", b"firecracker\0--id\0a\x1b[31mb\0");
        put(5, "qemu\n", "qemu\0-name\0db\u{202e}1-\u{2066}bew\u{200b}\0".as_bytes());
        put(6, "qemu\n", &[b"qemu\0".as_slice(), &vec![b'x'; 1 << 20], b"\0-name\0far\0"].concat());
        put(3, "crosvm\n", b"crosvm\0run\0");
        assert_eq!(name(&machine.root(), 1), "web1");
        assert_eq!(name(&machine.root(), 2), "a[31mb");
        assert_eq!(name(&machine.root(), 3), "crosvm");
        assert_eq!(name(&machine.root(), 4), "pid 4");
        assert_eq!(name(&machine.root(), 5), "db1-bew", "nothing reads from the right");
        assert_eq!(name(&machine.root(), 6), "qemu", "what stands behind a megabyte is not looked for");
    }
}
