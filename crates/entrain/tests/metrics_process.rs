//! The process that serves metrics, as the daemon starts it; this test is the daemon.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

/// The process, the daemon's end of its channel, and where it listens.
fn start() -> (Child, UnixStream, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    let (own, theirs) = UnixStream::pair().expect("a pair");
    own.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let child = Command::new(env!("CARGO_BIN_EXE_entrain"))
        .args(["host", "--serve-metrics"])
        .stdin(OwnedFd::from(listener))
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .expect("it starts");
    (child, own, address)
}

/// Sends a request while `answer` plays the daemon, which is asked once. What the client gets.
fn scrape(address: std::net::SocketAddr, daemon: &mut UnixStream, answer: &str) -> String {
    let mut client = TcpStream::connect(address).expect("listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("takes it");
    let mut byte = [0];
    daemon.read_exact(&mut byte).expect("asked");
    assert_eq!(&byte, b"s");
    daemon
        .write_all(&(answer.len() as u32).to_le_bytes())
        .and_then(|()| daemon.write_all(answer.as_bytes()))
        .expect("sent");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("answers");
    text
}

#[test]
fn it_serves_without_a_right_and_ends_without_the_daemon() {
    let (mut child, mut daemon, address) = start();
    let text = scrape(address, &mut daemon, r#"{"error":"the daemon is ending or busy"}"#);
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {status}"));
        line.split_whitespace().nth(1).expect("a value").to_owned()
    };
    for (name, wanted) in [("CapEff:", 0), ("CapPrm:", 0), ("NoNewPrivs:", 1), ("Seccomp:", 2)] {
        assert_eq!(u64::from_str_radix(&field(name), 16), Ok(wanted), "{name}");
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).expect("it runs");
    assert!(limits.contains("Max open files            64"), "{limits}");
    drop(daemon);
    // It notices at the next scrape, if it is not told by the end of the thread that started it.
    let mut client = TcpStream::connect(address).expect("listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("takes it");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn an_answer_that_is_none_ends_it() {
    let (mut child, mut daemon, address) = start();
    let mut client = TcpStream::connect(address).expect("listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("takes it");
    daemon.read_exact(&mut [0]).expect("asked");
    daemon.write_all(&u32::MAX.to_le_bytes()).expect("sent");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}
