//! Bytes of a fuzzer as edits of messages and states: lengths and checksums are corrected after them, so that what
//! lies behind a checksum is reached.

use gradwire_tests::hostile::reader;
use gradwire_tests::oracle::wire::crc32;

/// The most edits of an input.
const MOST: usize = 32;
/// The parts from here on are the head, which stands before them.
const HEAD: u8 = 0xc0;
/// From here on, what is edited is all of the bytes, once lengths and checksums are set.
const WHOLE: u8 = 0xe0;
/// Of an edit's kind: checksums stay as they were.
const UNSEALED: u8 = 0x80;
/// Bytes of a part's length.
const LENGTH: usize = 8;

/// Bytes that choose. Behind the last one there are zeros.
#[derive(Clone, Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next bytes, fewer at the end.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The edits that the rest stands for.
    pub fn edits(mut self) -> Vec<Edit<'a>> {
        let mut edits = Vec::new();
        while !self.0.is_empty() && edits.len() < MOST {
            let (of, kind, part) = (self.byte(), self.byte(), self.byte());
            let at = usize::from(u16::from_le_bytes([self.byte(), self.byte()]));
            let count = usize::from(self.byte() % 16);
            edits.push(Edit { of, kind, part, at, bytes: self.take(count) });
        }
        edits
    }
}

/// A change of the bytes of one message or state.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// Which message or state, by turns.
    of: u8,
    kind: u8,
    part: u8,
    at: usize,
    bytes: &'a [u8],
}

/// What becomes of a message as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrives {
    /// It arrives.
    Once,
    /// It is lost, and the group says nothing.
    Never,
    /// It arrives twice.
    Twice,
    /// The group fails.
    Fails,
}

impl Edit<'_> {
    /// Whether it is of the message or state of this number, of so many.
    pub fn is_of(&self, number: usize, count: usize) -> bool {
        usize::from(self.of) % count.max(1) == number
    }

    /// What it makes of the message as a whole.
    pub fn arrives(&self) -> Arrives {
        match (self.kind % 16, self.at % 4) {
            (15, 0) => Arrives::Never,
            (15, 1) => Arrives::Twice,
            (15, 2) => Arrives::Fails,
            _ => Arrives::Once,
        }
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        let at = self.at % (length + 1);
        let end = (at + self.bytes.len()).min(length);
        match self.kind % 16 {
            0..=3 => bytes[at..end].copy_from_slice(&self.bytes[..end - at]),
            4 => bytes.iter_mut().skip(at).zip(self.bytes).for_each(|(byte, by)| *byte ^= by),
            5 => bytes.iter_mut().skip(at).zip(self.bytes).for_each(|(byte, by)| *byte = byte.wrapping_add(*by)),
            6 => drop(bytes.splice(at..at, self.bytes.iter().copied())),
            7 => drop(bytes.drain(at..end)),
            8 => bytes.truncate(at),
            9 => bytes.iter_mut().skip(at).zip(self.bytes.iter().cycle()).for_each(|(byte, by)| *byte = *by),
            10 => bytes.resize(at, 0),
            _ => {}
        }
    }
}

/// A head, and parts after it, each after its length.
struct Parts {
    head: Vec<u8>,
    parts: Vec<Vec<u8>>,
}

impl Parts {
    /// What has no parts is all head.
    fn of(bytes: &[u8], head: usize) -> Self {
        let whole = || Self { head: bytes.to_vec(), parts: Vec::new() };
        let Some((head, mut rest)) = bytes.split_at_checked(head) else { return whole() };
        let mut parts = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<LENGTH>() {
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let Some((part, behind)) = behind.split_at_checked(length) else { return whole() };
            parts.push(part.to_vec());
            rest = behind;
        }
        if rest.is_empty() { Self { head: head.to_vec(), parts } } else { whole() }
    }

    fn edit(&mut self, edit: &Edit<'_>) {
        let count = self.parts.len();
        if count == 0 || edit.part >= HEAD {
            edit.apply(&mut self.head);
            return;
        }
        let (place, other) = (usize::from(edit.part) % count, edit.at % count);
        match edit.kind % 16 {
            11 => drop(self.parts.remove(place)),
            12 => self.parts.insert(place, self.parts[other].clone()),
            13 => self.parts.swap(place, other),
            14 => self.parts[place] = edit.bytes.to_vec(),
            _ => edit.apply(&mut self.parts[place]),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        for part in &self.parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }
}

/// A message of a step with these edits, in order. Its payloads have the right checksum.
pub fn message(bytes: &[u8], edits: &[Edit<'_>]) -> Vec<u8> {
    edited(bytes, 24, edits, |bytes| bytes.to_vec())
}

/// A saved state with these edits, in order. Its length and its checksum are right, and those of the factors in it.
pub fn state(bytes: &[u8], edits: &[Edit<'_>]) -> Vec<u8> {
    let (body, _) = bytes.split_last_chunk::<4>().unwrap_or((bytes, &[0; 4]));
    edited(body, 32, edits, |body| {
        let mut bytes = [body, &[0; 4][..]].concat();
        seal_whole(&mut bytes);
        bytes
    })
}

fn edited(bytes: &[u8], head: usize, edits: &[Edit<'_>], seal: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut parts = Parts::of(bytes, head);
    edits.iter().filter(|edit| edit.part < WHOLE).for_each(|edit| parts.edit(edit));
    if edits.iter().all(|edit| edit.kind < UNSEALED) {
        parts.parts.iter_mut().for_each(|part| seal_part(part));
    }
    let mut bytes = seal(&parts.bytes());
    edits.iter().filter(|edit| edit.part >= WHOLE).for_each(|edit| edit.apply(&mut bytes));
    bytes
}

/// Puts the checksum of a payload right, or that of factors.
fn seal_part(part: &mut [u8]) {
    if part.starts_with(b"GWLR") {
        seal_whole(part);
        return;
    }
    // The values of a selection may be a payload of their own, at its end.
    if let Some(inner) = part.windows(4).rposition(|bytes| bytes == b"GWIR") {
        reader::seal(&mut part[inner..]);
    }
    reader::seal(part);
}

/// Puts length and checksum of a state right, where it has room for them.
fn seal_whole(bytes: &mut [u8]) {
    let size = bytes.len() as u64;
    let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() else { return };
    if let Some(field) = body.get_mut(8..16) {
        field.copy_from_slice(&size.to_le_bytes());
    }
    *checksum = crc32(body.iter().copied()).to_le_bytes();
}
