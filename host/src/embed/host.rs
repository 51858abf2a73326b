//! Memory of the host's that work runs on.

use std::ops::Range;

use bytemuck::{AnyBitPattern, NoUninit};

use super::{Access, Piece};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::Role;

/// Memory of the host's that work runs on: [`Cpu::run`](crate::backend::cpu::Cpu::run) works in it, and a GPU copies it
/// to the device and back. Of a piece that is scratch, as a workspace, its beginning is enough: what the work reads of
/// it and what it leaves there ([`Piece::before`], [`Piece::after`]).
#[derive(Debug)]
#[non_exhaustive]
pub enum HostSlice<'h> {
    /// Memory that the work reads.
    In(&'h [u8]),
    /// Memory that it reads and writes.
    InOut(&'h mut [u8]),
    /// Memory that it writes, and does not read.
    Out(&'h mut [u8]),
    /// Memory that only this crate hands over.
    #[doc(hidden)]
    Parts(HostParts<'h>),
}

/// Memory that is read, in parts, each with its first byte's place.
pub(crate) type Read<'h> = Vec<(u64, &'h [u8])>;

/// Memory that is written, in parts, each with its first byte's place.
pub(crate) type Written<'h> = Vec<(u64, &'h mut [u8])>;

/// Memory that is not one slice: what is read and what is written, each in parts, in ascending order of the byte of the
/// piece that they begin at. The work uses nothing of what no part holds.
#[derive(Debug)]
#[doc(hidden)]
pub struct HostParts<'h> {
    read: Read<'h>,
    written: Written<'h>,
    /// Becomes the results of work that finds how many words there are.
    grown: Option<&'h mut Vec<u32>>,
}

impl<'h> HostSlice<'h> {
    /// Floats that are read.
    pub(crate) fn floats(values: &'h [f32]) -> Self {
        Self::In(bytemuck::cast_slice(values))
    }

    /// Floats that are written.
    pub(crate) fn floats_out(values: &'h mut [f32]) -> Self {
        Self::Out(bytemuck::cast_slice_mut(values))
    }

    /// Floats that are read, and others for the new ones: parts, each with the element that it begins at.
    pub(crate) fn floats_apart(from: &'h [f32], to: impl IntoIterator<Item = (u64, &'h mut [f32])>) -> Self {
        let written = to.into_iter().map(|(at, values)| (4 * at, bytemuck::cast_slice_mut(values))).collect();
        Self::Parts(HostParts { read: vec![(0, bytemuck::cast_slice(from))], written, grown: None })
    }

    /// Parts that are read.
    pub(crate) fn parts(read: Read<'h>) -> Self {
        Self::Parts(HostParts { read, written: Vec::new(), grown: None })
    }

    /// Parts that are written.
    pub(crate) fn parts_out(written: Written<'h>) -> Self {
        Self::Parts(HostParts { read: Vec::new(), written, grown: None })
    }

    /// Parts that are read, and others that are written.
    pub(crate) fn parts_both(read: Read<'h>, written: Written<'h>) -> Self {
        Self::Parts(HostParts { read, written, grown: None })
    }

    /// Results of work that finds how many words there are.
    pub(crate) fn grown(words: &'h mut Vec<u32>) -> Self {
        Self::Parts(HostParts { read: Vec::new(), written: Vec::new(), grown: Some(words) })
    }

    fn address(&self) -> u64 {
        let bytes: &[u8] = match self {
            Self::In(bytes) => bytes,
            Self::InOut(bytes) | Self::Out(bytes) => bytes,
            Self::Parts(_) => &[],
        };
        bytes.as_ptr() as u64
    }

    /// Bytes from its first to its last.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::In(bytes) => bytes.len() as u64,
            Self::InOut(bytes) | Self::Out(bytes) => bytes.len() as u64,
            Self::Parts(HostParts { read, written, .. }) => {
                let read = read.last().map(|(at, bytes)| at + bytes.len() as u64);
                let written = written.last().map(|(at, bytes)| at + bytes.len() as u64);
                read.max(written).unwrap_or(0)
            }
        }
    }

    /// The bytes to read, in parts.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn read(&self) -> Vec<(u64, &[u8])> {
        match self {
            Self::In(bytes) => vec![(0, bytes)],
            Self::InOut(bytes) => vec![(0, bytes)],
            Self::Out(_) => Vec::new(),
            Self::Parts(parts) => parts.read.clone(),
        }
    }

    /// Where it is written, and what becomes its results where the work finds how many there are.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn written(self) -> (Written<'h>, Option<&'h mut Vec<u32>>) {
        match self {
            Self::In(_) => (Vec::new(), None),
            Self::InOut(bytes) | Self::Out(bytes) => (vec![(0, bytes)], None),
            Self::Parts(parts) => (parts.written, parts.grown),
        }
    }
}

impl<'h> From<Gradient<'h>> for HostSlice<'h> {
    fn from(gradient: Gradient<'h>) -> Self {
        Self::In(gradient.as_bytes())
    }
}

impl<'h> From<&'h mut [f32]> for HostSlice<'h> {
    /// The bytes to read and to write.
    fn from(values: &'h mut [f32]) -> Self {
        Self::InOut(bytemuck::cast_slice_mut(values))
    }
}

impl Piece<HostSlice<'_>> {
    /// Refuses memory of the wrong length, or that is handed over for something else than the work does with it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (found, needed) = (self.buffer.bytes(), self.needed);
        match &self.buffer {
            HostSlice::In(_) if self.after > 0 => {
                return Err(self.refused("is written, and would be lost: use HostSlice::InOut or HostSlice::Out"));
            }
            HostSlice::Out(_) if self.before > 0 => {
                return Err(self.refused("is read, and holds nothing: use HostSlice::In or HostSlice::InOut"));
            }
            // This crate answers for them.
            HostSlice::Parts(_) => return Ok(()),
            _ => {}
        }
        // Of scratch, the beginning is enough: the bytes that are read, and those that are kept.
        let least = if self.access == Access::Scratch { self.before.max(self.after) } else { needed };
        let most = if matches!(self.buffer, HostSlice::In(_)) { u64::MAX } else { needed };
        if (least..=most).contains(&found) {
            return Ok(());
        }
        let expected = if found < least { least } else { most };
        Err(Error::Length { what: self.what, found, expected, unit: "bytes" })
    }

    fn refused(&self, problem: &str) -> Error {
        Error::Memory { what: self.what, address: self.buffer.address(), problem: problem.to_owned() }
    }
}

/// Memory of the host's for each role of some work, checked.
#[derive(Debug)]
#[doc(hidden)]
pub struct HostMemory<'h>(Vec<Piece<HostSlice<'h>>>);

impl<'h> HostMemory<'h> {
    /// # Errors
    /// Those of [`Piece::check`].
    pub(crate) fn new(pieces: Vec<Piece<HostSlice<'h>>>) -> Result<Self, Error> {
        pieces.iter().try_for_each(Piece::check)?;
        Ok(Self(pieces))
    }

    /// The memory of the piece that a role begins, and the piece's name and length; none if the work has no such
    /// piece.
    fn take(&mut self, role: Role) -> Option<Held<'h>> {
        let at = self.0.iter().position(|piece| piece.roles[0].is_some_and(|(of, _)| of == role))?;
        let Piece { what, buffer, needed, .. } = self.0.swap_remove(at);
        let HostParts { read, written, grown } = match buffer {
            HostSlice::In(bytes) => HostParts { read: vec![(0, bytes)], written: Vec::new(), grown: None },
            HostSlice::InOut(bytes) | HostSlice::Out(bytes) => {
                HostParts { read: Vec::new(), written: vec![(0, bytes)], grown: None }
            }
            HostSlice::Parts(parts) => parts,
        };
        Some(Held { what, needed, read, written, grown })
    }

    /// The bytes to read of a role.
    ///
    /// # Errors
    /// [`Error::Memory`] for memory that is not aligned for the values.
    pub(crate) fn read<T: AnyBitPattern>(&mut self, role: Role) -> Result<&'h [T], Error> {
        let Some(held) = self.take(role) else { return Ok(&[]) };
        let (what, whole) = (held.what, 0..held.needed);
        let bytes = held.into_read([whole])?.pop().unwrap_or_default();
        values(what, bytes)
    }

    /// A gradient that is read.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub(crate) fn gradient(&mut self, dtype: Dtype) -> Result<Gradient<'h>, Error> {
        Ok(match dtype {
            Dtype::F32 => Gradient::F32(self.read(Role::Input)?),
            Dtype::F16 => Gradient::F16(self.read(Role::Input)?),
            Dtype::Bf16 => Gradient::Bf16(self.read(Role::Input)?),
        })
    }

    /// Ranges of the bytes to read of a role, in ascending order.
    ///
    /// # Errors
    /// [`Error::Memory`] for a range that no part holds.
    pub(crate) fn read_ranges(
        &mut self,
        role: Role,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<&'h [u8]>, Error> {
        self.take(role).map_or(Ok(Vec::new()), |held| held.into_read(ranges))
    }

    /// The bytes to write of a role.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub(crate) fn write<T: AnyBitPattern + NoUninit>(&mut self, role: Role) -> Result<&'h mut [T], Error> {
        let Some(held) = self.take(role) else { return Ok(&mut []) };
        let (what, whole) = (held.what, 0..held.needed);
        values_mut(what, carve_mut(what, held.written, [whole])?.pop().unwrap_or_default())
    }

    /// Ranges of the bytes to write of a role, in ascending order.
    ///
    /// # Errors
    /// As [`HostMemory::read_ranges`].
    pub(crate) fn write_ranges(
        &mut self,
        role: Role,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<&'h mut [u8]>, Error> {
        self.take(role).map_or(Ok(Vec::new()), |held| carve_mut(held.what, held.written, ranges))
    }

    /// What becomes the results of a role, of work that finds how many there are.
    pub(crate) fn grown(&mut self, role: Role) -> Option<&'h mut Vec<u32>> {
        self.take(role)?.grown
    }

    /// Ranges of values, in bytes and in ascending order, that are read of a role.
    ///
    /// # Errors
    /// As [`HostMemory::read`] and [`HostMemory::read_ranges`].
    pub(crate) fn lists<T: AnyBitPattern>(
        &mut self,
        role: Role,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<&'h [T]>, Error> {
        let Some(held) = self.take(role) else { return Ok(Vec::new()) };
        let what = held.what;
        held.into_read(ranges)?.into_iter().map(|bytes| values(what, bytes)).collect()
    }

    /// As [`HostMemory::lists`], of the bytes to write.
    ///
    /// # Errors
    /// As [`HostMemory::read`] and [`HostMemory::read_ranges`].
    pub(crate) fn lists_mut<T: AnyBitPattern + NoUninit>(
        &mut self,
        role: Role,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<&'h mut [T]>, Error> {
        let Some(Held { what, written, .. }) = self.take(role) else { return Ok(Vec::new()) };
        carve_mut(what, written, ranges)?.into_iter().map(|bytes| values_mut(what, bytes)).collect()
    }

    /// The bytes to read and to write of a role, for work that leaves the old values.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub(crate) fn sums(&mut self, role: Role) -> Result<Apart<'h>, Error> {
        let Some(Held { what, read, written, .. }) = self.take(role) else { return Ok(Apart::default()) };
        let from = read.into_iter().next().map(|(_, bytes)| values(what, bytes)).transpose()?;
        let to = written.into_iter().next().map(|(_, bytes)| values_mut(what, bytes)).transpose()?;
        Ok(Apart { from, to })
    }

    /// The first word of scratch, if it is handed over.
    pub(crate) fn status(&mut self, role: Role) -> Option<&'h mut [u8; 4]> {
        let (at, bytes) = self.take(role)?.written.into_iter().next()?;
        if at == 0 { bytes.first_chunk_mut() } else { None }
    }

    /// The number at the beginning of the bytes to read of a role; zero if there are none.
    pub(crate) fn number(&mut self, role: Role) -> u64 {
        let bytes = self.take(role).and_then(|held| held.into_read(std::iter::once(0..8)).ok()?.pop());
        bytes.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Whether this crate hands over the memory of a role in parts, and throws it away where the work fails.
    pub(crate) fn is_apart(&self, role: Role) -> bool {
        let is_role = |piece: &&Piece<HostSlice<'_>>| piece.roles[0].is_some_and(|(of, _)| of == role);
        self.0.iter().find(is_role).is_none_or(|piece| matches!(piece.buffer, HostSlice::Parts(_)))
    }

    /// The bytes to read and to write of a role; none if the work has no such role.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub(crate) fn update(&mut self, role: Role) -> Result<Option<Update<'h>>, Error> {
        let needed = self.0.iter().find(|piece| piece.roles[0].is_some_and(|(of, _)| of == role));
        let whole = 0..needed.map_or(0, |piece| piece.needed);
        Ok(self.update_ranges(role, [whole])?.and_then(|mut all| all.pop()))
    }

    /// Ranges, in bytes and in any order, of the bytes to read and to write of a role.
    ///
    /// # Errors
    /// As [`HostMemory::read`] and [`HostMemory::read_ranges`].
    pub(crate) fn update_ranges(
        &mut self,
        role: Role,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Option<Vec<Update<'h>>>, Error> {
        let Some(Held { what, read, written, .. }) = self.take(role) else { return Ok(None) };
        let mut ordered: Vec<(usize, Range<u64>)> = ranges.into_iter().enumerate().collect();
        ordered.sort_unstable_by_key(|(_, range)| (range.start, range.end));
        let ranges = || ordered.iter().map(|(_, range)| range.clone());
        let from = if read.is_empty() { Vec::new() } else { carve(what, read, ranges())? };
        let mut updates = Vec::with_capacity(ordered.len());
        for (at, to) in carve_mut(what, written, ranges())?.into_iter().enumerate() {
            let from = from.get(at).map(|from| values(what, from)).transpose()?;
            updates.push((ordered[at].0, Update { from, to: values_mut(what, to)? }));
        }
        updates.sort_unstable_by_key(|(place, _)| *place);
        Ok(Some(updates.into_iter().map(|(_, update)| update).collect()))
    }
}

/// Floats that are read, and stay.
#[derive(Default)]
pub(crate) struct Apart<'h> {
    /// The old values; none if the work has none.
    pub(crate) from: Option<&'h [f32]>,
    /// Where the new values go, if they are wanted.
    pub(crate) to: Option<&'h mut [f32]>,
}

/// Floats that are read and written.
pub(crate) struct Update<'h> {
    /// The old values, where they stay; else they are where the new ones go.
    pub(crate) from: Option<&'h [f32]>,
    /// Where the new values go.
    pub(crate) to: &'h mut [f32],
}

impl<'h> Update<'h> {
    /// Where the new values go, which holds the old ones.
    pub(crate) fn begun(self) -> &'h mut [f32] {
        if let Some(from) = self.from {
            self.to.copy_from_slice(from);
        }
        self.to
    }
}

/// A piece's memory.
struct Held<'h> {
    what: &'static str,
    needed: u64,
    /// Empty if the new values replace the old ones.
    read: Read<'h>,
    written: Written<'h>,
    grown: Option<&'h mut Vec<u32>>,
}

impl<'h> Held<'h> {
    fn into_read(self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<&'h [u8]>, Error> {
        let Self { what, read, written, .. } = self;
        let read = if read.is_empty() { written.into_iter().map(|(at, bytes)| (at, &*bytes)).collect() } else { read };
        carve(what, read, ranges)
    }
}

/// Ranges of parts, both in ascending order.
fn carve<'h>(
    what: &'static str,
    parts: Read<'h>,
    ranges: impl IntoIterator<Item = Range<u64>>,
) -> Result<Vec<&'h [u8]>, Error> {
    let mut parts = parts.into_iter().peekable();
    let of = |range: Range<u64>| {
        while parts.next_if(|(at, bytes)| at + (bytes.len() as u64) < range.end).is_some() {}
        let found = parts.peek().and_then(|(at, bytes)| {
            let from = range.start.checked_sub(*at)?;
            bytes.get(from as usize..(range.end - at) as usize)
        });
        // Of nothing there is no part.
        if range.is_empty() { Ok(&[][..]) } else { found.ok_or_else(|| missing(what, &range)) }
    };
    ranges.into_iter().map(of).collect()
}

/// As [`carve`], of bytes to write: ranges do not overlap.
fn carve_mut<'h>(
    what: &'static str,
    parts: Written<'h>,
    ranges: impl IntoIterator<Item = Range<u64>>,
) -> Result<Vec<&'h mut [u8]>, Error> {
    let mut parts = parts.into_iter();
    let mut current: (u64, &'h mut [u8]) = (0, &mut []);
    let of = |range: Range<u64>| {
        if range.is_empty() {
            return Ok(&mut [][..]);
        }
        while current.0 + (current.1.len() as u64) < range.end {
            current = parts.next().ok_or_else(|| missing(what, &range))?;
        }
        let (at, bytes) = (current.0, std::mem::take(&mut current.1));
        let skipped = range.start.checked_sub(at).ok_or_else(|| missing(what, &range))?;
        let (found, rest) = bytes[skipped as usize..].split_at_mut((range.end - range.start) as usize);
        current = (range.end, rest);
        Ok(found)
    };
    ranges.into_iter().map(of).collect()
}

fn missing(what: &'static str, range: &Range<u64>) -> Error {
    Error::Memory { what, address: 0, problem: format!("has no bytes {} to {}", range.start, range.end) }
}

fn values<'h, T: AnyBitPattern>(what: &'static str, bytes: &'h [u8]) -> Result<&'h [T], Error> {
    if bytes.is_empty() { Ok(&[]) } else { bytemuck::try_cast_slice(bytes).map_err(|_| unaligned::<T>(what, bytes)) }
}

fn values_mut<'h, T: AnyBitPattern + NoUninit>(what: &'static str, bytes: &'h mut [u8]) -> Result<&'h mut [T], Error> {
    if bytes.is_empty() {
        return Ok(&mut []);
    }
    let refused = unaligned::<T>(what, bytes);
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| refused)
}

fn unaligned<T>(what: &'static str, bytes: &[u8]) -> Error {
    let problem = format!("is not aligned: it has to begin at a multiple of {} bytes", align_of::<T>());
    Error::Memory { what, address: bytes.as_ptr() as u64, problem }
}
