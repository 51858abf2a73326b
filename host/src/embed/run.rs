//! Work on memory of the host's, run by a device that has its own.

use std::ops::Range;

use super::ops::Ops;
use super::{HostSlice, Piece, Work, sealed};
use crate::error::Error;
use crate::plan::Role;
use crate::session::room_for;
use crate::words::zeros;

/// Contiguous parts of a piece that are shorter on average are copied to a device at once.
const SHORT: usize = 64 << 10;

/// Runs work: the pieces go to the device, the work is done, and the pieces that it wrote come back.
///
/// # Errors
/// Those of the work; [`Error::Length`] and [`Error::Memory`] for memory that does not fit it; [`Error::Backend`] where
/// the device fails. The host's memory is as it was whenever this fails.
///
/// # Safety
/// The caller guarantees that the memory holds the values that the work trusts.
pub(crate) unsafe fn run_trusting<D: Ops, W: Work>(
    device: &D,
    work: W,
    buffers: W::Buffers<HostSlice<'_>>,
) -> Result<(), Error> {
    let passes = work.passes(&device.limits())?;
    let pieces: Vec<_> = work.pieces(buffers)?.into_iter().filter(|piece| piece.needed > 0).collect();
    pieces.iter().try_for_each(Piece::check)?;
    if passes.is_empty() {
        drop(passes);
        work.queued(sealed::Surface(()));
        return Ok(());
    }
    let rooms = pieces.iter().map(|piece| device.room(piece.needed)).collect::<Result<Vec<_>, _>>()?;
    let mut slices = Vec::with_capacity(pieces.len());
    let (mut written, mut grown) = (Vec::new(), Vec::new());
    for (piece, room) in pieces.into_iter().zip(&rooms) {
        let (room, needed) = (device.all(room), piece.needed);
        // SAFETY: a room is this call's own, as long as its piece in whole words, and lives until the end.
        unsafe { write_parts(device, &room, &piece)? };
        slices.push(piece.map(|host| {
            let (parts, all) = host.written();
            written.push((room.clone(), parts));
            grown.extend(all.map(|all| (room.clone(), needed, all)));
            room
        }));
    }
    let at = |(role, range): (Role, Range<u64>)| {
        let of = |piece: &Piece<D::Slice>| {
            let (_, from) = piece.roles.into_iter().flatten().find(|(of, _)| *of == role)?;
            Some((device.part(&piece.buffer, from + range.start, range.end - range.start), range.end - range.start))
        };
        slices.iter().find_map(of)
    };
    let asked: Vec<_> = work.asks(&passes).into_iter().filter_map(at).collect();
    // SAFETY: as above. The rooms hold the bytes of the host's memory, for which the caller answers.
    unsafe { device.queue(&passes, slices)? };
    let mut answers = Vec::with_capacity(asked.len());
    for (slice, bytes) in asked {
        let mut answer = vec![0; bytes as usize];
        // SAFETY: as above.
        unsafe { device.read(&slice, &mut answer)? };
        answers.push(answer);
    }
    let found = work.judge(&passes, &answers)?;
    let mut results = Vec::with_capacity(grown.len());
    for (room, needed, all) in grown {
        expect_found(found, needed)?;
        let mut words: Vec<u32> = zeros(found, FOUND)?;
        // SAFETY: as above; the room has as many words.
        unsafe { read(device, &room, 0, bytemuck::cast_slice_mut(&mut words))? };
        results.push((all, words));
    }
    written.retain(|(_, parts)| parts.iter().any(|(_, bytes)| !bytes.is_empty()));
    // The last answer may be read over the caller's memory: once it is there, nothing fails any more.
    let last = written.pop_if(|(_, parts)| parts.len() == 1);
    let mut done = Vec::with_capacity(written.len());
    for (room, parts) in written {
        // SAFETY: as above.
        let bytes = unsafe { read_parts(device, &room, &parts)? };
        done.push((parts, bytes));
    }
    if let Some((room, parts)) = last {
        for (at, to) in parts {
            // SAFETY: as above.
            unsafe { read(device, &room, at, to)? };
        }
    }
    for (parts, bytes) in done {
        let mut bytes = &bytes[..];
        for (_, to) in parts {
            let (own, rest) = bytes.split_at(to.len());
            to.copy_from_slice(own);
            bytes = rest;
        }
    }
    results.into_iter().for_each(|(all, words)| *all = words);
    drop(passes);
    work.queued(sealed::Surface(()));
    Ok(())
}

/// What memory is for.
const FOUND: &str = "what a device found";

/// Refuses more words than a piece of `bytes` bytes has: the device's memory or its arithmetic is at fault.
pub(crate) fn expect_found(words: u64, bytes: u64) -> Result<(), Error> {
    let found = words.saturating_mul(4);
    if found <= bytes { Ok(()) } else { Err(Error::Length { what: FOUND, found, expected: bytes, unit: "bytes" }) }
}

/// Copies the bytes to read of a piece to a device.
///
/// # Safety
/// As [`Ops::write`].
unsafe fn write_parts<D: Ops>(device: &D, room: &D::Slice, piece: &Piece<HostSlice<'_>>) -> Result<(), Error> {
    // More than the work needs may be handed over.
    let cut = |(at, bytes): (u64, &'_ [u8])| -> usize { bytes.len().min((piece.needed - at) as usize) };
    let parts: Vec<(u64, &[u8])> =
        piece.buffer.read().into_iter().map(|(at, all)| (at, &all[..cut((at, all))])).collect();
    for run in parts.chunk_by(|(at, bytes), (next, _)| at + bytes.len() as u64 == *next) {
        let bytes: usize = run.iter().map(|(_, bytes)| bytes.len()).sum();
        if run.len() > 1 && bytes / run.len() < SHORT {
            let mut whole = room_for(bytes)?;
            let mut rest = &mut whole[..];
            for (_, bytes) in run {
                let (own, after) = rest.split_at_mut(bytes.len());
                own.copy_from_slice(bytes);
                rest = after;
            }
            // SAFETY: the caller answers for the memory.
            unsafe { write(device, room, run[0].0, &whole)? };
            continue;
        }
        for (at, bytes) in run {
            // SAFETY: the caller answers for the memory.
            unsafe { write(device, room, *at, bytes)? };
        }
    }
    Ok(())
}

/// Copies bytes to a device, from byte `at` of a room on, which is a multiple of 4.
///
/// # Safety
/// As [`Ops::write`].
unsafe fn write<D: Ops>(device: &D, room: &D::Slice, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
    let part = |from: usize, bytes: usize| device.part(room, at + from as u64, bytes as u64);
    if !words.is_empty() {
        // SAFETY: the caller answers for the memory.
        unsafe { device.write(&part(0, words.len()), words)? };
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        // SAFETY: the caller answers for the memory, which has whole words.
        unsafe { device.write(&part(words.len(), 4), &word)? };
    }
    Ok(())
}

/// The bytes of parts. Those that are contiguous are read together, and nothing between others is.
///
/// # Safety
/// As [`Ops::read`].
unsafe fn read_parts<D: Ops>(device: &D, room: &D::Slice, parts: &[(u64, &mut [u8])]) -> Result<Vec<u8>, Error> {
    let mut all = room_for(parts.iter().map(|(_, bytes)| bytes.len()).sum())?;
    let mut rest = &mut all[..];
    for run in parts.chunk_by(|(at, bytes), (next, _)| at + bytes.len() as u64 == *next) {
        let bytes = run.iter().map(|(_, bytes)| bytes.len()).sum();
        let (to, after) = rest.split_at_mut(bytes);
        // SAFETY: the caller answers for the memory.
        unsafe { read(device, room, run[0].0, to)? };
        rest = after;
    }
    Ok(all)
}

/// Copies bytes from byte `at` of a room on, which is a multiple of 4. `out` is as it was where this fails.
///
/// # Safety
/// As [`Ops::read`].
unsafe fn read<D: Ops>(device: &D, room: &D::Slice, at: u64, out: &mut [u8]) -> Result<(), Error> {
    let words = out.len() / 4 * 4;
    let part = |from: usize, bytes: usize| device.part(room, at + from as u64, bytes as u64);
    let mut word = [0; 4];
    if words < out.len() {
        // SAFETY: the caller answers for the memory, which has whole words.
        unsafe { device.read(&part(words, 4), &mut word)? };
    }
    let (whole, rest) = out.split_at_mut(words);
    if !whole.is_empty() {
        // SAFETY: the caller answers for the memory.
        unsafe { device.read(&part(0, words), whole)? };
    }
    rest.copy_from_slice(&word[..rest.len()]);
    Ok(())
}
