//! The bytes that a rank sends to others in a step, from the settings alone.

use super::bound;
use super::core::Compressor;
use super::method::Part;
use super::method::dense::plan_of;
use super::method::low_rank::LowRank;
use crate::error::Error;
use crate::plan::NonFinite;
use crate::recipe::Algorithm;
use crate::wire::Entropy;

impl Compressor {
    /// The bytes of messages that rank `rank` of `ranks` sends to others in a step, with the part of entries that the
    /// last step kept: [`Algorithm::gather_bytes`], [`Algorithm::tree_bytes`] and [`Algorithm::two_phase_bytes`] of
    /// [`Algorithm::message_bytes`]. `None` if the lengths of payloads depend on the gradient: of packed codes, of
    /// quantized values, of entries above a threshold, and of a part of each sign. Of factors that go through a
    /// quantizer one after another, those of the next step count, and the message without payloads before them.
    ///
    /// Sums by an all-reduce are not counted, since their messages are the engine's own. Nor are an engine's own
    /// headers. An all-gather counts as if each rank sent its message to every other one; a ring sends as much.
    ///
    /// ```
    /// use gradwire::Compressor;
    /// // 4096 elements of 4 bits, and a scale for each of 64 buckets: 2304 bytes in four pieces. Two phases send
    /// // 2 * 3/4 of that, and six heads of messages, lengths and headers of payloads.
    /// // A message without payloads goes before, from each rank to all others.
    /// let compressor = Compressor::new("qsgd:bits=4,bucket=64+ef+twophase", [[64, 64]], 7)?;
    /// assert_eq!(compressor.sent_bytes(0, 4)?, Some(2304 * 2 * 3 / 4 + 6 * (24 + 8 + 32) + 3 * 24));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// The codec's errors for the length of a piece; all of them are found when the compressor is made.
    pub fn sent_bytes(&self, rank: u32, ranks: u32) -> Result<Option<u64>, Error> {
        let _environment = crate::FloatEnvironment::standard();
        let mut gathered = Vec::new();
        let mut sent = 0u64;
        for part in &self.parts {
            let Some(payloads) = payload_bytes(part)? else { return Ok(None) };
            let factors = part.method.low_rank().map_or(Vec::new(), LowRank::factor_bytes);
            for payloads in factors {
                let message = Algorithm::message_bytes(payloads);
                sent = sent.saturating_add(Algorithm::gather_bytes(ranks, message));
            }
            let bytes = match part.group.algorithm(ranks) {
                Algorithm::Gather => {
                    gathered.extend(payloads);
                    continue;
                }
                Algorithm::Tree => {
                    let message = Algorithm::message_bytes(payloads);
                    Algorithm::tree_bytes(rank, ranks, message, message)
                }
                Algorithm::TwoPhase { .. } => {
                    let pieces = (0..ranks).map(|owner| piece_bytes(part, owner, ranks));
                    Algorithm::two_phase_bytes(rank, &pieces.collect::<Result<Vec<_>, _>>()?)
                }
            };
            sent = sent.saturating_add(bytes);
        }
        if bound::gathers(&self.whole) {
            let elements: u64 = self.whole.iter().map(|tensor| tensor.span.elements).sum();
            gathered.push(crate::wire::HEADER_BYTES as u64 + 4 * elements);
        }
        let guarded = self.recipes.iter().any(|recipe| recipe.non_finite == NonFinite::Error);
        let apart = |part: &Part| part.group.algorithm(ranks) != Algorithm::Gather || part.gathers_factors();
        let others = self.parts.iter().any(apart);
        if guarded || others || !gathered.is_empty() {
            let message = Algorithm::message_bytes(gathered);
            sent = sent.saturating_add(Algorithm::gather_bytes(ranks, message));
        }
        Ok(Some(sent))
    }
}

/// The bytes of each payload of a rank, if they do not depend on the gradient.
fn payload_bytes(Part { group, method }: &Part) -> Result<Option<Vec<u64>>, Error> {
    match group.recipe.entropy {
        Entropy::None => method.settings().payload_bytes(group),
        _ => Ok(None),
    }
}

/// The bytes of a message for the owner of a piece.
fn piece_bytes(Part { group, method }: &Part, owner: u32, ranks: u32) -> Result<u64, Error> {
    let pieces = method.dense().map_or(Vec::new(), |dense| dense.piece(group, owner, ranks));
    let payload = |sub| plan_of(group, &sub).map(|plan| plan.payload_bytes() as u64);
    let payloads = pieces.into_iter().map(payload).collect::<Result<Vec<_>, _>>()?;
    Ok(Algorithm::message_bytes(payloads))
}
