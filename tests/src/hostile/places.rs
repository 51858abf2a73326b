//! Where foreign bytes say how long something is, by `docs/wire.md`, and bytes in which those places lie behind checksums
//! that are right.

use std::ops::Range;

use gradwire::IndexFormat;

use super::reader;

/// What is claimed: more than any buffer here has, the most that the format allows, what 32 bits and 64 bits end with.
pub const LENGTHS: [u64; 7] = [1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62, u64::MAX];

/// Zeros that are appended: more than a megabyte, so that what grows with every byte is seen.
const APPENDED: usize = (1 << 20) + 8;

/// Bytes of the head of a payload.
const HEAD: usize = 32;
/// Bytes in front of the first payload of a message.
const MESSAGE: usize = 24;
/// Bytes of a length in front of what is that long.
const LENGTH: usize = 8;

/// The end of what goes as far as the bytes do, also if they are cut or extended.
const END: usize = usize::MAX;

/// Bytes with a checksum of their own.
#[derive(Clone, Debug)]
enum Checked {
    /// A payload: the checksum is in its head.
    Payload(Range<usize>),
    /// A state: the checksum ends it.
    State(Range<usize>),
}

/// The places of some bytes that can lie.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Heads and lengths, each a multiple of 4 bytes.
    fields: Vec<Range<usize>>,
    /// What lies within others comes before them.
    checked: Vec<Checked>,
    /// Where the length of all of it stands.
    length: Option<usize>,
}

impl Places {
    /// Those of a payload, dense or sparse.
    #[must_use]
    pub fn of_payload(bytes: &[u8]) -> Self {
        let mut places = Self::default();
        places.payload(bytes, 0..END);
        places
    }

    /// Those of a message of a step.
    #[must_use]
    pub fn of_message(bytes: &[u8]) -> Self {
        let mut places = Self::default();
        places.fields.push(0..MESSAGE.min(bytes.len()));
        for payload in payloads(bytes) {
            places.fields.push(payload.start - LENGTH..payload.start);
            if payload.len() >= HEAD {
                places.payload(bytes, payload);
            }
        }
        places
    }

    /// Those of a state of PowerSGD.
    #[must_use]
    pub fn of_factors(bytes: &[u8]) -> Self {
        let mut places = Self { length: Some(8), ..Self::default() };
        places.factors(bytes, 0..END);
        places
    }

    /// Those of a compressor's state.
    #[must_use]
    pub fn of_state(bytes: &[u8]) -> Self {
        let mut places = Self { length: Some(8), ..Self::default() };
        places.fields.push(0..HEAD);
        for part in sections(bytes, HEAD, bytes.len() - 4) {
            places.fields.push(part.start - LENGTH..part.start);
            if bytes[part.clone()].starts_with(b"GWLR") {
                places.factors(bytes, part);
            } else {
                // The rank and the ranks of an owner; the first numbers of all else.
                places.fields.push(part.start..part.start + (part.len() / 4 * 4).min(8));
            }
        }
        places.checked.push(Checked::State(0..END));
        places
    }

    fn payload(&mut self, bytes: &[u8], at: Range<usize>) {
        let head = &bytes[at.start..at.start + HEAD];
        self.fields.push(at.start..at.start + HEAD);
        // Quantized values of a selection are a payload after the indices.
        if head[5..7] == [3, 3] {
            let (n, count) = (word(&head[8..16]), word(&head[20..24]));
            let inner = at.start + HEAD + IndexFormat::choose(n, count).bytes(n, count) as usize;
            self.payload(bytes, inner..at.end);
        }
        self.checked.push(Checked::Payload(at));
    }

    fn factors(&mut self, bytes: &[u8], at: Range<usize>) {
        let tensors = word(&bytes[at.start + 44..at.start + 48]) as usize;
        self.fields.push(at.start..at.start + 48 + 24 * tensors);
        self.checked.push(Checked::State(at));
    }

    /// Writes the right checksums, as whoever forges bytes would.
    pub fn seal(&self, bytes: &mut [u8]) {
        let length = bytes.len();
        let within = |range: &Range<usize>| range.start.min(length)..range.end.min(length);
        for checked in &self.checked {
            match checked {
                Checked::Payload(range) => reader::seal(&mut bytes[within(range)]),
                Checked::State(range) => reader::seal_state(&mut bytes[within(range)]),
            }
        }
    }

    /// Hands over, with a word on each, the bytes with another length in every field of 4 and of 8 bytes; cut within
    /// and after each field, and before the last byte; and with zeros after the end. All are sealed.
    pub fn lies(&self, bytes: &[u8], mut read: impl FnMut(&[u8], &str)) {
        let mut lie = bytes.to_vec();
        for (at, width) in self.fields.iter().cloned().flat_map(numbers) {
            for length in LENGTHS.into_iter().filter(|length| width == 8 || *length < 1 << 32) {
                lie.copy_from_slice(bytes);
                lie[at..at + width].copy_from_slice(&length.to_le_bytes()[..width]);
                self.seal(&mut lie);
                read(&lie, &format!("{length} in the {width} bytes from {at} on"));
            }
        }
        let fields = self.fields.iter().flat_map(|field| [field.start, field.start + 4, field.end]);
        let mut cuts: Vec<usize> = fields.chain([0, 1, bytes.len() / 2, bytes.len().saturating_sub(1)]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for length in cuts.into_iter().chain([bytes.len() + 1, bytes.len() + APPENDED]) {
            let mut lie = bytes.to_vec();
            lie.resize(length, 0);
            let mut both = |lie: &mut [u8], what: &str| {
                self.seal(lie);
                read(lie, &format!("{length} bytes{what}"));
            };
            both(&mut lie, "");
            if let Some(at) = self.length.filter(|at| at + 8 <= length) {
                lie[at..at + 8].copy_from_slice(&(length as u64).to_le_bytes());
                both(&mut lie, ", as they say");
            }
        }
    }
}

/// Numbers of 4 bytes, and those of 8 that two of them make.
fn numbers(field: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let of = |width: usize| {
        let end = field.end;
        field.clone().step_by(width).filter(move |at| at + width <= end).map(move |at| (at, width))
    };
    of(4).chain(of(8)).collect::<Vec<_>>().into_iter()
}

/// Where the payloads of a message lie.
#[must_use]
pub fn payloads(message: &[u8]) -> Vec<Range<usize>> {
    sections(message, MESSAGE, message.len())
}

/// What follows its length, one after another.
fn sections(bytes: &[u8], mut at: usize, end: usize) -> Vec<Range<usize>> {
    let mut sections = Vec::new();
    while at + LENGTH <= end {
        let from = at + LENGTH;
        at = from + word(&bytes[at..from]) as usize;
        sections.push(from..at);
    }
    sections
}

/// A number of up to 8 bytes.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}
