//! A state as bytes: to be saved with a checkpoint, and read again. `docs/wire.md` has the layout.

use std::sync::Arc;

use gradwire_kernels::arith::powersgd::usable;

use super::LowRankState;
use super::outcome::{Fate, Outcome};
use crate::codec::powersgd::PowerSgd;
use crate::error::{Error, STATE_MAGIC as MAGIC, STATE_VERSION as VERSION, StateError};
use crate::plan::{Part, Side, Table};
use crate::seed::Seed;

/// Magic, version, side, rank, feedback; length, step, run, the seed's step (8 each); the seed's tensor, tensors (4
/// each).
const HEADER: usize = 48;
/// Rows, columns, flags; 8 each.
const ENTRY: usize = 24;
const COMPRESSED: u64 = 1;
const SENT: u64 = 2;
/// Two bits: the outcome of the last step.
const OUTCOME: u32 = 2;
/// Two bits: for how many steps the tensor is wary.
const WARY: u32 = 4;
/// Entries of the factor that is orthonormal are at most 1, but for rounding.
const ORTHONORMAL: f32 = 2.0;

impl LowRankState {
    /// The state as bytes: a magic, a version, the shapes, residuals and factors as they are, and a CRC-32. A state
    /// that is read again goes on with the same bits. Without feedback there are no residuals to write.
    ///
    /// ```
    /// use gradwire::{Matrix, PowerSgd, Seed};
    /// let (codec, tensors) = (PowerSgd::rank(2), [Matrix::new(40, 30), Matrix::vector(40)]);
    /// let state = codec.state(&tensors, Seed::new(1))?;
    /// assert_eq!(codec.restore(&tensors, &state.to_bytes()?)?, state);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Order`] while a step is under way; [`Error::Backend`] if there is no memory for them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        self.expect_idle("to_bytes")?;
        let feedback = self.codec.feedback();
        let size = size(&self.table, feedback);
        let mut bytes = Vec::new();
        let room = usize::try_from(size).ok().and_then(|size| bytes.try_reserve_exact(size).ok());
        room.ok_or_else(|| Error::no_memory("the bytes of a state", size))?;
        bytes.extend(MAGIC);
        bytes.extend([VERSION, u8::from(self.last == Side::Right), self.table.rank as u8, u8::from(feedback)]);
        let [run, step] =
            [self.seed.key(), self.seed.step_words()].map(|[low, high]| u64::from(high) << 32 | u64::from(low));
        for word in [size, self.step, run, step] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.seed.tensor_word().to_le_bytes());
        // A table has at most 2^31 tensors.
        bytes.extend((self.table.parts.len() as u32).to_le_bytes());
        for ((part, sent), fate) in self.table.parts.iter().zip(&self.sent).zip(&self.fates) {
            let flags = flags(part, *sent && feedback, *fate);
            for word in [part.rows as u64, part.columns as u64, flags] {
                bytes.extend(word.to_le_bytes());
            }
        }
        for (part, sent) in self.table.parts.iter().zip(&self.sent).filter(|_| feedback) {
            let sums = &self.sums[part.first..part.first + part.elements()];
            // Of a tensor that was sent as it is, nothing is left.
            let gone = *sent && !part.compressed;
            bytes.extend(sums.iter().flat_map(|v| if gone { 0.0f32 } else { *v }.to_le_bytes()));
        }
        for (side, factors) in [(Side::Left, &self.left), (Side::Right, &self.right)] {
            for (_, part) in self.table.compressed() {
                let columns = factors[part.start(side)..].chunks_exact(part.stride(side)).take(self.table.rank);
                bytes.extend(columns.flat_map(|c| &c[..part.dimension(side)]).flat_map(|v| v.to_le_bytes()));
            }
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Reads a state for tensors that the caller knows: nothing is allocated by claims of the bytes.
    pub(crate) fn from_bytes(codec: PowerSgd, table: Arc<Table>, bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(checked(bytes)?);
        let [_, side, rank, feedback] = reader.take::<4>();
        let [_, step, run, seed_step] = [0; 4].map(|_: u64| reader.word());
        let (tensor, tensors) = (reader.half(), reader.half());
        let tensors = usize::try_from(tensors).unwrap_or(usize::MAX);
        table.expect_model(rank.into(), tensors)?;
        // Where another model's bytes are of another length, its shapes say more than that.
        let flags = entries(&table, &mut reader, tensors)?;
        let expected = size(&table, feedback == 1);
        if bytes.len() as u64 != expected {
            return Err(StateError::Size { found: bytes.len() as u64, expected }.into());
        }
        if let Some(found) = flags.iter().find(|flags| feedback == 0 && **flags & SENT != 0) {
            return Err(StateError::Field { field: "flags", found: *found }.into());
        }
        let mut state = Self::new(codec, table, Seed::new(run).step(seed_step).tensor(tensor))?;
        state.expect_feedback(feedback == 1)?;
        state.step = step;
        state.last = if side == 1 { Side::Right } else { Side::Left };
        state.sent = flags.iter().map(|flags| flags & SENT != 0).collect();
        state.fates = flags.iter().map(|flags| fate(*flags)).collect();
        state.read_numbers(reader.0, feedback == 1)?;
        Ok(state)
    }

    /// Reads residuals and factors, and refuses what no step leaves behind: whatever passes has a residual that is
    /// finite.
    fn read_numbers(&mut self, bytes: &[u8], feedback: bool) -> Result<(), StateError> {
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).zip(0u64..);
        let mut next = || numbers.next().unwrap_or_default();
        for sum in self.sums.iter_mut().filter(|_| feedback) {
            let (value, index) = next();
            if !value.is_finite() {
                return Err(StateError::NotFinite { index });
            }
            *sum = value;
        }
        let table = self.table.clone();
        for side in [Side::Left, Side::Right] {
            for (place, part) in table.compressed() {
                let (stride, dimension) = (part.stride(side), part.dimension(side));
                // Of the factors of what was sent, the one that was computed first is orthonormal.
                let orthonormal = self.sent[place] && side != self.last;
                let mine = &mut self.factors(side)[part.start(side)..part.start(side) + stride * table.rank];
                for entry in mine.chunks_exact_mut(stride).flat_map(|column| &mut column[..dimension]) {
                    let (value, index) = next();
                    check_entry(value, orthonormal, index)?;
                    *entry = value;
                }
            }
        }
        Ok(())
    }

    /// Refuses what [`LowRankState::read_numbers`] refuses, of numbers that came from a device's memory.
    pub(crate) fn check_numbers(&self) -> Result<(), StateError> {
        let kept = if self.codec.feedback() { &self.sums[..] } else { &[] };
        if let Some(index) = kept.iter().position(|sum| !sum.is_finite()) {
            return Err(StateError::NotFinite { index: index as u64 });
        }
        let mut index = kept.len() as u64;
        for (side, factors) in [(Side::Left, &self.left), (Side::Right, &self.right)] {
            for (place, part) in self.table.compressed() {
                let orthonormal = self.sent[place] && side != self.last;
                let columns = factors[part.start(side)..].chunks_exact(part.stride(side)).take(self.table.rank);
                for value in columns.flat_map(|column| &column[..part.dimension(side)]) {
                    check_entry(*value, orthonormal, index)?;
                    index += 1;
                }
            }
        }
        Ok(())
    }
}

/// Whether an entry of a factor is one that a step ends with.
fn check_entry(value: f32, orthonormal: bool, index: u64) -> Result<(), StateError> {
    if !value.is_finite() {
        return Err(StateError::NotFinite { index });
    }
    if !usable(value) || orthonormal && value.abs() > ORTHONORMAL {
        return Err(StateError::TooLarge { index });
    }
    Ok(())
}

/// Reads the entries of `count` tensors, or as many as there are bytes for, each checked against the table's; their
/// flags.
fn entries(table: &Table, reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, Error> {
    let count = count.min(reader.0.len() / ENTRY);
    let mut all = Vec::with_capacity(count);
    for index in 0..count {
        let [rows, columns, flags] = [0; 3].map(|_: u64| reader.word());
        if flags >> WARY > Fate::WARY.into() {
            return Err(StateError::Field { field: "flags", found: flags }.into());
        }
        table.expect_part(index, rows, columns, flags & COMPRESSED != 0)?;
        all.push(flags);
    }
    Ok(all)
}

/// Bytes of a state for these tensors.
fn size(table: &Table, feedback: bool) -> u64 {
    let sums = if feedback { table.elements } else { 0 };
    let numbers = [sums, table.factor_len(Side::Left), table.factor_len(Side::Right)].map(|count| count as u64);
    (HEADER + 4) as u64 + ENTRY as u64 * table.parts.len() as u64 + 4 * numbers.iter().sum::<u64>()
}

fn flags(part: &Part, sent: bool, fate: Fate) -> u64 {
    let outcome = match fate.outcome {
        None => 0,
        Some(Outcome::Sent) => 1,
        Some(Outcome::Kept) => 2,
        Some(Outcome::Dropped) => 3,
    };
    u64::from(part.compressed) * COMPRESSED
        + u64::from(sent) * SENT
        + (outcome << OUTCOME)
        + (u64::from(fate.wary) << WARY)
}

fn fate(flags: u64) -> Fate {
    let outcome = match flags >> OUTCOME & 3 {
        1 => Some(Outcome::Sent),
        2 => Some(Outcome::Kept),
        3 => Some(Outcome::Dropped),
        _ => None,
    };
    Fate { outcome, wary: (flags >> WARY & 3) as u8 }
}

/// The bytes between the magic and the checksum, when both are right.
fn checked(bytes: &[u8]) -> Result<&[u8], StateError> {
    let found = bytes.len() as u64;
    let Some((body, checksum)) = bytes.split_last_chunk::<4>().filter(|(body, _)| body.len() >= HEADER) else {
        return Err(StateError::Size { found, expected: (HEADER + 4) as u64 });
    };
    let mut reader = Reader(body);
    let magic = reader.take::<4>();
    if magic != MAGIC {
        return Err(StateError::Magic { found: magic });
    }
    let [version, side, _, feedback] = reader.take::<4>();
    if version != VERSION {
        return Err(StateError::Version { found: version });
    }
    let expected = reader.word();
    if found != expected {
        return Err(StateError::Size { found, expected });
    }
    let (written, computed) = (u32::from_le_bytes(*checksum), crc32fast::hash(body));
    if written != computed {
        return Err(StateError::Checksum { found: written, computed });
    }
    for (field, found) in [("side", side), ("feedback", feedback)] {
        if found > 1 {
            return Err(StateError::Field { field, found: found.into() });
        }
    }
    Ok(&body[4..])
}

/// Takes bytes off the front. Whoever calls has checked that there are enough.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.0 = rest;
                *taken
            }
            None => [0; N],
        }
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}
