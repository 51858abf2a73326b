//! The bytes that a rank sends to others in a step, from the settings alone.

use super::super::bound;
use super::super::core::Compressor;
use super::super::part::{Method, Part};
use crate::codec::topk::Keep;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::NonFinite;
use crate::recipe::{Algorithm, Quantize};
use crate::wire::{Entropy, SparseHeader, ValueFormat};

impl Compressor {
    /// The bytes of messages that rank `rank` of `ranks` sends to others in a step, with the part of entries that the
    /// last step kept: [`Algorithm::gather_bytes`], [`Algorithm::tree_bytes`] and [`Algorithm::two_phase_bytes`] of
    /// [`Algorithm::message_bytes`]. `None` if the lengths of payloads depend on the gradient: of packed codes, of
    /// quantized values, of entries above a threshold, and of a part of each sign. Of factors that go through a
    /// quantizer one after another, those of the next step count, and the message without payloads before them.
    ///
    /// What is summed by an all-reduce is not counted: its messages are the engine's own. Nor is what an engine adds.
    /// An all-gather counts as if each rank sent its message to every other one; a ring sends as much.
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
    /// What the codec refuses for the length of a piece; none that making the compressor does not find.
    pub fn sent_bytes(&self, rank: u32, ranks: u32) -> Result<Option<u64>, Error> {
        let _environment = crate::FloatEnvironment::standard();
        let mut gathered = Vec::new();
        let mut sent = 0u64;
        for part in &self.parts {
            let Some(payloads) = part.payload_bytes()? else { return Ok(None) };
            for payloads in part.factor_bytes() {
                let message = Algorithm::message_bytes(payloads);
                sent = sent.saturating_add(Algorithm::gather_bytes(ranks, message));
            }
            let bytes = match part.algorithm(ranks) {
                Algorithm::Gather => {
                    gathered.extend(payloads);
                    continue;
                }
                Algorithm::Tree => {
                    let message = Algorithm::message_bytes(payloads);
                    Algorithm::tree_bytes(rank, ranks, message, message)
                }
                Algorithm::TwoPhase { .. } => {
                    let pieces = (0..ranks).map(|owner| part.piece_bytes(owner, ranks));
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
        let apart = |part: &Part| part.algorithm(ranks) != Algorithm::Gather || part.gathers_factors();
        let others = self.parts.iter().any(apart);
        if guarded || others || !gathered.is_empty() {
            let message = Algorithm::message_bytes(gathered);
            sent = sent.saturating_add(Algorithm::gather_bytes(ranks, message));
        }
        Ok(Some(sent))
    }
}

impl Part {
    /// The bytes of a message for the owner of a piece.
    fn piece_bytes(&self, owner: u32, ranks: u32) -> Result<u64, Error> {
        let payload = |sub| self.plan_of(&sub).map(|plan| plan.payload_bytes() as u64);
        let payloads = self.piece(owner, ranks).into_iter().map(payload).collect::<Result<Vec<_>, _>>()?;
        Ok(Algorithm::message_bytes(payloads))
    }

    /// The bytes of each payload of each factor of the next step that goes through a quantizer.
    fn factor_bytes(&self) -> Vec<Vec<u64>> {
        let Method::LowRank { state, through: Some(through), .. } = &self.method else { return Vec::new() };
        let rounds = (1..=state.rounds()).filter(|_| !through.tensors.is_empty());
        let payloads = |round| through.of(state.side(round)).tensors().iter().map(|plan| plan.payload_bytes() as u64);
        rounds.map(|round| payloads(round).collect()).collect()
    }

    /// The bytes of each payload of a rank, if they do not depend on the gradient.
    fn payload_bytes(&self) -> Result<Option<Vec<u64>>, Error> {
        if self.recipe.entropy != Entropy::None {
            return Ok(None);
        }
        Ok(match &self.method {
            Method::Dense { plan, .. } => Some(plan.tensors().iter().map(|plan| plan.payload_bytes() as u64).collect()),
            Method::Rotated { plan, .. } => Some(vec![plan.payload_bytes() as u64]),
            Method::Sparse { codec, elements, .. } => {
                let dtype = match self.recipe.quantize {
                    Quantize::Exact => Dtype::F32,
                    Quantize::Round(dtype) => dtype,
                    _ => return Ok(None),
                };
                let plan = codec.plan(*elements, Dtype::F32, false)?;
                let count = match codec.keep() {
                    Keep::Above(_) | Keep::Estimate { .. } | Keep::PerSign(_) => return Ok(None),
                    // The last block may have fewer elements.
                    Keep::Blocks { elements: block, k } => {
                        let (n, block, k) = (*elements as u64, *block, *k);
                        (n / block * k.min(block)) + k.min(n % block)
                    }
                    _ => plan.most(),
                };
                let header =
                    SparseHeader { n: *elements as u64, count, values: ValueFormat::Plain(dtype), dtype: Dtype::F32 };
                let body = header.index_bytes() + header.value_bytes().unwrap_or(0);
                Some(vec![crate::wire::HEADER_BYTES as u64 + body])
            }
            Method::LowRank { .. } | Method::Random { .. } => Some(Vec::new()),
        })
    }
}
