//! What a rank sends in a step: the step, then its payloads, each after its length.

use crate::error::{Error, ExchangeError};
use crate::wire::{CHECKSUM_AT, HEADER_BYTES};

/// Bytes in front of the first payload: magic, version, kind, two zeros, step, the model's checksum, the digest of the
/// step before.
const HEAD: usize = 24;
/// Where the digest is.
const DIGEST_AT: usize = 20;
/// The kind of a message that holds payloads.
const PAYLOADS: u8 = 0;
/// The kind of a message that says that a rank refused its part.
const REFUSED: u8 = 1;
/// The kind of a message that says that a rank's gradient is not finite, and that no recipe refuses it.
const NOT_FINITE: u8 = 2;
const MAGIC: [u8; 4] = *b"GWST";
const VERSION: u8 = 1;
/// The fault of a message that another program may have written.
const NO_HEAD: &str = "does not begin as one of this version does";
/// Bytes of a payload's length.
const LENGTH: usize = 8;

/// A message that is being written, in memory that is kept from step to step.
#[derive(Debug)]
pub(crate) struct Writer<'m> {
    message: &'m mut Vec<u8>,
    at: usize,
}

impl<'m> Writer<'m> {
    pub(crate) fn new(message: &'m mut Vec<u8>, step: u64, model: u32) -> Self {
        let mut writer = Self { message, at: 0 };
        let head = writer.room(HEAD);
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&[VERSION, 0, 0, 0]);
        head[8..16].copy_from_slice(&step.to_le_bytes());
        head[16..20].copy_from_slice(&model.to_le_bytes());
        head[DIGEST_AT..].fill(0);
        writer
    }

    /// Says what this rank took of the step before: in the first message of a step.
    pub(crate) fn digest(self, digest: u32) -> Self {
        self.message[DIGEST_AT..HEAD].copy_from_slice(&digest.to_le_bytes());
        self
    }

    /// A payload.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for it.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.payload(payload.len())?.copy_from_slice(payload);
        Ok(())
    }

    /// The bytes of a payload of this length, to be filled by the caller.
    ///
    /// # Errors
    /// As [`Writer::append`].
    fn payload(&mut self, bytes: usize) -> Result<&mut [u8], Error> {
        self.reserve(LENGTH + bytes)?;
        self.room(LENGTH).copy_from_slice(&(bytes as u64).to_le_bytes());
        Ok(self.room(bytes))
    }

    /// The bytes of payloads of these lengths, to be filled by the caller.
    ///
    /// # Errors
    /// As [`Writer::append`].
    pub(crate) fn payloads(&mut self, lengths: impl Iterator<Item = usize> + Clone) -> Result<Vec<&mut [u8]>, Error> {
        let all = lengths.clone().map(|bytes| LENGTH + bytes).sum();
        self.reserve(all)?;
        let mut rest = self.room(all);
        let mut payloads = Vec::new();
        for bytes in lengths {
            let (length, after) = rest.split_at_mut(LENGTH);
            length.copy_from_slice(&(bytes as u64).to_le_bytes());
            let (payload, after) = after.split_at_mut(bytes);
            payloads.push(payload);
            rest = after;
        }
        Ok(payloads)
    }

    /// Makes sure that there is memory for `bytes` more bytes.
    fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let missing = (self.at + bytes).saturating_sub(self.message.len());
        self.message.try_reserve(missing).map_err(|_| Error::no_memory("a message", missing as u64))
    }

    /// The next bytes. They hold bytes of an earlier step, if it wrote as far: they are overwritten, and zeroing them
    /// would cost time.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.at;
        self.at += bytes;
        if self.message.len() < self.at {
            self.message.resize(self.at, 0);
        }
        &mut self.message[from..self.at]
    }

    /// Writes instead of payloads why rank `rank` sends none, so that the others need not wait for it.
    pub(crate) fn fail(mut self, error: &Error, rank: u32) {
        // Who said so first is passed on.
        let (kind, rank) = match error {
            Error::Exchange(
                ExchangeError::Refused { rank } | ExchangeError::NotFinite { rank } | ExchangeError::Told { rank, .. },
            ) => (REFUSED, *rank),
            Error::Exchange(ExchangeError::Skipped { rank }) => (NOT_FINITE, *rank),
            _ => (REFUSED, rank),
        };
        self.at = HEAD;
        self.room(LENGTH).copy_from_slice(&(size_of::<u32>() as u64).to_le_bytes());
        self.room(size_of::<u32>()).copy_from_slice(&rank.to_le_bytes());
        self.message[5] = kind;
        self.finish();
    }

    /// Ends the message.
    pub(crate) fn finish(self) {
        self.message.truncate(self.at);
    }
}

/// The contents of each rank's message. An error that all ranks know comes before any other one: it ends the step on
/// all of them. A rank's own refusal is the first of these, then one that another rank tells.
pub(crate) fn all<T>(read: impl Iterator<Item = Result<T, Error>>) -> Result<Vec<T>, Error> {
    let mut messages: Vec<_> = read.collect();
    let is_refusal =
        |message: &Result<T, Error>| matches!(message, Err(Error::Exchange(ExchangeError::Refused { .. })));
    let is_known =
        |message: &Result<T, Error>| matches!(message, Err(Error::Exchange(error)) if error.is_known_to_all());
    let is_told = |message: &Result<T, Error>| matches!(message, Err(Error::Exchange(ExchangeError::Told { .. })));
    let first = messages.iter().position(is_refusal).or_else(|| messages.iter().position(is_told));
    if let Some(place) = first.or_else(|| messages.iter().position(is_known)) {
        messages.swap(0, place);
    }
    messages.into_iter().collect()
}

/// The payloads of a message that rank `rank` sent.
pub(crate) fn read(message: &[u8], rank: u32, step: u64, model: u32) -> Result<Vec<&[u8]>, Error> {
    match read_first(message, rank, step, model)? {
        (0, payloads) => Ok(payloads),
        _ => Err(ExchangeError::Message { rank, what: NO_HEAD }.into()),
    }
}

/// The digest and the payloads of the first message of a step that rank `rank` sent.
pub(crate) fn read_first(message: &[u8], rank: u32, step: u64, model: u32) -> Result<(u32, Vec<&[u8]>), Error> {
    let foreign = |what| Error::from(ExchangeError::Message { rank, what });
    let Some((head, mut rest)) = message.split_first_chunk::<HEAD>() else {
        return Err(foreign("is shorter than its head"));
    };
    if head[..4] != MAGIC || head[4] != VERSION || head[6..8] != [0; 2] || head[5] > NOT_FINITE {
        return Err(foreign(NO_HEAD));
    }
    if head[16..DIGEST_AT] != model.to_le_bytes() {
        return Err(ExchangeError::Model { rank }.into());
    }
    let found = u64::from_le_bytes([head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15]]);
    if found != step {
        return Err(ExchangeError::Step { rank, found, expected: step }.into());
    }
    if head[5] != PAYLOADS {
        // Another rank's failure may be passed on. Only what a rank says of itself is taken as its own.
        let of = rest.split_at_checked(LENGTH).and_then(|(_, of)| <[u8; 4]>::try_from(of).ok());
        let (by, rank) = (rank, of.map_or(rank, u32::from_le_bytes));
        return Err(match head[5] {
            NOT_FINITE => ExchangeError::Skipped { rank },
            _ if rank == by => ExchangeError::Refused { rank },
            _ => ExchangeError::Told { rank, by },
        }
        .into());
    }
    let digest = u32::from_le_bytes([head[20], head[21], head[22], head[23]]);
    if step == 0 && digest != 0 {
        return Err(foreign(NO_HEAD));
    }
    let mut payloads = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<LENGTH>() {
        let length = u64::from_le_bytes(*length);
        let Some((payload, behind)) = usize::try_from(length).ok().and_then(|bytes| behind.split_at_checked(bytes))
        else {
            return Err(foreign("ends within a payload"));
        };
        payloads.push(payload);
        rest = behind;
    }
    if rest.is_empty() { Ok((digest, payloads)) } else { Err(foreign("ends within a length")) }
}

/// Notes the kind of a message, and the checksum of each payload. Bytes that are no message have been refused, or will
/// be.
pub(crate) fn note(message: &[u8], taken: &mut crc32fast::Hasher) {
    let Some((head, mut rest)) = message.split_first_chunk::<HEAD>() else { return };
    taken.update(&head[5..6]);
    while let Some((length, after)) = rest.split_first_chunk::<LENGTH>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok();
        let Some((payload, after)) = length.and_then(|bytes| after.split_at_checked(bytes)) else { return };
        taken.update(payload.get(CHECKSUM_AT..HEADER_BYTES).unwrap_or(payload));
        rest = after;
    }
}

/// Refuses the messages of ranks that took different things of the step before. Of one that was damaged on its way to
/// this rank the others do not know.
pub(crate) fn expect_one_mean(digests: impl Iterator<Item = u32>, step: u64) -> Result<(), ExchangeError> {
    // A rank whose state was restored does not know.
    let mut known = (0..).zip(digests).filter(|(_, digest)| *digest != 0);
    let Some((first, digest)) = known.next() else { return Ok(()) };
    match known.find(|(_, other)| *other != digest) {
        Some((rank, _)) => Err(ExchangeError::Parted { first, rank, step: step.wrapping_sub(1) }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: fn(Writer<'_>)) -> Vec<u8> {
        let mut message = Vec::new();
        write(Writer::new(&mut message, 5, 1));
        message
    }

    #[test]
    fn what_all_ranks_know_comes_before_what_is_damaged() {
        let skipped: Error = ExchangeError::Skipped { rank: 7 }.into();
        let mut damaged = written(|writer| writer.finish());
        damaged[0] ^= 1;
        let refused = written(|writer| writer.fail(&Error::NotFinite { index: 0 }, 2));
        let overflowed = written(|writer| writer.fail(&ExchangeError::Skipped { rank: 7 }.into(), 2));
        let whole = written(|mut writer| {
            writer.append(b"payload").expect("memory");
            writer.finish();
        });
        let outcome = |messages: &[&Vec<u8>]| {
            let read = (0..).zip(messages).map(|(rank, message)| read(message, rank, 5, 1));
            all(read).map(|payloads| payloads.concat().concat())
        };
        let refusal = Error::from(ExchangeError::Refused { rank: 2 });
        assert_eq!(outcome(&[&whole, &damaged, &refused]).expect_err("it is refused").to_string(), refusal.to_string());
        let told = Error::from(ExchangeError::Told { rank: 2, by: 1 });
        assert_eq!(outcome(&[&overflowed, &refused]).expect_err("it is refused").to_string(), told.to_string());
        let both = outcome(&[&overflowed, &refused, &refused]).expect_err("it is refused");
        assert_eq!(both.to_string(), refusal.to_string(), "a rank's own word comes first");
        assert_eq!(outcome(&[&damaged, &overflowed]).expect_err("passed on").to_string(), skipped.to_string());
        let damage = outcome(&[&whole, &damaged, &whole]);
        assert!(matches!(damage, Err(Error::Exchange(ExchangeError::Message { rank: 1, .. }))), "{damage:?}");
        assert_eq!(outcome(&[&whole, &whole]).expect("both are whole"), b"payloadpayload");
    }
}
