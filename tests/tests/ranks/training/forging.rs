//! A rank beside which a peer or a link changes messages.

use gradwire::{Collective, CollectiveError};
use gradwire_collectives::Threads;
use gradwire_tests::oracle::wire::crc32;

/// A rank whose messages are changed, with checksums that are right.
pub(crate) struct Forging {
    pub(crate) group: Threads,
    /// A value that what it sends holds.
    pub(crate) sent: Option<f32>,
    /// Whether a bit of what it takes of rank 0, or of a sum, is another one.
    pub(crate) takes: bool,
}

impl Forging {
    fn sent(&self, message: &[u8]) -> Vec<u8> {
        match self.sent {
            Some(value) if !message.is_empty() => forged(message, |_| value.to_bits()),
            _ => message.to_vec(),
        }
    }

    fn take(&self, message: &mut Vec<u8>) {
        if self.takes && !message.is_empty() {
            *message = forged(message, turned);
        }
    }
}

/// Nearly the same value.
fn turned(bits: u32) -> u32 {
    bits ^ 1 << 12
}

/// Bytes of a message before its payloads.
const HEAD: usize = 24;
/// Bytes of a payload's header.
const HEADER: usize = 32;

/// A message of which the last value of each selection, and the first scalar of all else, is another one.
fn forged(message: &[u8], change: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut message = message.to_vec();
    let mut at = HEAD;
    while at < message.len() {
        let length = u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes")) as usize;
        forge(&mut message[at + 8..at + 8 + length], &change);
        at += 8 + length;
    }
    message
}

fn forge(payload: &mut [u8], change: &impl Fn(u32) -> u32) {
    const SPARSE: u8 = 3;
    let (is_sparse, quantized) = (payload[5] == SPARSE, payload[6] == 3);
    let turn = |bytes: &mut [u8]| {
        let bits = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        bytes.copy_from_slice(&change(bits).to_le_bytes());
    };
    if is_sparse && quantized {
        // The values are a payload of their own, at the end.
        let inner = payload.windows(4).rposition(|bytes| bytes == b"GWIR").expect("a payload of values");
        forge(&mut payload[inner..], change);
    } else if is_sparse {
        let end = payload.len();
        turn(&mut payload[end - 4..]);
    } else {
        turn(&mut payload[HEADER..HEADER + 4]);
    }
    let sum = crc32(payload[..28].iter().chain(&payload[32..]).copied()).to_le_bytes();
    payload[28..32].copy_from_slice(&sum);
}

impl Collective for Forging {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_gather(&self.sent(mine), all)?;
        self.take(&mut all[0]);
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let to: Vec<Vec<u8>> = to.iter().map(|message| self.sent(message)).collect();
        self.group.all_to_all(&to.iter().map(Vec::as_slice).collect::<Vec<_>>(), from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        values[0] = self.sent.unwrap_or(values[0]);
        self.group.all_reduce_sum(values)?;
        if self.takes {
            values[0] = f32::from_bits(turned(values[0].to_bits()));
        }
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, &self.sent(mine), theirs)?;
        self.take(theirs);
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}
