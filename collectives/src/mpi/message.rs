//! The bytes that ranks send to one another: the head of a message, and the alarm of a rank that fails or leaves.

use std::ops::Range;
use std::time::Duration;

use gradwire::CollectiveError;

use super::world::ENGINE;
use crate::op::Op;

/// The most bytes of the first part of a message, which begins with its head. So a short message is one message of MPI,
/// and goes out at once.
pub(super) const FIRST: usize = 4096;
/// Bytes of a head.
pub(super) const HEAD: usize = 24;
/// Bytes after those with the head for which memory is taken before any of them has come.
pub(super) const AHEAD: usize = 16 << 20;
/// Bytes of an alarm.
pub(super) const ALARM: usize = 1024;

/// The number in it changes with what ranks send to one another, [`parts`] among it.
const MAGIC: u32 = u32::from_le_bytes(*b"GWm2");

/// What stands before a message: the operation that it belongs to, and the bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) op: Op,
    pub(super) len: u64,
}

impl Head {
    pub(super) fn to_bytes(self) -> [u8; HEAD] {
        let (kind, number) = self.op.to_numbers();
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The head at the beginning of a message; nothing if there is none.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != MAGIC {
            return None;
        }
        let (kind, number, len) = (reader.u32()?, reader.u64()?, reader.u64()?);
        Some(Self { op: Op::from_numbers(kind, number)?, len })
    }
}

/// What a rank tells all others at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// It leaves, after `sent` messages to this rank.
    Leaves { sent: u64 },
    /// It failed, and so has the group.
    Failed(CollectiveError),
}

impl Alarm {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        let mut put = |kind: u32, a: u64, b: u64, texts: [&str; 2]| {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(a.to_le_bytes());
            bytes.extend(b.to_le_bytes());
            for text in texts {
                let text = cut(text, (ALARM - 64) / 2);
                bytes.extend((text.len() as u32).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        };
        match self {
            Self::Leaves { sent } => put(1, *sent, 0, ["", ""]),
            Self::Failed(error) => match error {
                CollectiveError::Left { rank, asked } => put(2, u64::from(*rank), 0, [asked, ""]),
                CollectiveError::Mismatch { rank, asked, found } => put(3, u64::from(*rank), 0, [asked, found]),
                CollectiveError::Rank { got, ranks } => put(4, u64::from(*got), u64::from(*ranks), ["", ""]),
                CollectiveError::Parts { got, ranks } => put(5, *got as u64, u64::from(*ranks), ["", ""]),
                CollectiveError::Late { rank, asked, waited } => {
                    put(6, u64::from(*rank), u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), [asked, ""]);
                }
                CollectiveError::Engine { code, reason, .. } => {
                    put(7, u64::from(code.is_some()), u64::from(code.unwrap_or(0).cast_unsigned()), [reason, ""]);
                }
                other => put(7, 0, 0, [&other.to_string(), ""]),
            },
        }
        bytes.resize(ALARM, 0);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != MAGIC {
            return None;
        }
        let (kind, a, b) = (reader.u32()?, reader.u64()?, reader.u64()?);
        let (asked, found) = (reader.text()?, reader.text()?);
        let (rank, small) = (u32::try_from(a).ok(), u32::try_from(b).ok());
        Some(Self::Failed(match kind {
            1 => return Some(Self::Leaves { sent: a }),
            2 => CollectiveError::Left { rank: rank?, asked },
            3 => CollectiveError::Mismatch { rank: rank?, asked, found },
            4 => CollectiveError::Rank { got: rank?, ranks: small? },
            5 => CollectiveError::Parts { got: usize::try_from(a).ok()?, ranks: small? },
            6 => CollectiveError::Late { rank: rank?, asked, waited: Duration::from_nanos(b) },
            7 => {
                let code = (a == 1).then_some(small?.cast_signed());
                CollectiveError::Engine { engine: ENGINE, code, reason: asked }
            }
            _ => return None,
        }))
    }
}

/// The beginning of a text, of at most `most` bytes, cut between characters.
fn cut(text: &str, most: usize) -> &str {
    let at = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..at.unwrap_or(0)]
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn text(&mut self) -> Option<String> {
        let len = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// How many bytes of a message of `len` bytes go with its head.
pub(super) fn with_head(len: usize) -> usize {
    len.min(FIRST - HEAD)
}

/// How far a message of `len` bytes is received once `come` of them are there: as many bytes again, and at least
/// [`AHEAD`]. So memory grows with what has come, and not with what a head claims.
pub(super) fn reach(come: usize, len: usize) -> usize {
    come.saturating_add(come.max(AHEAD)).min(len)
}

/// The bytes after those with the head, or a stretch of them from one [`reach`] to another, in parts of MPI's of at
/// most `most` bytes. No part goes beyond a reach, so that sender and receiver cut alike, however much the receiver
/// asks for at once.
pub(super) fn parts(bytes: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let (most, end) = (most.max(1), bytes.end);
    let stage = move |from: usize| (from < end).then(|| from..reach(from, end));
    std::iter::successors(stage(bytes.start), move |before| stage(before.end)).flat_map(move |stage| {
        let end = stage.end;
        stage.step_by(most).map(move |at| at..at.saturating_add(most).min(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_alarms_come_back() {
        for op in [
            Op::AllGather,
            Op::AllToAll,
            Op::AllReduce { values: usize::MAX },
            Op::Exchange { peer: 7 },
            Op::Broadcast { root: u32::MAX },
        ] {
            let head = Head { op, len: 1 << 40 };
            assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
        }
        let asked = || "an all-gather".to_owned();
        let waited = Duration::from_millis(1500);
        for alarm in [
            Alarm::Leaves { sent: 1 << 50 },
            Alarm::Failed(CollectiveError::Left { rank: 3, asked: asked() }),
            Alarm::Failed(CollectiveError::Mismatch { rank: 3, asked: asked(), found: "a broadcast".into() }),
            Alarm::Failed(CollectiveError::Rank { got: 9, ranks: 4 }),
            Alarm::Failed(CollectiveError::Parts { got: 9, ranks: 4 }),
            Alarm::Failed(CollectiveError::Late { rank: 1, asked: asked(), waited }),
            Alarm::Failed(CollectiveError::Engine { engine: ENGINE, code: Some(-5), reason: asked() }),
            Alarm::Failed(CollectiveError::Engine { engine: ENGINE, code: None, reason: asked() }),
        ] {
            assert_eq!(Alarm::from_bytes(&alarm.to_bytes()), Some(alarm));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        assert_eq!(Head::from_bytes(&[0; FIRST]), None);
        assert_eq!(Head::from_bytes(&MAGIC.to_le_bytes()), None);
        assert_eq!(Alarm::from_bytes(&[0; ALARM]), None);
        let mut bytes = Alarm::Failed(CollectiveError::Left { rank: 1, asked: "x".into() }).to_bytes();
        bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Alarm::from_bytes(&bytes), None, "a text of more bytes than there are");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let error = CollectiveError::Engine { engine: ENGINE, code: None, reason: "ä".repeat(4000) };
        let bytes = Alarm::Failed(error).to_bytes();
        assert_eq!(bytes.len(), ALARM);
        let Some(Alarm::Failed(CollectiveError::Engine { reason, .. })) = Alarm::from_bytes(&bytes) else {
            panic!("an alarm")
        };
        assert!(reason.len() > 400 && reason.chars().all(|c| c == 'ä'));
    }

    #[test]
    fn parts_are_all_bytes_once_and_none_is_too_long() {
        let head = FIRST - HEAD;
        let few = [0, 1, head, head + 1, head + 10, head + 11, 10 * head].map(|len| (len, 10));
        let lengths = [AHEAD, head + AHEAD, head + AHEAD + 1, 2 * (head + AHEAD), 5 * AHEAD + 7, 1 << 40];
        let many = lengths.into_iter().flat_map(|len| [1 << 20, 1_000_003, 1 << 30].map(|most| (len, most)));
        for (len, most) in few.into_iter().chain(many) {
            let first = with_head(len);
            let mut at = first;
            for part in parts(first..len, most) {
                assert!(part.start == at && !part.is_empty() && part.len() <= most, "{part:?} of {len}, {most}");
                assert!(part.len() <= at.max(AHEAD), "{part:?} of {len}: more than has come");
                at = part.end;
            }
            assert!(at == len && first <= head);
        }
        let ends: Vec<usize> = parts(head..5 << 30, 1 << 30).map(|part| part.end).collect();
        let doubled: Vec<usize> = (0..7).map(|times| (head + AHEAD) << times).collect();
        assert_eq!((&ends[..7], ends.len()), (&doubled[..], 13), "above what an int counts");
    }

    #[test]
    fn both_ends_cut_a_message_alike() {
        for len in [0, 1, FIRST, AHEAD, AHEAD + FIRST, 3 * AHEAD, 9 * AHEAD + 1, 1 << 34] {
            for most in [1 << 20, 1_000_003, AHEAD, 1 << 30] {
                let first = with_head(len);
                let sent: Vec<_> = parts(first..len, most).collect();
                let (mut come, mut received) = (first, Vec::new());
                while come < len {
                    received.extend(parts(come..reach(come, len), most));
                    come = reach(come, len);
                }
                assert_eq!(sent, received, "{len} bytes, {most} at most");
            }
        }
    }

    /// They are asked for at once, in parts as long as they may be.
    #[test]
    fn a_message_of_some_megabytes_comes_in_one_stretch() {
        for len in [0, 1, FIRST - HEAD, FIRST, 1 << 20, AHEAD, AHEAD + FIRST - HEAD] {
            let first = with_head(len);
            assert_eq!(reach(first, len), len);
            assert!(parts(first..len, 1 << 30).eq((first < len).then_some(first..len)));
            let even = (first..len).step_by(4096).map(|at| at..(at + 4096).min(len));
            assert!(parts(first..len, 4096).eq(even));
        }
    }
}
