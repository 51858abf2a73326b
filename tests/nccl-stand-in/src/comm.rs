//! A communicator: its thread, and the queue of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::codes::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, because};
use crate::faults::refused;
use crate::work::{Job, Shared, Step};

pub(crate) struct Comm {
    pub(crate) shared: Arc<Shared>,
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
    operations: AtomicU64,
}

/// The communicator of a handle.
///
/// # Safety
/// The handle is null, or was given out and not taken back.
pub(crate) unsafe fn of<'c>(handle: *mut Comm) -> Result<&'c Comm, i32> {
    // SAFETY: as the caller says.
    unsafe { handle.as_ref() }.ok_or_else(|| because(INVALID_ARGUMENT, "the communicator is null"))
}

impl Comm {
    pub(crate) fn new(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let (jobs, queue) = channel();
        let own = Arc::clone(&shared);
        Self { shared, jobs, thread: std::thread::spawn(move || own.run(&queue)), operations: AtomicU64::new(0) }
    }

    /// Whether a call may be made: none before the last one was taken, and none after a failure.
    pub(crate) fn ready(&self) -> Result<(), i32> {
        match self.shared.state.load(SeqCst) {
            SUCCESS => Ok(()),
            IN_PROGRESS => Err(because(INVALID_USAGE, "a call while the one before is in progress")),
            code => Err(because(code, "the communicator has failed before")),
        }
    }

    /// Queues what is no operation: joining and finishing.
    pub(crate) fn progress(&self, step: Step) -> Result<(), i32> {
        self.shared.state.store(IN_PROGRESS, SeqCst);
        self.queue(Job { number: None, stream: None, steps: vec![step] })?;
        Err(IN_PROGRESS)
    }

    /// Queues an operation. The first one goes on by itself, as NCCL's connects the ranks.
    pub(crate) fn operate(&self, stream: usize, steps: Vec<Step>) -> Result<(), i32> {
        let number = self.operations.fetch_add(1, SeqCst);
        if let Some(code) = refused(&self.shared.id, self.shared.rank, number) {
            return Err(because(code, "the test wants it so"));
        }
        if number == 0 {
            self.shared.state.store(IN_PROGRESS, SeqCst);
        }
        self.shared.driver.hold(stream);
        self.queue(Job { number: Some(number), stream: Some(stream), steps })?;
        if number == 0 { Err(IN_PROGRESS) } else { Ok(()) }
    }

    fn queue(&self, job: Job) -> Result<(), i32> {
        self.jobs.send(job).map_err(|_| because(INVALID_USAGE, "the communicator's thread has ended"))
    }

    /// Ends it. What is queued is done before, or, after an abort, is let go.
    pub(crate) fn end(self) {
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        // A thread that panicked has said so.
        let _ = thread.join();
    }
}
