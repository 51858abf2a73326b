//! A group whose messages bear a key.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use gradwire::{Collective, CollectiveError};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::op::Op;
use crate::sum;

/// Bytes that a message grows by.
const TAG: usize = 32;
/// Bytes that a rank makes up for a session.
const NONCE: usize = 32;
/// The receiver of a message that all ranks get.
const ALL: u32 = u32::MAX;

/// A secret that all ranks of a group are given, and nobody else: 32 bytes of a random number generator.
///
/// It is not printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// These bytes, followed by a code of 32 that only the key gives: a payload or a state for a file, or for a
    /// transport of your own. [`Key::open`] takes the code off.
    ///
    /// The code covers the bytes and nothing else: an older file of the same key opens as well.
    ///
    /// ```
    /// use gradwire_collectives::Key;
    /// use gradwire::{Device, Payload, Qsgd, Seed};
    ///
    /// let key = Key::new([7; 32]);
    /// let payload = Device::cpu().encode(&Qsgd::bits(4), &[0.5f32; 1000], Seed::new(1))?;
    /// let sealed = key.seal(payload.as_bytes());
    /// assert_eq!(Payload::from_bytes(key.open(&sealed)?)?, payload);
    ///
    /// let error = Key::new([8; 32]).open(&sealed).expect_err("another key");
    /// assert!(error.to_string().contains("not sealed with this key"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seal(&self, bytes: &[u8]) -> Vec<u8> {
        sealed(&mac(&self.0), ALONE, bytes)
    }

    /// The bytes that [`Key::seal`] was given.
    ///
    /// # Errors
    ///
    /// [`SealError`] for bytes that were sealed with another key, or not at all, or changed since.
    pub fn open<'b>(&self, sealed: &'b [u8]) -> Result<&'b [u8], SealError> {
        unsealed(&mac(&self.0), ALONE, sealed).ok_or(SealError { bytes: sealed.len() })
    }
}

/// The head that the code of bytes outside of a group covers.
const ALONE: Head = Head { kind: "sealed", number: 0, from: ALL, to: ALL };

/// Bytes that do not bear a key's code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these {bytes} bytes were not sealed with this key; use the key that they were sealed with. If it is the same one, \
     they were changed since: take another copy"
)]
#[non_exhaustive]
pub struct SealError {
    /// How many bytes there are, the code included.
    pub bytes: usize,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A group whose messages are authenticated: each has a code of 32 bytes (HMAC of SHA-256, RFC 2104) that only ranks
/// with the [`Key`] can make.
///
/// It wraps any engine. The code covers the operation, its number since the group was made, sender, receiver and
/// length. So a message that was changed, made up, sent again, or sent to another rank is
/// [`CollectiveError::Forged`], under the number of the rank that it was said to be of. Nothing of such a message is
/// given out, and the group cannot be used any further.
///
/// A rank with the key can still send anything: see SECURITY.md. Nothing is encrypted.
///
/// # Costs
///
/// 32 bytes per message, and an HMAC of all bytes at the sender and at each receiver. A sum travels as an all-to-all
/// and an all-gather, whatever the engine does for sums of its own: each rank sends its values once, but for its own
/// share, and its share of the sums to every other rank. Sums have the bits of [`Threads`](crate::Threads).
///
/// # Example
///
/// ```
/// use gradwire_collectives::{Collective, CollectiveError, Key, Keyed, Threads};
///
/// // The last rank has another key.
/// let keys = [7, 7, 8].map(|byte| Key::new([byte; 32]));
/// let met = std::thread::scope(|scope| {
///     let ranks = Threads::group(3)?.into_iter().zip(&keys);
///     let threads: Vec<_> = ranks.map(|(group, key)| scope.spawn(|| Keyed::new(group, key).map(drop))).collect();
///     Ok(threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Vec<_>>())
/// })?;
/// assert!(matches!(met[0], Err(CollectiveError::Forged { rank: 2, .. })));
/// assert!(matches!(met[2], Err(CollectiveError::Forged { rank: 0, .. })));
/// # Ok::<(), CollectiveError>(())
/// ```
pub struct Keyed<C> {
    /// None after a failure, so that the other ranks hear that this one has left.
    group: Option<C>,
    rank: u32,
    ranks: u32,
    /// Of the key and of what every rank made up: a message of another session does not fit.
    session: Hmac<Sha256>,
    /// Operations of all ranks so far.
    calls: u64,
    /// Exchanges with each rank so far, which ranks that take no part do not count.
    exchanges: Vec<u64>,
}

/// What a code covers beside the bytes and the session.
#[derive(Clone, Copy)]
struct Head {
    kind: &'static str,
    number: u64,
    from: u32,
    to: u32,
}

impl<C: Collective> Keyed<C> {
    /// A group that is ready when every rank has shown that it has the key. Every rank calls this.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Forged`] if a rank has another key; else those of an all-gather.
    pub fn new(mut group: C, key: &Key) -> Result<Self, CollectiveError> {
        let (rank, ranks) = (group.rank(), group.ranks());
        let of_key = mac(&key.0);
        let head = |from| Head { kind: "nonce", number: 0, from, to: ALL };
        let mut nonces = Vec::new();
        group.all_gather(&sealed(&of_key, head(rank), &nonce(rank)), &mut nonces)?;
        let mut session = of_key.clone();
        session.update(b"session");
        for (from, nonce) in (0..).zip(&mut nonces) {
            open(&of_key, head(from), nonce, &Op::AllGather)?;
            session.update(nonce);
        }
        let session = mac(&session.finalize().into_bytes());
        Ok(Self { group: Some(group), rank, ranks, session, calls: 0, exchanges: vec![0; ranks as usize] })
    }

    /// The number of an operation of all ranks.
    fn next(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Makes a call on the group, which is dropped if it fails.
    fn call(
        &mut self,
        work: impl FnOnce(&mut C, &Hmac<Sha256>) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let Some(group) = &mut self.group else {
            let reason = "an operation on it failed before; make a new group".to_owned();
            return Err(CollectiveError::Engine { engine: "Keyed", code: None, reason });
        };
        let done = work(group, &self.session);
        if done.is_err() {
            self.group = None;
        }
        done
    }
}

impl<C: Collective> Collective for Keyed<C> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let (rank, number) = (self.rank, self.next());
        self.call(|group, session| gather(group, session, number, rank, mine, all))
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let (rank, number) = (self.rank, self.next());
        self.call(|group, session| deal(group, session, number, rank, to, from))
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let (rank, ranks, number) = (self.rank, self.ranks, self.next());
        let asked = Op::AllReduce { values: values.len() };
        self.call(|group, session| {
            // Each part begins with how many values there are in all.
            let count = values.len() as u64;
            let part = |to| {
                let values = &values[sum::share(values.len(), ranks, to)];
                [count.to_le_bytes().to_vec(), sum::to_bytes(values)].concat()
            };
            let parts: Vec<Vec<u8>> = (0..ranks).map(part).collect();
            let (to, mut from): (Vec<&[u8]>, _) = (parts.iter().map(Vec::as_slice).collect(), Vec::new());
            deal(group, session, number, rank, &to, &mut from)?;
            let mut sums = vec![0.0; sum::share(values.len(), ranks, rank).len()];
            let mut shares = Vec::new();
            for (rank, part) in (0..).zip(&from) {
                shares.push(counted(part, count).map_err(|found| mismatch(rank, asked, found))?);
            }
            sum::add(&shares, &mut sums);
            let mut all = Vec::new();
            gather(group, session, number, rank, &sum::to_bytes(&sums), &mut all)?;
            for (rank, sums) in (0..).zip(&all) {
                let share = &mut values[sum::share(count as usize, ranks, rank)];
                if sums.len() != 4 * share.len() {
                    return Err(mismatch(rank, asked, format!("{} bytes of sums", sums.len())));
                }
                share.iter_mut().zip(sum::floats(sums)).for_each(|(value, sum)| *value = sum);
            }
            Ok(())
        })
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let (rank, ranks) = (self.rank, self.ranks);
        let number = match self.exchanges.get_mut(peer as usize) {
            Some(count) if peer != rank => {
                *count += 1;
                *count
            }
            _ => return self.call(|_, _| Err(CollectiveError::Rank { got: peer, ranks })),
        };
        self.call(|group, session| {
            let head = |from, to| Head { kind: "exchange", number, from, to };
            group.exchange(peer, &sealed(session, head(rank, peer), mine), theirs)?;
            open(session, head(peer, rank), theirs, &Op::Exchange { peer })
        })
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let (rank, number) = (self.rank, self.next());
        self.call(|group, session| {
            let head = Head { kind: "broadcast", number, from: root, to: ALL };
            if rank == root {
                *bytes = sealed(session, head, bytes);
            }
            group.broadcast(root, bytes)?;
            open(session, head, bytes, &Op::Broadcast { root })
        })
    }
}

fn gather<C: Collective>(
    group: &mut C,
    session: &Hmac<Sha256>,
    number: u64,
    rank: u32,
    mine: &[u8],
    all: &mut Vec<Vec<u8>>,
) -> Result<(), CollectiveError> {
    let head = |from| Head { kind: "gather", number, from, to: ALL };
    group.all_gather(&sealed(session, head(rank), mine), all)?;
    (0..).zip(all).try_for_each(|(from, bytes)| open(session, head(from), bytes, &Op::AllGather))
}

fn deal<C: Collective>(
    group: &mut C,
    session: &Hmac<Sha256>,
    number: u64,
    rank: u32,
    to: &[&[u8]],
    from: &mut Vec<Vec<u8>>,
) -> Result<(), CollectiveError> {
    let head = |from, to| Head { kind: "all-to-all", number, from, to };
    let sealed: Vec<Vec<u8>> = (0..).zip(to).map(|(to, part)| sealed(session, head(rank, to), part)).collect();
    let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
    group.all_to_all(&sealed, from)?;
    (0..).zip(from).try_for_each(|(from, part)| open(session, head(from, rank), part, &Op::AllToAll))
}

/// The values of a part that begins with the expected count. Else an error with the count that it has.
fn counted(part: &[u8], count: u64) -> Result<&[u8], String> {
    match part.split_first_chunk() {
        Some((found, values)) if u64::from_le_bytes(*found) == count => Ok(values),
        Some((found, _)) => Err(format!("a sum of {} values", u64::from_le_bytes(*found))),
        None => Err(format!("{} bytes", part.len())),
    }
}

fn mismatch(rank: u32, asked: Op, found: String) -> CollectiveError {
    CollectiveError::Mismatch { rank, asked: asked.to_string(), found }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

/// The code of a message, not yet finished.
fn coded(session: &Hmac<Sha256>, head: Head, bytes: &[u8]) -> Hmac<Sha256> {
    let Head { kind, number, from, to } = head;
    let mut mac = session.clone();
    // The kinds have different lengths, so the first byte tells what follows.
    mac.update(&[kind.len() as u8]);
    mac.update(kind.as_bytes());
    mac.update(&number.to_le_bytes());
    mac.update(&from.to_le_bytes());
    mac.update(&to.to_le_bytes());
    mac.update(&(bytes.len() as u64).to_le_bytes());
    mac.update(bytes);
    mac
}

fn sealed(session: &Hmac<Sha256>, head: Head, bytes: &[u8]) -> Vec<u8> {
    let code = coded(session, head, bytes).finalize().into_bytes();
    [bytes, code.as_slice()].concat()
}

/// Takes the code off a message, if it is the right one.
fn open(session: &Hmac<Sha256>, head: Head, message: &mut Vec<u8>, asked: &Op) -> Result<(), CollectiveError> {
    let bytes = unsealed(session, head, message).map(<[u8]>::len);
    message.truncate(bytes.unwrap_or(0));
    bytes.map(drop).ok_or_else(|| CollectiveError::Forged { rank: head.from, asked: asked.to_string() })
}

/// The bytes before the code, if it is the right one.
fn unsealed<'b>(key: &Hmac<Sha256>, head: Head, message: &'b [u8]) -> Option<&'b [u8]> {
    let (bytes, code) = message.split_last_chunk::<TAG>()?;
    // The time of the comparison does not depend on the first byte that differs.
    coded(key, head, bytes).verify_slice(code).ok().map(|()| bytes)
}

/// Bytes that no other session has: the standard library seeds a hasher with the system's random numbers, once per
/// thread, and counts on from there.
fn nonce(rank: u32) -> [u8; NONCE] {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let words = [0u64, 1, 2, 3].map(|word| RandomState::new().hash_one((word, rank, std::process::id(), since)));
    let mut nonce = [0; NONCE];
    nonce.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())).for_each(|(to, from)| *to = from);
    nonce
}
