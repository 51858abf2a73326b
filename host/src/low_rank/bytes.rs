//! A state as bytes: to be saved with a checkpoint, and read again.

use std::sync::Arc;

use super::{LowRankState, Part, Side, Table};
use crate::codec::powersgd::PowerSgd;
use crate::error::Error;
use crate::seed::Seed;

/// First bytes of every saved state.
const MAGIC: [u8; 4] = *b"GWLR";
/// Version of the format.
const VERSION: u8 = 1;
/// Magic, version, side, rank, one byte of zero; length, step, run, the seed's step (8 each); the seed's tensor, tensors (4 each).
const HEADER: usize = 48;
/// Rows, columns, flags; 8 each.
const ENTRY: usize = 24;
const COMPRESSED: u64 = 1;
const SENT: u64 = 2;

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another number of bytes than there should be.
    #[error("it has {found} bytes, and {expected} are needed; read the file again, whole")]
    Size {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Other bytes where the magic should be.
    #[error("it starts with {found:02x?}, and a state starts with {MAGIC:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version of the format that this crate does not read.
    #[error(
        "it has format version {found}, and this build reads version {VERSION}; use the release that wrote it, or a newer one"
    )]
    Version {
        /// The version byte.
        found: u8,
    },
    /// The checksum does not match: the bytes were damaged.
    #[error("its checksum is {found:#010x}, and its bytes give {computed:#010x}: it was damaged; take another copy")]
    Checksum {
        /// What the bytes end with.
        found: u32,
        /// What they give.
        computed: u32,
    },
    /// A field that no writer writes.
    #[error("its field {field} is {found}, which no writer writes")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// A residual or factor with an entry that is NaN or infinite.
    #[error("entry {index} of its numbers is not finite, which no writer writes")]
    NotFinite {
        /// Which, over residuals and factors together.
        index: u64,
    },
}

impl LowRankState {
    /// The state as bytes: a magic, a version, the shapes, residuals and factors as they are, and a CRC-32. A state that is
    /// read again goes on with the same bits.
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
    /// [`Error::Order`] while a step is under way.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        self.expect_idle("to_bytes")?;
        let size = size(&self.table);
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, u8::from(self.last == Side::Right), self.table.rank as u8, 0]);
        let [key, step] =
            [self.seed.key(), self.seed.step_words()].map(|[low, high]| u64::from(high) << 32 | u64::from(low));
        for word in [size as u64, self.step, key, step] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.seed.tensor_word().to_le_bytes());
        bytes.extend((self.table.parts.len() as u32).to_le_bytes());
        for (part, sent) in self.table.parts.iter().zip(&self.sent) {
            for word in [part.rows as u64, part.columns as u64, flags(part, *sent)] {
                bytes.extend(word.to_le_bytes());
            }
        }
        for (part, sent) in self.table.parts.iter().zip(&self.sent) {
            let sums = &self.sums[part.first..part.first + part.elements()];
            // Of a tensor that was sent as it is, nothing is left; it may hold what is not finite.
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

    /// Reads a state for tensors that the caller knows: nothing is allocated by what the bytes say.
    pub(crate) fn from_bytes(codec: PowerSgd, table: Arc<Table>, bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(checked(bytes)?);
        let [_, side, rank, _] = reader.take::<4>();
        let [_, step, run, seed_step] = [0; 4].map(|_: u64| reader.word());
        let (tensor, tensors) = (reader.half(), reader.half());
        let seed = Seed::new(run).step(seed_step).tensor(tensor);
        let mut parts = Vec::with_capacity(table.parts.len());
        let mut sent = Vec::with_capacity(table.parts.len());
        if tensors as usize != table.parts.len() {
            let (found, expected) = (tensors.into(), table.parts.len() as u64);
            return Err(Error::Shape { what: "number of tensors", tensor: None, found, expected });
        }
        for expected in &table.parts {
            if reader.0.len() < ENTRY {
                return Err(StateError::Size { found: bytes.len() as u64, expected: size(&table) as u64 }.into());
            }
            let (rows, columns, flags) = (reader.word() as usize, reader.word() as usize, reader.word());
            if flags & !(COMPRESSED | SENT) != 0 {
                return Err(StateError::Field { field: "flags", found: flags }.into());
            }
            parts.push(Part { rows, columns, compressed: flags & COMPRESSED != 0, ..*expected });
            sent.push(flags & SENT != 0);
        }
        table.expect_same(&Table { rank: rank.into(), parts, ..Table::clone(&table) })?;
        if bytes.len() != size(&table) {
            return Err(StateError::Size { found: bytes.len() as u64, expected: size(&table) as u64 }.into());
        }
        let mut state = Self::new(codec, table.clone(), seed);
        (state.step, state.sent) = (step, sent);
        state.last = if side == 1 { Side::Right } else { Side::Left };
        let numbers = reader.0.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if let Some(index) = numbers.clone().position(|v| !v.is_finite()) {
            return Err(StateError::NotFinite { index: index as u64 }.into());
        }
        let mut numbers = numbers;
        state.sums.iter_mut().zip(&mut numbers).for_each(|(sum, v)| *sum = v);
        for side in [Side::Left, Side::Right] {
            for (_, part) in table.compressed() {
                let (stride, dimension) = (part.stride(side), part.dimension(side));
                let mine = &mut state.factors(side)[part.start(side)..part.start(side) + stride * table.rank];
                for column in mine.chunks_exact_mut(stride) {
                    column[..dimension].iter_mut().zip(&mut numbers).for_each(|(entry, v)| *entry = v);
                }
            }
        }
        Ok(state)
    }
}

/// Bytes of a state for these tensors.
fn size(table: &Table) -> usize {
    let numbers = table.elements + table.factor_len(Side::Left) + table.factor_len(Side::Right);
    HEADER + ENTRY * table.parts.len() + 4 * numbers + 4
}

fn flags(part: &Part, sent: bool) -> u64 {
    u64::from(part.compressed) * COMPRESSED + u64::from(sent) * SENT
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
    let [version, side, _, zero] = reader.take::<4>();
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
    if side > 1 || zero != 0 {
        return Err(StateError::Field { field: "side", found: u64::from(side) | u64::from(zero) << 8 });
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
