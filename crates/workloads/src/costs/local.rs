//! Costs on one CPU.

use super::Slice;
use crate::clock::now_ns;
use crate::cpu;
use crate::pages::Pages;
use crate::session::Session;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

const CALLS: u32 = 200;
const ROUND_TRIPS: u32 = 20;
const FAULTS: usize = 64;
/// A quarter of a common last-level cache, so that what is copied comes from a cache and not from memory.
const COPIED: usize = 256 << 10;
/// Far above any lateness, so that one timer does not meet the next.
const PERIOD_NS: u64 = 200_000;

/// A system call that does next to nothing, ns: lmbench's "simple syscall".
pub(super) fn syscall(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    let call = |count| {
        for _ in 0..count {
            // SAFETY: takes no argument and touches no memory; the raw call, since a library may keep its answer.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        Ok(())
    };
    slice.per_operation(CALLS, call).map(Some)
}

/// One look at the monotonic clock, ns: what a program pays, and a scheduler as often as it wants to know how long.
pub(super) fn clock(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    looks_at_the_clock(slice).map(Some)
}

pub(super) fn looks_at_the_clock(slice: Slice) -> Result<f64> {
    slice.per_operation(CALLS, |count| {
        (0..count).for_each(|_| look_at_the_clock());
        Ok(())
    })
}

pub(super) fn look_at_the_clock() {
    std::hint::black_box(now_ns());
}

/// The first touch of an anonymous page, ns.
pub(super) fn page_fault(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    let pages = Pages::small(FAULTS)?;
    let batch = || {
        for page in 0..FAULTS {
            pages.give_back(page)?;
        }
        let begin = now_ns();
        pages.touch_all();
        Ok((now_ns() - begin) as f64 / FAULTS as f64)
    };
    slice.median(batch).map(Some)
}

/// From one thread to another of the same CPU through a pipe, ns: half a round trip, lmbench's "pipe latency" pinned.
pub(super) fn switch(session: &Session, slice: Slice) -> Result<Option<f64>> {
    let (mut from_us, to_peer) = pipe()?;
    let (from_peer, to_us) = pipe()?;
    let cpu = session.cpu(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut to_us, mut byte) = (to_us, [0]);
            let _ = cpu::pin(cpu);
            // Ends with the pipe.
            while from_us.read_exact(&mut byte).is_ok() && to_us.write_all(&byte).is_ok() {}
        });
        send_round(cpu, slice, to_peer, from_peer)
    })
}

/// The same to another process, ns: a change of the address space is in it.
pub(super) fn process_switch(session: &Session, slice: Slice) -> Result<Option<f64>> {
    let (from_us, to_peer) = pipe()?;
    let (from_peer, to_us) = pipe()?;
    let cpu = session.cpu(0);
    // SAFETY: the child calls nothing but what is safe after a fork of a process with threads, and does not return.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()).context("cannot start a process"),
        0 => echo(cpu, from_us.as_raw_fd(), to_us.as_raw_fd()),
        child => child,
    };
    let measured = send_round(cpu, slice, to_peer, from_peer);
    // SAFETY: the child is ours, and is waited for here alone; no status is asked for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    measured
}

/// Sends back each byte that comes, until it is killed or its parent ends.
fn echo(cpu: usize, from: RawFd, to: RawFd) -> ! {
    let _ = cpu::pin(cpu);
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut byte = 0_u8;
    loop {
        let at = (&raw mut byte).cast();
        // SAFETY: the byte is ours; descriptors that are closed give an error.
        if unsafe { libc::read(from, at, 1) != 1 || libc::write(to, at, 1) != 1 } {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
    }
}

/// Half a round trip of a byte from a thread that is pinned to the CPU to whoever sends it back, ns.
fn send_round(cpu: usize, slice: Slice, mut to_peer: File, mut from_peer: File) -> Result<Option<f64>> {
    let measured = std::thread::spawn(move || {
        cpu::pin(cpu).context("cannot pin a thread")?;
        slice.per_operation(2 * ROUND_TRIPS, |switches| {
            for _ in 0..switches / 2 {
                to_peer.write_all(&[1])?;
                from_peer.read_exact(&mut [0])?;
            }
            Ok(())
        })
    });
    measured.join().expect("measuring does not panic").map(Some)
}

/// A copy from cache to cache, MB/s.
pub(super) fn copy(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    let ns = slice.per_operation(4, |count| {
        for _ in 0..count {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
        }
        Ok(())
    })?;
    Ok(Some(COPIED as f64 * 1e3 / ns))
}

/// How late a sleep ends, ns: the median, as cyclictest tells it.
pub(super) fn timer(_session: &Session, slice: Slice) -> Result<Option<f64>> {
    // SAFETY: takes numbers; a slack of 1 ns is the least that the kernel knows.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let batch = || {
        let due = now_ns() + PERIOD_NS;
        let at = libc::timespec { tv_sec: (due / 1_000_000_000) as _, tv_nsec: (due % 1_000_000_000) as _ };
        // SAFETY: the time is a value of our own; an absolute sleep writes no rest.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &at, std::ptr::null_mut()) };
        Ok(now_ns().saturating_sub(due).max(1) as f64)
    };
    slice.median(batch).map(Some)
}

/// Both ends of a pipe: to read, to write.
fn pipe() -> Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for the two descriptors, which are ours alone.
    unsafe {
        anyhow::ensure!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) == 0, io::Error::last_os_error());
        Ok((File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1])))
    }
}
