//! Device memory: the operations of `StreamCollective`, queued on the caller's stream.

use std::ffi::c_void;

use gradwire::{CollectiveError, StreamCollective, Transfer};

use super::Nccl;
use super::host::{pointer, taken};
use super::table::{FLOAT32, SUM, UINT8};

impl StreamCollective for Nccl {
    fn rank(&self) -> u32 {
        self.group.rank
    }

    fn ranks(&self) -> u32 {
        self.group.ranks
    }

    unsafe fn queue_all_gather(
        &mut self,
        mine: u64,
        all: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError> {
        self.group.begin()?;
        self.group.call("ncclAllGather", &"a queued all-gather", |table, comm| {
            // SAFETY: the caller answers for addresses and stream.
            unsafe { (table.all_gather)(pointer(mine), pointer(all), bytes, UINT8, comm, stream) }
        })
    }

    unsafe fn queue_all_reduce_sum(
        &mut self,
        mine: u64,
        sums: u64,
        values: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError> {
        self.group.begin()?;
        self.group.call("ncclAllReduce", &"a queued all-reduce", |table, comm| {
            // SAFETY: the caller answers for addresses and stream.
            unsafe { (table.all_reduce)(pointer(mine), pointer(sums), values, FLOAT32, SUM, comm, stream) }
        })
    }

    unsafe fn queue_broadcast(
        &mut self,
        root: u32,
        at: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError> {
        self.group.begin()?;
        self.expect(root, true)?;
        self.group.call("ncclBroadcast", &"a queued broadcast", |table, comm| {
            let at = pointer(at);
            // SAFETY: the caller answers for address and stream.
            unsafe { (table.broadcast)(at, at, bytes, UINT8, root.cast_signed(), comm, stream) }
        })
    }

    unsafe fn queue_transfers(&mut self, transfers: &[Transfer], stream: *mut c_void) -> Result<(), CollectiveError> {
        self.group.begin()?;
        for transfer in transfers {
            self.expect(transfer.peer, transfer.peer != self.group.rank)?;
        }
        if transfers.is_empty() {
            return Ok(());
        }
        self.group.together(&"queued transfers", |table, comm| {
            for Transfer { peer, send, receive, bytes } in transfers {
                let peer = peer.cast_signed();
                // SAFETY: the caller answers for addresses and stream.
                taken("ncclSend", unsafe { (table.send)(pointer(*send), *bytes, UINT8, peer, comm, stream) })?;
                // SAFETY: as above.
                taken("ncclRecv", unsafe { (table.recv)(pointer(*receive), *bytes, UINT8, peer, comm, stream) })?;
            }
            Ok(())
        })
    }

    fn check(&mut self) -> Result<(), CollectiveError> {
        self.group.check()
    }

    unsafe fn wait(&mut self, stream: *mut c_void) -> Result<(), CollectiveError> {
        self.group.begin()?;
        // SAFETY: the caller answers for the stream.
        unsafe { self.group.wait(stream, &"the work of a stream") }
    }
}

impl Nccl {
    fn expect(&mut self, got: u32, allowed: bool) -> Result<(), CollectiveError> {
        let ranks = self.group.ranks;
        if got < ranks && allowed { Ok(()) } else { Err(self.group.fail(CollectiveError::Rank { got, ranks })) }
    }
}
