//! Bytes of the host, moved through device memory: the operations of `Collective`.
//!
//! Each operation of all ranks begins with a gather of heads, which say what a rank asks for and with how many bytes.
//! So ranks that ask for different things find out before NCCL, which would hang, and sizes that differ are known.

use std::ffi::c_int;

use gradwire::CollectiveError;

use super::group::Group;
use super::table::{ENGINE, IN_PROGRESS, SUCCESS, UINT8};
use crate::op::Op;

/// Bytes of a head: a mark and the operation's kind, its number, and the bytes that go with it.
const HEAD: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"GWn1");
/// The kind of a call with a wrong argument, which no operation has.
const WRONG: u32 = 0;
/// Messages in a buffer begin at multiples of this.
const ALIGN: usize = 16;

/// Device memory that a group sends from or receives in. It grows, and is used again.
#[derive(Default)]
pub(super) struct Buffer {
    at: u64,
    bytes: usize,
}

/// A rank's buffers for the messages that it sends and receives.
#[derive(Default)]
pub(super) struct Buffers {
    out: Buffer,
    into: Buffer,
}

impl Buffers {
    /// Gives the memory back, where nothing can be under way in it any more; else it is leaked.
    pub(super) fn free(&mut self, group: &Group) {
        for buffer in [&mut self.out, &mut self.into] {
            let Buffer { at, .. } = std::mem::take(buffer);
            if at != 0 && !group.has_failed() {
                // SAFETY: it was allocated, and every operation that used it was waited for.
                unsafe { group.driver.free(at) };
            }
        }
    }
}

impl Buffer {
    /// The address of a buffer of `bytes`. Its contents are undefined.
    fn reserve(&mut self, group: &mut Group, bytes: usize) -> Result<u64, CollectiveError> {
        if bytes > self.bytes {
            let Self { at, .. } = std::mem::take(self);
            if at != 0 {
                // SAFETY: it was allocated, and every operation that used it was waited for.
                unsafe { group.driver.free(at) };
            }
            let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes).max(4096);
            let at = group.driver.alloc(bytes).map_err(|error| group.fail(error))?;
            *self = Self { at, bytes };
        }
        Ok(self.at)
    }
}

/// A device address as a pointer for C.
pub(super) fn pointer(at: u64) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// An error where NCCL does not take a call of several that begin together. A communicator that does not wait may say
/// that it goes on with the call.
pub(super) fn taken(function: &'static str, code: c_int) -> Result<(), (&'static str, c_int)> {
    if [SUCCESS, IN_PROGRESS].contains(&code) { Ok(()) } else { Err((function, code)) }
}

/// Makes `bytes` a list of `count` zeros. The count may come from another rank, so that too large a one is an error.
pub(super) fn room(group: &mut Group, bytes: &mut Vec<u8>, count: usize) -> Result<(), CollectiveError> {
    bytes.clear();
    if bytes.try_reserve(count).is_err() {
        let reason = format!("there is no host memory for {count} bytes of a message; send less at a time");
        return Err(group.fail(CollectiveError::Engine { engine: ENGINE, code: None, reason }));
    }
    bytes.resize(count, 0);
    Ok(())
}

/// Copies to the device in the order of the group's stream.
fn put(group: &mut Group, at: u64, bytes: &[u8]) -> Result<(), CollectiveError> {
    // SAFETY: the callers in this file reserved as much, in memory that is the group's alone.
    unsafe { group.driver.copy_in(at, bytes, group.stream) }.map_err(|error| group.fail(error))
}

/// Copies from the device. The stream is done.
fn get(group: &mut Group, bytes: &mut [u8], at: u64) -> Result<(), CollectiveError> {
    // SAFETY: as above.
    unsafe { group.driver.copy_out(bytes, at, group.stream) }.map_err(|error| group.fail(error))
}

/// Waits for the group's own stream.
fn wait(group: &mut Group, asked: &dyn ToString) -> Result<(), CollectiveError> {
    let stream = group.stream;
    // SAFETY: the stream is the group's.
    unsafe { group.wait(stream, asked) }
}

/// `all` become the bytes of every rank, in their order; each gives as many as `mine` has.
pub(super) fn gather(
    group: &mut Group,
    buffers: &mut Buffers,
    asked: &dyn ToString,
    mine: &[u8],
    all: &mut Vec<u8>,
) -> Result<(), CollectiveError> {
    let total = mine.len().saturating_mul(group.ranks as usize);
    room(group, all, total)?;
    if total == 0 {
        return Ok(());
    }
    wait(group, asked)?;
    let (out, into) = (buffers.out.reserve(group, mine.len())?, buffers.into.reserve(group, total)?);
    put(group, out, mine)?;
    let stream = group.stream;
    group.call("ncclAllGather", asked, |table, comm| {
        // SAFETY: there is as much memory at the addresses, and it is used by nothing else.
        unsafe { (table.all_gather)(pointer(out), pointer(into), mine.len(), UINT8, comm, stream) }
    })?;
    wait(group, asked)?;
    get(group, all, into)
}

/// Gives `to[r]` to rank `r`, and receives as many bytes as `from[r]` has from it. Ranks agree on the sizes.
pub(super) fn pass(
    group: &mut Group,
    buffers: &mut Buffers,
    asked: &dyn ToString,
    to: &[(u32, &[u8])],
    from: &mut [(u32, &mut [u8])],
) -> Result<(), CollectiveError> {
    fn place(at: &mut usize, bytes: usize) -> usize {
        let begin = *at;
        *at = at.saturating_add(bytes.next_multiple_of(ALIGN));
        begin
    }
    let (mut total_out, mut total_in) = (0, 0);
    let out: Vec<_> = to.iter().map(|(rank, bytes)| (*rank, place(&mut total_out, bytes.len()), *bytes)).collect();
    let into: Vec<_> =
        from.iter().map(|(rank, bytes)| (*rank, place(&mut total_in, bytes.len()), bytes.len())).collect();
    if total_out == 0 && total_in == 0 {
        return Ok(());
    }
    wait(group, asked)?;
    let (base_out, base_in) = (buffers.out.reserve(group, total_out)?, buffers.into.reserve(group, total_in)?);
    for (_, at, bytes) in &out {
        put(group, base_out + *at as u64, bytes)?;
    }
    let stream = group.stream;
    group.together(asked, |table, comm| {
        for (rank, at, bytes) in out.iter().filter(|(_, _, bytes)| !bytes.is_empty()) {
            let at = pointer(base_out + *at as u64);
            // SAFETY: as many bytes were copied there.
            taken("ncclSend", unsafe { (table.send)(at, bytes.len(), UINT8, rank.cast_signed(), comm, stream) })?;
        }
        for (rank, at, bytes) in into.iter().filter(|(_, _, bytes)| *bytes > 0) {
            let at = pointer(base_in + *at as u64);
            // SAFETY: there is as much memory, and it is used by nothing else.
            taken("ncclRecv", unsafe { (table.recv)(at, *bytes, UINT8, rank.cast_signed(), comm, stream) })?;
        }
        Ok(())
    })?;
    wait(group, asked)?;
    for ((_, at, _), (_, bytes)) in into.iter().zip(from) {
        get(group, bytes, base_in + *at as u64)?;
    }
    Ok(())
}

/// `bytes` become those of rank `root`; every rank has as many.
pub(super) fn spread(
    group: &mut Group,
    buffers: &mut Buffers,
    asked: &dyn ToString,
    root: u32,
    bytes: &mut [u8],
) -> Result<(), CollectiveError> {
    if bytes.is_empty() {
        return Ok(());
    }
    wait(group, asked)?;
    let at = buffers.out.reserve(group, bytes.len())?;
    if group.rank == root {
        put(group, at, bytes)?;
    }
    let (stream, count) = (group.stream, bytes.len());
    group.call("ncclBroadcast", asked, |table, comm| {
        // SAFETY: there is as much memory at the address, and it is used by nothing else.
        unsafe { (table.broadcast)(pointer(at), pointer(at), count, UINT8, root.cast_signed(), comm, stream) }
    })?;
    wait(group, asked)?;
    if group.rank == root { Ok(()) } else { get(group, bytes, at) }
}

/// Tells all ranks what this one asks for; the bytes that go with it on each, where all ask for the same.
pub(super) fn heads(
    group: &mut Group,
    buffers: &mut Buffers,
    op: Op,
    bytes: usize,
) -> Result<Vec<usize>, CollectiveError> {
    let mut all = Vec::new();
    gather(group, buffers, &op, &head(op.to_numbers(), bytes), &mut all)?;
    let mut lengths = Vec::with_capacity(group.ranks as usize);
    for (rank, head) in (0..).zip(all.chunks(HEAD)) {
        lengths.push(agree(group, op, rank, head)?);
    }
    Ok(lengths)
}

/// Tells all ranks that this one was called with a wrong argument, so that they do not wait for it.
pub(super) fn refuse(group: &mut Group, buffers: &mut Buffers, op: Op, error: CollectiveError) -> CollectiveError {
    let mut all = Vec::new();
    // That a rank does not hear of it changes nothing here.
    let _ = gather(group, buffers, &op, &head((WRONG, 0), 0), &mut all);
    group.fail(error)
}

/// Tells another rank what this one asks for; the bytes that it has, if it asks for the same.
pub(super) fn head_of(
    group: &mut Group,
    buffers: &mut Buffers,
    peer: u32,
    op: Op,
    bytes: usize,
) -> Result<usize, CollectiveError> {
    let (mine, mut theirs) = (head(op.to_numbers(), bytes), [0; HEAD]);
    pass(group, buffers, &op, &[(peer, &mine)], &mut [(peer, &mut theirs)])?;
    agree(group, op, peer, &theirs)
}

fn head((kind, number): (u32, u64), bytes: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&kind.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..].copy_from_slice(&(bytes as u64).to_le_bytes());
    head
}

/// The bytes that another rank's head tells of, if it asks for the same.
fn agree(group: &mut Group, op: Op, rank: u32, head: &[u8]) -> Result<usize, CollectiveError> {
    let found = match read(head) {
        Some((Some(found), bytes)) if op.agrees(found) => return Ok(bytes),
        Some((Some(found), _)) => found.to_string(),
        Some((None, _)) => "a call with a wrong argument".to_owned(),
        None => "bytes of another program".to_owned(),
    };
    Err(group.fail(CollectiveError::Mismatch { rank, asked: op.to_string(), found }))
}

/// An operation, or none for a call with a wrong argument, and its bytes; nothing where this is no head.
fn read(head: &[u8]) -> Option<(Option<Op>, usize)> {
    let (words, _) = head.as_chunks::<4>();
    let [magic, kind, words @ ..] = words else { return None };
    if u32::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let [low, high, bytes_low, bytes_high] = words else { return None };
    let join = |low: &[u8; 4], high: &[u8; 4]| {
        u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32
    };
    let bytes = usize::try_from(join(bytes_low, bytes_high)).ok()?;
    match u32::from_le_bytes(*kind) {
        WRONG => Some((None, bytes)),
        kind => Some((Some(Op::from_numbers(kind, join(low, high))?), bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        for op in [
            Op::AllGather,
            Op::AllToAll,
            Op::AllReduce { values: usize::MAX },
            Op::Exchange { peer: 7 },
            Op::Broadcast { root: u32::MAX },
        ] {
            assert_eq!(read(&head(op.to_numbers(), usize::MAX - 5)), Some((Some(op), usize::MAX - 5)));
        }
        assert_eq!(read(&head((WRONG, 0), 0)), Some((None, 0)));
        assert_eq!(read(&head((6, 0), 0)), None, "no operation of this release");
        assert_eq!(read(&[0; HEAD]), None);
        assert_eq!(read(&head((1, 0), 0)[..HEAD - 4]), None);
    }
}
