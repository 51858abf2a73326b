//! How payloads go from rank to rank.

/// How payloads of the ranks become their mean: the messages of a step, and who sums.
///
/// Every algorithm leaves the same bits on every rank, whatever the order in which messages arrive: sums are made in an
/// order that the numbers of the ranks fix. With error feedback nothing is lost: the gradients and all residuals before
/// a step add up to the number of ranks times the mean, and all residuals after it, but for the rounding of binary32.
/// Gradients lie in the host's memory, but for [`Algorithm::Gather`].
///
/// | algorithm | messages of a rank | for |
/// |---|---|---|
/// | [`Algorithm::Gather`] | its payload, to all others | any recipe |
/// | [`Algorithm::Tree`] | a payload to its parent, and the result to its children | selections with `ef` |
/// | [`Algorithm::TwoPhase`] | a piece to each rank, and its own piece of the sum to all others | quantizers |
///
/// A message is [`Algorithm::HEAD_BYTES`], and for each payload [`Algorithm::LENGTH_BYTES`] and the payload. A step by
/// a tree or in two phases begins with a gather of messages, without payloads unless other recipes have some: a rank
/// that cannot begin says so there.
///
/// ```
/// use gradwire::{Algorithm, Recipe};
/// let tree: Recipe = "topk:0.01+ef+gtopk".parse()?;
/// assert_eq!(tree.algorithm(), Algorithm::Tree);
/// let pieces: Recipe = "qsgd:bits=4,bucket=64+ef+twophase:from=4".parse()?;
/// assert_eq!(pieces.algorithm(), Algorithm::TwoPhase { from: 4 });
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// An all-gather of payloads; every rank sums all of them, in the order of the ranks.
    #[default]
    Gather,
    /// The tree of gTop-k: each rank adds the selection of its child to its own, selects anew, and hands the result to
    /// its parent. Rank 0 hands its result down the same tree.
    ///
    /// Source: Shi, Wang, Zhao, Tang, Wang, Huang and Chu, "A distributed synchronous SGD algorithm with global top-k
    /// sparsification for low bandwidth networks", ICDCS 2019, algorithm 2. Theirs takes numbers of ranks that are
    /// powers of two, and loses what a merge drops of an entry that reaches the result by another way. Here any number
    /// of ranks goes, and the rank that merges keeps what drops in its residual
    /// ([`Device::merge_sparse`](crate::Device::merge_sparse)).
    ///
    /// The parent of rank r is r without its lowest set bit, and merges go from the nearest child to the farthest.
    /// So each sum is of neighbouring ranks.
    Tree,
    /// Each rank owns a piece of the gradient: payloads of the pieces go to their owners (an all-to-all), which sum
    /// them in the order of the ranks, quantize the sum, and send it to all (an all-gather). Pieces end where buckets
    /// end.
    ///
    /// With error feedback the owner keeps a residual too: what its quantized sum does not hold is added to the next
    /// sum. Without feedback, of an unbiased quantizer with factor omega, the mean z of P ranks is unbiased, and E|z -
    /// mean|^2 <= (1 + omega) omega / P^2 sum |x_p|^2 + omega |mean|^2.
    ///
    /// Source: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel
    /// distributed training of speech DNNs", Interspeech 2014, section 3.3, as CNTK has it: the aggregated gradient is
    /// quantized again, with a residual of its own; Grubic, Tam, Alistarh and Zhang, "Synchronous multi-GPU deep
    /// learning with low-precision communication", EDBT 2018, section 2.3.
    TwoPhase {
        /// The least number of ranks with which it is used; fewer gather. 1 or more.
        from: u32,
    },
}

impl Algorithm {
    /// Bytes in front of the payloads of a message.
    pub const HEAD_BYTES: u64 = 24;
    /// Bytes in front of each payload.
    pub const LENGTH_BYTES: u64 = 8;

    /// The bytes of a message with payloads of these lengths.
    ///
    /// ```
    /// assert_eq!(gradwire::Algorithm::message_bytes([100, 50]), 24 + 108 + 58);
    /// ```
    pub fn message_bytes(payloads: impl IntoIterator<Item = u64>) -> u64 {
        payloads
            .into_iter()
            .fold(Self::HEAD_BYTES, |sum, payload| sum.saturating_add(Self::LENGTH_BYTES).saturating_add(payload))
    }

    /// The bytes that a rank sends to others in an all-gather of `message` bytes: (P - 1) times the message.
    pub fn gather_bytes(ranks: u32, message: u64) -> u64 {
        u64::from(ranks.saturating_sub(1)).saturating_mul(message)
    }

    /// The bytes that a rank sends to others in a tree, where its own message towards the root has `up` bytes and the
    /// result has `down`: `up` unless it is rank 0, and `down` for each child. Rank 0 has the most children, the
    /// logarithm of the number of ranks, rounded up.
    ///
    /// ```
    /// use gradwire::Algorithm;
    /// assert_eq!(Algorithm::tree_bytes(0, 8, 100, 100), 300);
    /// assert_eq!(Algorithm::tree_bytes(6, 8, 100, 100), 200);
    /// assert_eq!(Algorithm::tree_bytes(7, 8, 100, 100), 100);
    /// ```
    pub fn tree_bytes(rank: u32, ranks: u32, up: u64, down: u64) -> u64 {
        let (up, children) = (if rank == 0 { 0 } else { up }, Self::children(rank, ranks).count() as u64);
        up.saturating_add(children.saturating_mul(down))
    }

    /// The bytes that a rank sends to others in two phases, where the message for the owner of piece q has `pieces[q]`
    /// bytes, and the owner's message to all has as many: those of all other pieces, and P - 1 times its own. Of pieces
    /// of one size that is 2 (P - 1) / P of all their bytes.
    ///
    /// ```
    /// use gradwire::Algorithm;
    /// assert_eq!(Algorithm::two_phase_bytes(1, &[250; 4]), 1000 * 2 * 3 / 4);
    /// ```
    pub fn two_phase_bytes(rank: u32, pieces: &[u64]) -> u64 {
        let own = pieces.get(rank as usize).copied().unwrap_or(0);
        let all = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(*piece));
        (all - own).saturating_add((pieces.len() as u64).saturating_sub(1).saturating_mul(own))
    }

    /// The ranks that hand their selections to this one in a tree, nearest first.
    pub(crate) fn children(rank: u32, ranks: u32) -> impl DoubleEndedIterator<Item = u32> {
        let steps = if rank == 0 { u32::BITS } else { rank.trailing_zeros() };
        (0..steps)
            .map(move |bit| u64::from(rank) + (1u64 << bit))
            .filter(move |child| *child < u64::from(ranks))
            .map(|c| c as u32)
    }

    /// The rank to which this one hands its selection in a tree.
    pub(crate) fn parent(rank: u32) -> Option<u32> {
        (rank != 0).then(|| rank & (rank - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::Algorithm;

    #[test]
    fn every_rank_but_the_root_is_the_child_of_its_parent_alone() {
        for ranks in 1..70 {
            let mut parents = vec![Vec::new(); ranks as usize];
            for rank in 0..ranks {
                Algorithm::children(rank, ranks).for_each(|child| parents[child as usize].push(rank));
            }
            assert!(parents[0].is_empty());
            for rank in 1..ranks {
                assert_eq!(
                    parents[rank as usize],
                    [Algorithm::parent(rank).expect("not the root")],
                    "{rank} of {ranks}"
                );
            }
        }
    }
}
