//! What a VM is called.

use std::fs;

use entrain_system::Root;

/// A name for people: what the VMM was given as `-name`, `--name` or `--id`, else the program's name; with the pid.
pub fn name(root: &Root, pid: i32) -> String {
    let comm = root.text(format!("proc/{pid}/comm")).unwrap_or_default();
    let line = fs::read(root.path(format!("proc/{pid}/cmdline"))).unwrap_or_default();
    chosen_name(&comm, &line).unwrap_or_else(|| format!("pid {pid}"))
}

/// The name in a process's `comm` and `cmdline`, which are the VMM's and its user's choice and go to logs, terminals and
/// labels: at most 40 characters, none of them a control character. `None` where nothing is left.
pub(crate) fn chosen_name(comm: &str, line: &[u8]) -> Option<String> {
    let words: Vec<String> = line.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let named = words.windows(2).find(|pair| matches!(pair[0].as_str(), "-name" | "--name" | "--id"));
    let named = named.map(|pair| {
        let value = pair[1].split(',').next().unwrap_or_default();
        value.strip_prefix("guest=").unwrap_or(value).to_owned()
    });
    let text = named.filter(|name| !name.is_empty()).unwrap_or_else(|| comm.trim().to_owned());
    let clean: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
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
        put(3, "crosvm\n", b"crosvm\0run\0");
        assert_eq!(name(&machine.root(), 1), "web1");
        assert_eq!(name(&machine.root(), 2), "a[31mb");
        assert_eq!(name(&machine.root(), 3), "crosvm");
        assert_eq!(name(&machine.root(), 4), "pid 4");
    }
}
