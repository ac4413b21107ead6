//! Looks into VMMs' processes from a thread that may be lost.
//!
//! What is read of another process may be held up by whoever owns it: the kernel waits for a page that a FUSE server or a
//! userfaultfd handler is to bring, or for a lock of the process's memory map while that happens. Such a wait ends when its
//! cause does, or with the process; no signal but SIGKILL ends it earlier. So the daemon looks from a thread of its own,
//! and goes on without it when it does not answer: what it was looking at is lost, and no pairing. Its user is not looked
//! at again before it has come back, and where too many are held up nobody is; what is paired goes on meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded, unbounded};
use tracing::{error, warn};

use crate::said;
use crate::seccomp::{Part, confine_or_say};

/// How long a look may take. Looks end by themselves after a few milliseconds; the rest is for a busy host. The
/// heartbeat does not wait for them.
const PATIENCE: Duration = Duration::from_millis(500);
/// Threads that may be held up at a time: each costs its stack.
const MOST: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// The thread, and those that were lost.
#[derive(Default)]
pub(crate) struct Eyes {
    jobs: Option<Sender<Job>>,
    lost: Vec<Lost>,
}

/// A thread that is held up.
struct Lost {
    user: u32,
    back: Arc<AtomicBool>,
}

impl Eyes {
    /// Does `look` for a VM of `user`. `None`: it is held up, or an earlier one for this user is; or it has panicked, which
    /// is a fault of this program and ends that look alone.
    pub(crate) fn ask<T: Send + 'static>(&mut self, user: u32, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.ask_within(PATIENCE, user, look)
    }

    fn ask_within<T: Send + 'static>(
        &mut self,
        patience: Duration,
        user: u32,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !self.serves(user) {
            return None;
        }
        let (put, answer) = bounded(1);
        let back = Arc::<AtomicBool>::default();
        let done = back.clone();
        let job = Box::new(move || {
            let seen = look();
            done.store(true, Ordering::Release);
            // Nobody waits any more, perhaps.
            let _ = put.send(seen);
        });
        self.thread().ok()?.send(job).ok()?;
        let failed = match answer.recv_timeout(patience) {
            Ok(seen) => return Some(seen),
            Err(error) => error,
        };
        self.jobs = None;
        if failed == RecvTimeoutError::Timeout {
            self.lost.push(Lost { user, back });
        }
        let lost = self.lost.len();
        if said::may(user, u32::MAX) {
            match failed {
                RecvTimeoutError::Timeout => warn!(
                    "looking into a VM's process of user {user} is held up (memory that somebody has yet to bring?); its VMs \
                     are not looked at before that ends; {lost} of {MOST} such"
                ),
                RecvTimeoutError::Disconnected => {
                    error!(
                        "a look into a VM's process of user {user} failed, which is a fault of entrain: please report it"
                    )
                }
            }
        }
        None
    }

    /// Whether VMs of this user can be looked at.
    pub(crate) fn serves(&mut self, user: u32) -> bool {
        self.lost.retain(|lost| !lost.back.load(Ordering::Acquire));
        self.lost.len() < MOST && self.lost.iter().all(|lost| lost.user != user)
    }

    fn thread(&mut self) -> io::Result<&Sender<Job>> {
        if self.jobs.is_none() {
            let (jobs, todo) = unbounded::<Job>();
            // It ends after the look that it is held up in: its end of the queue is gone then.
            std::thread::Builder::new().name("eyes".into()).spawn(move || {
                confine_or_say(Part::Eyes);
                todo.into_iter().for_each(|job| job());
            })?;
            self.jobs = Some(jobs);
        }
        Ok(self.jobs.as_ref().expect("made above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// Issue 23, finding 4: memory on FUSE that never answers.
    #[test]
    fn who_is_held_up_costs_one_wait_and_nobody_else_their_turn() {
        let mut eyes = Eyes::default();
        let (release, held) = bounded::<()>(0);
        let hangs = move || held.recv().is_err();
        assert_eq!(eyes.ask_within(SHORT, 1000, hangs), None);
        assert!(!eyes.serves(1000) && eyes.ask(1000, || 1).is_none(), "without another wait");
        assert_eq!(eyes.ask(1001, || 2), Some(2));
        drop(release);
        while !eyes.serves(1000) {
            std::thread::sleep(SHORT);
        }
        assert_eq!(eyes.ask(1000, || 3), Some(3));
    }

    /// Whose look panicked was taken for held up, and as it never came back its user was never looked at again; sixteen
    /// of them, and nobody was.
    #[test]
    fn a_look_that_fails_costs_that_look_alone() {
        let mut eyes = Eyes::default();
        for user in 0..2 * MOST as u32 {
            assert_eq!(eyes.ask(user, || -> u32 { panic!("as a fault of ours does") }), None);
            assert_eq!(eyes.ask(user, || 1), Some(1));
        }
    }

    #[test]
    fn many_that_are_held_up_are_bounded() {
        let mut eyes = Eyes::default();
        let (release, held) = bounded::<()>(0);
        for user in 0..2 * MOST as u32 {
            let held = held.clone();
            assert_eq!(eyes.ask_within(Duration::from_millis(2), user, move || held.recv().is_err()), None);
        }
        assert_eq!(eyes.lost.len(), MOST);
        drop(release);
        while !eyes.serves(0) {
            std::thread::sleep(SHORT);
        }
    }
}
