//! What a communicator's thread does, one operation after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::Receiver;

use crate::codes::{SUCCESS, UNHANDLED_CUDA, because};
use crate::driver::Driver;
use crate::faults::{Fate, fate};
use crate::hub::{Hub, Id, What};

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    All { what: What, from: u64, to: u64 },
    Send { peer: u32, from: u64, bytes: usize },
    Receive { peer: u32, to: u64, bytes: usize },
}

/// An operation, and the stream that waits for it.
pub(crate) struct Job {
    /// Its number, where faults count it.
    pub(crate) number: Option<u64>,
    pub(crate) stream: Option<usize>,
    pub(crate) steps: Vec<Step>,
}

/// What a communicator and its thread share.
pub(crate) struct Shared {
    pub(crate) id: Id,
    pub(crate) rank: u32,
    pub(crate) hub: Arc<Hub>,
    pub(crate) driver: &'static Driver,
    pub(crate) context: usize,
    /// What `ncclCommGetAsyncError` gives.
    pub(crate) state: AtomicI32,
    pub(crate) failed: AtomicBool,
    pub(crate) aborted: AtomicBool,
}

impl Shared {
    pub(crate) fn run(&self, jobs: &Receiver<Job>) {
        self.driver.enter(self.context);
        let mut round = 0;
        for job in jobs {
            let connects = job.number == Some(0);
            if connects && !self.failed.load(SeqCst) {
                self.state.store(SUCCESS, SeqCst);
            }
            // Behind a failure, what is queued ends without its work.
            if !self.failed.load(SeqCst) {
                match self.perform(&job, &mut round) {
                    Ok(()) if job.number.is_none() => self.state.store(SUCCESS, SeqCst),
                    Ok(()) => {}
                    Err(code) => {
                        self.failed.store(true, SeqCst);
                        self.state.store(code, SeqCst);
                    }
                }
            } else if job.number.is_some_and(|number| matches!(fate(&self.id, self.rank, number), Fate::Lost)) {
                // A rank that ends does so, though its communicator was aborted before.
                self.hub.lose(self.rank);
            }
            if let Some(stream) = job.stream {
                self.driver.release(stream);
            }
        }
    }

    fn perform(&self, job: &Job, round: &mut u64) -> Result<(), i32> {
        match job.number.map_or(Fate::Done, |number| fate(&self.id, self.rank, number)) {
            Fate::Done => {}
            Fate::Hang => return Err(self.hub.hang(self.rank, &self.aborted)),
            Fate::Fail(code) => return Err(because(code, "the test wants it so")),
            Fate::Lost => {
                self.hub.lose(self.rank);
                return Err(self.hub.hang(self.rank, &self.aborted));
            }
        }
        // What is sent goes first, so that messages in both directions do not wait for one another.
        for step in &job.steps {
            if let Step::Send { peer, from, bytes } = *step {
                self.hub.send(self.rank, peer, self.read(from, bytes)?);
            }
        }
        for step in &job.steps {
            match *step {
                Step::Send { .. } => {}
                Step::Receive { peer, to, bytes } => {
                    let found = self.hub.receive(peer, self.rank, &self.aborted, bytes)?;
                    self.write(to, &found)?;
                }
                Step::All { what, from, to } => {
                    self.all(what, *round, from, to)?;
                    *round += 1;
                }
            }
        }
        Ok(())
    }

    fn all(&self, what: What, round: u64, from: u64, to: u64) -> Result<(), i32> {
        let mine = match what {
            What::Gather { bytes } | What::Sum { bytes } => self.read(from, bytes)?,
            What::Broadcast { bytes, root } if root == self.rank => self.read(from, bytes)?,
            _ => Vec::new(),
        };
        let all = self.hub.meet(self.rank, &self.aborted, round, what, &mine)?;
        match what {
            What::Join | What::Finish => Ok(()),
            What::Gather { .. } => self.write(to, &all.concat()),
            What::Broadcast { root, .. } => self.write(to, &all[root as usize]),
            What::Sum { .. } => {
                let values = |bytes: &[u8]| -> Vec<f32> {
                    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
                };
                let mut parts = all.iter().rev().map(|part| values(part));
                let mut sums = parts.next().unwrap_or_default();
                parts.for_each(|part| sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value));
                let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                self.write(to, &bytes)
            }
        }
    }

    fn read(&self, at: u64, bytes: usize) -> Result<Vec<u8>, i32> {
        self.driver
            .read(at, bytes)
            .map_err(|code| because(UNHANDLED_CUDA, &format!("a copy from the device gave {code}")))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.driver
            .write(at, bytes)
            .map_err(|code| because(UNHANDLED_CUDA, &format!("a copy to the device gave {code}")))
    }
}
