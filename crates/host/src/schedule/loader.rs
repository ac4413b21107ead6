//! Loads the scheduler, in a thread of its own: that can take seconds, in which the heartbeat must go on, and takes
//! capabilities that the main loop has given up. The thread sees nothing that a guest or a client writes.

use std::io;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tracing::warn;

use super::{Options, ScheduleError, Scheduler};
use crate::privilege;

/// What the thread does.
enum Job {
    /// Loads a scheduler and starts it.
    Load,
    /// Unloads one that has ended.
    Unload(Box<Scheduler>),
}

/// The thread's other end.
pub(super) struct Loader {
    jobs: Sender<Job>,
    results: Receiver<Result<Scheduler, ScheduleError>>,
}

impl Loader {
    /// Starts the thread; it ends with this.
    pub(super) fn spawn(options: Options) -> io::Result<Self> {
        let (jobs, todo) = unbounded();
        let (done, results) = bounded(1);
        thread::Builder::new().name("loader".into()).spawn(move || {
            if let Err(error) = privilege::drop_for_loading() {
                warn!("the thread that loads the scheduler cannot give up capabilities: {error}");
            }
            for job in todo {
                match job {
                    // The receiver goes with the daemon.
                    Job::Load => drop(done.send(Scheduler::start(&options))),
                    Job::Unload(ended) => drop(ended),
                }
            }
        })?;
        Ok(Self { jobs, results })
    }

    /// Begins to load a scheduler. One at a time: the last one's result has been taken.
    pub(super) fn begin(&self) {
        // Fails only if the thread has died, which the result tells.
        let _ = self.jobs.send(Job::Load);
    }

    /// Unloads a scheduler that has ended, before the next is loaded.
    pub(super) fn unload(&self, ended: Scheduler) {
        // Without the thread it is unloaded here.
        let _ = self.jobs.send(Job::Unload(Box::new(ended)));
    }

    /// The result of what was begun, if it is there.
    pub(super) fn poll(&self) -> Option<Result<Scheduler, ScheduleError>> {
        match self.results.try_recv() {
            Ok(result) => Some(result),
            Err(error) if error.is_empty() => None,
            Err(_) => Some(Err(ScheduleError::LoaderDied)),
        }
    }

    /// The same, as soon as it is there.
    pub(super) fn wait(&self) -> Result<Scheduler, ScheduleError> {
        self.results.recv().unwrap_or_else(|_| Err(ScheduleError::LoaderDied))
    }
}
