//! Time dilation for one process: its clocks run N times slower than the computer's.
//!
//! An emulated CPU is 20 to 40 times slower than a real one. If the clocks of its machine are slowed down as much, whatever
//! runs inside sees a computer: a time slice holds as much work as it does on hardware (Gupta et al., "To Infinity and
//! Beyond: Time-Warped Network Emulation", NSDI 2006).
//!
//! The clock is a small library that is preloaded into an unchanged QEMU. QEMU's own interface for time (plugins that
//! control it) moves the clock in steps, when a plugin's callback runs on some vCPU; the kernel inside then sees a clock
//! that stands still between callbacks, and each callback costs. The preloaded clock is continuous and costs a
//! read of the computer's counter per look, or a system call for a machine that has the computer's counter itself. It is
//! told its factor through a page of memory, so the factor may change while the machine runs.

mod page;

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};

use self::page::Page;

/// The compiled clock.c.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/clock.so"));
/// Names the page to the library.
const PAGE_VARIABLE: &str = "ENTRAIN_LAB_CLOCK";

/// Factors beyond this one are a mistake: the slowest emulator is some hundred times slower than a computer, times the
/// CPUs that share one.
pub const MAX_FACTOR: f64 = 10_000.0;

/// The clock of one process that is yet to be started, or runs.
#[derive(Debug)]
pub struct Dilation {
    library: File,
    page: Page,
}

impl Dilation {
    /// A clock that runs as the computer's does, for now. `counted`: the process lets its machine read the computer's own
    /// time stamp counter, which has to follow the clock (x86_64 on x86_64); each look at the clock then costs more.
    ///
    /// # Errors
    /// If memory for the library and the page can't be had.
    pub fn new(counted: bool) -> io::Result<Self> {
        let mut library = File::from(memfd_create("entrain-lab-clock", MemfdFlags::CLOEXEC)?);
        library.write_all(LIBRARY)?;
        Ok(Self { library, page: Page::new(counted)? })
    }

    /// Variables for the process's environment. They name descriptors, which it has to inherit: [`Self::inherited`].
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let path = |fd: i32| format!("/proc/self/fd/{fd}");
        [("LD_PRELOAD", path(self.library.as_raw_fd())), (PAGE_VARIABLE, path(self.page.file().as_raw_fd()))]
    }

    /// Descriptors that must stay open over the process's exec, under their numbers.
    pub fn inherited(&self) -> [BorrowedFd<'_>; 2] {
        [self.library.as_fd(), self.page.file().as_fd()]
    }

    /// From now on the process's time passes `factor` times slower than the computer's. Its clocks do not jump.
    ///
    /// # Panics
    /// If the factor lies outside 1/[`MAX_FACTOR`] to [`MAX_FACTOR`].
    pub fn set(&self, factor: f64) {
        assert!((1.0 / MAX_FACTOR..=MAX_FACTOR).contains(&factor), "no machine runs {factor} times slower");
        self.page.set(factor);
    }

    /// How many times slower the process's time passes.
    pub fn factor(&self) -> f64 {
        self.page.factor()
    }

    /// The process's monotonic clock, now.
    pub fn now(&self) -> Duration {
        self.page.now()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Command, Stdio},
        time::Instant,
    };

    use super::*;

    /// A dynamic program of this computer under a clock.
    fn run(dilation: &Dilation, argv: [&str; 2]) -> String {
        let mut command = Command::new(argv[0]);
        command.arg(argv[1]).envs(dilation.environment()).stderr(Stdio::inherit());
        let fds = dilation.inherited().map(|fd| fd.as_raw_fd());
        // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe, on descriptors that are open.
        unsafe {
            command.pre_exec(move || {
                for fd in fds {
                    rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(fd), rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{argv:?}: {}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_sleep_takes_as_much_longer() {
        for counted in [false, true] {
            let dilation = Dilation::new(counted).unwrap();
            dilation.set(20.0);
            let (begun, machine) = (Instant::now(), dilation.now());
            run(&dilation, ["sleep", "0.05"]);
            let (wall, inside) = (begun.elapsed(), dilation.now() - machine);
            assert!(wall >= Duration::from_millis(1000), "{wall:?}");
            // What starting the program took is divided.
            assert!(inside >= Duration::from_millis(50) && inside < wall / 15, "{inside:?} of {wall:?}");
        }
    }

    #[test]
    fn a_sleeper_follows_a_change() {
        let dilation = Dilation::new(false).unwrap();
        dilation.set(1000.0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| run(&dilation, ["sleep", "0.2"]));
            std::thread::sleep(Duration::from_millis(50));
            dilation.set(1.0);
            sleeper.join().unwrap();
        });
        assert!(begun.elapsed() < Duration::from_secs(100), "200 s at the first factor");
    }

    #[test]
    fn its_date_is_near_the_computers() {
        for counted in [false, true] {
            let dilation = Dilation::new(counted).unwrap();
            dilation.set(10.0);
            let date: i64 = run(&dilation, ["date", "+%s"]).trim().parse().unwrap();
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
            assert!((now - date).abs() < 600, "{date} and {now}");
        }
    }
}
