//! What a VMM's process says of itself in `/proc`.

pub(crate) fn run(data: &[u8]) {
    // Four files, one after the other, each closed by a byte that no text holds.
    let mut parts = data.split(|byte| *byte == 0xff);
    let mut part = || parts.next().unwrap_or_default();
    let (comm, line) = (String::from_utf8_lossy(part()).into_owned(), part());
    let (cgroup, maps) = (String::from_utf8_lossy(part()), String::from_utf8_lossy(part()));
    entrain_host::untrusted::process(&comm, line, &cgroup, &maps);
}
