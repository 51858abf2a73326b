//! The bytes that ranks send to one another: the head of a message, and the alarm of a rank that fails or leaves.

use std::time::Duration;

use gradwire::CollectiveError;

use super::world::ENGINE;
use crate::op::Op;

/// The first part of every message has its head and up to so many bytes of it together, so that a short message is one
/// of MPI's, and goes out at once.
pub(super) const FIRST: usize = 4096;
/// Bytes of a head.
pub(super) const HEAD: usize = 24;
/// Bytes of an alarm.
pub(super) const ALARM: usize = 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"GWm1");

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

    /// The head at the beginning of a message; nothing where there is none.
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
    /// It leaves, behind so many messages to this rank.
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

/// The beginning of a text, of so many bytes at most, cut between characters.
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

/// A message of `len` bytes in parts of MPI's: bytes that go with the head, and lengths of those behind it.
pub(super) fn parts(len: usize, most: usize) -> (usize, impl Iterator<Item = std::ops::Range<usize>>) {
    let first = len.min(FIRST - HEAD);
    let parts = (first..len).step_by(most.max(1)).map(move |at| at..at.saturating_add(most).min(len));
    (first, parts)
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
        for len in [0, 1, head, head + 1, head + 10, head + 11, 10 * head] {
            let (first, rest) = parts(len, 10);
            let mut at = first;
            for part in rest {
                assert!(part.start == at && !part.is_empty() && part.len() <= 10);
                at = part.end;
            }
            assert!(at == len && first <= head);
        }
        let (_, rest) = parts(5 << 30, 1 << 30);
        assert_eq!(rest.count(), 5, "above what an int counts");
    }
}
