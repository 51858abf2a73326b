//! A communicator, the stream that its host messages go through, and the waits, each of which has a deadline.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use gradwire::CollectiveError;

use super::driver::Driver;
use super::table::{Comm, Config, IN_PROGRESS, SUCCESS, Stream, Table, UniqueId};

/// For so long a wait asks again at once; after it, it sleeps between two looks.
const EAGER: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// What a group is made with, besides its communicator.
pub(super) struct Parts {
    pub(super) table: Table,
    pub(super) driver: Driver,
    pub(super) stream: Stream,
    /// Whether communicator and stream are the group's own.
    pub(super) owned: bool,
    pub(super) deadline: Duration,
}

/// A rank's end of a communicator.
pub(super) struct Group {
    pub(super) table: Table,
    pub(super) driver: Driver,
    /// Null when it is gone.
    pub(super) comm: Comm,
    pub(super) stream: Stream,
    owned: bool,
    pub(super) deadline: Duration,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    failed: Option<CollectiveError>,
}

// SAFETY: NCCL's and the driver's functions may be called from any thread, one at a time for a communicator, which this
// one handle has.
unsafe impl Send for Group {}

impl Group {
    /// Makes a communicator together with the other ranks.
    pub(super) fn open(parts: Parts, id: UniqueId, rank: u32, ranks: u32) -> Result<Self, CollectiveError> {
        let mut group = Self::of(parts, std::ptr::null_mut(), rank, ranks);
        let (count, number) = (ranks.cast_signed(), rank.cast_signed());
        let mut config = Config::without_waiting();
        let code = {
            let Self { driver, table, comm, .. } = &mut group;
            // SAFETY: the places are those of a communicator and of settings, and the numbers are what `Nccl::open`
            // checked.
            driver.with(|| Ok(unsafe { (table.comm_init_rank_config)(comm, count, id, number, &raw mut config) }))?
        };
        group.called("ncclCommInitRankConfig", code, &"opening the group")?;
        Ok(group)
    }

    /// Takes a communicator that is there.
    ///
    /// # Safety
    ///
    /// The communicator belongs to the library of the table, and the stream to its device; both outlive the group.
    pub(super) unsafe fn borrow(parts: Parts, comm: Comm) -> Result<Self, CollectiveError> {
        let mut group = Self::of(parts, comm, 0, 1);
        group.settle("ncclCommGetAsyncError", &"opening the group")?;
        let ask = |function: &str, call: unsafe extern "C" fn(Comm, *mut c_int) -> c_int| {
            let mut number = 0;
            // SAFETY: the caller answers for the communicator, and `number` is a place for an `int`.
            match unsafe { call(comm, &raw mut number) } {
                SUCCESS => Ok(number.cast_unsigned()),
                code => Err(group.table.error(function, code, comm)),
            }
        };
        let rank = ask("ncclCommUserRank", group.table.comm_user_rank)?;
        let ranks = ask("ncclCommCount", group.table.comm_count)?;
        (group.rank, group.ranks) = (rank, ranks);
        Ok(group)
    }

    fn of(parts: Parts, comm: Comm, rank: u32, ranks: u32) -> Self {
        let Parts { table, driver, stream, owned, deadline } = parts;
        Self { table, driver, comm, stream, owned, deadline, rank, ranks, failed: None }
    }

    /// Whether an operation may begin: none may after a failure.
    pub(super) fn begin(&self) -> Result<(), CollectiveError> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Makes every call fail from now on, with the first error there was, which it gives back.
    ///
    /// A communicator of its own is aborted, so that the device stops waiting for other ranks. A borrowed one is its
    /// owner's to abort.
    pub(super) fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        if self.failed.is_none() {
            if self.owned {
                self.abort();
            }
            self.failed = Some(error.clone());
            // The device may still be at work, so that its context stays.
            self.driver.keep();
        }
        self.failed.clone().unwrap_or(error)
    }

    fn abort(&mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator is there, and nobody uses it any more. A code would say that it is broken, which
            // is known.
            let _ = self.driver.with(|| Ok(unsafe { (self.table.comm_abort)(comm) }));
        }
    }

    /// Calls a function on the communicator, and waits until NCCL has accepted the operation.
    pub(super) fn call(
        &mut self,
        function: &'static str,
        asked: &dyn ToString,
        work: impl FnOnce(&Table, Comm) -> c_int,
    ) -> Result<(), CollectiveError> {
        self.call_one_of(asked, |table, comm| (function, work(table, comm)))
    }

    /// Several calls on the communicator, which begin together. `work` gives the first that failed.
    pub(super) fn together(
        &mut self,
        asked: &dyn ToString,
        work: impl FnOnce(&Table, Comm) -> Result<(), (&'static str, c_int)>,
    ) -> Result<(), CollectiveError> {
        self.call_one_of(asked, |table, comm| {
            // SAFETY: it takes nothing.
            let begun = unsafe { (table.group_start)() };
            if begun != SUCCESS {
                return ("ncclGroupStart", begun);
            }
            let worked = work(table, comm);
            // SAFETY: a group was begun on this thread.
            let ended = unsafe { (table.group_end)() };
            worked.err().unwrap_or(("ncclGroupEnd", ended))
        })
    }

    fn call_one_of(
        &mut self,
        asked: &dyn ToString,
        work: impl FnOnce(&Table, Comm) -> (&'static str, c_int),
    ) -> Result<(), CollectiveError> {
        match self.driver.with(|| Ok(work(&self.table, self.comm))) {
            Ok((function, code)) => self.called(function, code, asked),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn called(&mut self, function: &str, code: c_int, asked: &dyn ToString) -> Result<(), CollectiveError> {
        match code {
            SUCCESS => Ok(()),
            IN_PROGRESS => self.settle(function, asked),
            code => {
                let error = self.table.error(function, code, self.comm);
                Err(self.fail(error))
            }
        }
    }

    /// The communicator's asynchronous error, if it has one.
    fn state(&self) -> Result<(), (&'static str, c_int)> {
        const FUNCTION: &str = "ncclCommGetAsyncError";
        let mut state = SUCCESS;
        // SAFETY: the communicator is there as long as the group has not failed, and `state` is a place for a code.
        match unsafe { (self.table.comm_get_async_error)(self.comm, &raw mut state) } {
            SUCCESS if state == SUCCESS => Ok(()),
            SUCCESS => Err((FUNCTION, state)),
            code => Err((FUNCTION, code)),
        }
    }

    /// Waits until a call that NCCL goes on with by itself has been taken.
    fn settle(&mut self, function: &str, asked: &dyn ToString) -> Result<(), CollectiveError> {
        let start = Instant::now();
        loop {
            match self.state() {
                Ok(()) => return Ok(()),
                Err((_, IN_PROGRESS)) => self.pause(start, asked)?,
                Err((_, code)) => {
                    let error = self.table.error(function, code, self.comm);
                    return Err(self.fail(error));
                }
            }
        }
    }

    /// Asks whether an operation failed that was queued.
    pub(super) fn check(&mut self) -> Result<(), CollectiveError> {
        self.begin()?;
        match self.state() {
            Ok(()) | Err((_, IN_PROGRESS)) => Ok(()),
            Err((function, code)) => {
                let error = self.table.error(function, code, self.comm);
                Err(self.fail(error))
            }
        }
    }

    /// Waits until all work of a stream is done.
    ///
    /// # Safety
    ///
    /// The stream belongs to the group's context.
    pub(super) unsafe fn wait(&mut self, stream: Stream, asked: &dyn ToString) -> Result<(), CollectiveError> {
        let start = Instant::now();
        loop {
            // An operation that failed may have ended the stream's work as well, so that this comes first.
            self.check()?;
            // SAFETY: as the caller says.
            match unsafe { self.driver.is_done(stream) } {
                Ok(true) => return self.check(),
                Ok(false) => self.pause(start, asked)?,
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Lets some time go by, or fails where the deadline has passed.
    fn pause(&mut self, start: Instant, asked: &dyn ToString) -> Result<(), CollectiveError> {
        let waited = start.elapsed();
        if waited > self.deadline {
            return Err(self.fail(CollectiveError::Stalled { asked: asked.to_string(), waited: self.deadline }));
        }
        if waited < EAGER {
            std::thread::yield_now()
        } else {
            std::thread::sleep(NAP)
        }
        Ok(())
    }

    /// Ends the communicator together with the other ranks.
    pub(super) fn finish(&mut self) -> Result<(), CollectiveError> {
        self.begin()?;
        if self.owned {
            // SAFETY: the communicator is there.
            self.call("ncclCommFinalize", &"the end of the group", |table, comm| unsafe {
                (table.comm_finalize)(comm)
            })?;
            let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
            // SAFETY: it is finalised, and nobody uses it any more.
            let code = self.driver.with(|| Ok(unsafe { (self.table.comm_destroy)(comm) }))?;
            self.table.check("ncclCommDestroy", code)?;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        self.abort();
        if self.failed.is_none() {
            // SAFETY: the group made the stream, and each of its operations waited for its end.
            unsafe { self.driver.destroy(self.stream) };
        }
    }
}
