//! What collectives cost on a network.

use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::line::Line;
use crate::network::Network;

/// How ranks exchange bytes. Costs are those of Thakur, Rabenseifner and Gropp (2005), without the time to add, which a
/// measured [`Network`] or the codec's cost has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// All-reduce in a ring: a reduce-scatter and an all-gather of `n - 1` messages each, of a part in `n`.
    Ring,
    /// All-reduce by exchange of everything with a rank at distance 1, 2, 4, ...
    RecursiveDoubling,
    /// All-reduce by a reduction to one rank and a broadcast, both along a binary tree.
    Tree,
    /// All-gather in a ring: `n - 1` messages, each with the bytes of one rank.
    AllGather,
    /// Pieces to the ranks that own them, and the sums of pieces back, encoded again: an all-to-all and an all-gather
    /// of `n - 1` messages each, of a part in `n` (Seide et al. 2014, Grubic et al. 2018).
    TwoPhase,
    /// Selections merged along a binary tree, of which each merge keeps as many entries as one has, and a broadcast of
    /// the result (gTop-k, Shi et al. 2019).
    MergeTree,
    /// All-reduce by pieces to the ranks that own them, and their sums back, the messages of each half sent at once: the
    /// engines `Threads` and `Mpi` of `gradwire-collectives`.
    Direct,
}

/// The most ranks that the costs are computed for. Above, links that are all alike are no model of any machine.
pub const MAX_RANKS: u32 = 65_536;

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ring,
        Self::RecursiveDoubling,
        Self::Tree,
        Self::AllGather,
        Self::TwoPhase,
        Self::MergeTree,
        Self::Direct,
    ];

    /// Seconds over the bytes that each rank has: of the sum for an all-reduce, of its own payload for the all-gather,
    /// for two phases and for the tree of merges.
    ///
    /// With one rank nothing is sent, and everything takes no time.
    ///
    /// | | start | per byte |
    /// |---|---|---|
    /// | ring | `2 (n - 1) alpha` | `2 (n - 1) / n beta` |
    /// | recursive doubling | `s alpha` | `s beta` |
    /// | tree | `2 ceil(log2 n) alpha` | `2 ceil(log2 n) beta` |
    /// | all-gather | `b` | `(n - 1) beta` |
    /// | two phases, direct | `2 b` | `2 (n - 1) / n beta` |
    /// | tree of merges | as the tree | as the tree |
    ///
    /// `b` is the start of `n - 1` messages that a rank sends at once: `alpha + (n - 2) gap` with a
    /// [gap](Network::gap), else `(n - 1) alpha`, as in a ring.
    ///
    /// Recursive doubling has `s = log2 n` steps for a power of two. For others it has `floor(log2 n) + 2`, since the
    /// ranks above the power send to one below it first and get the sum in the end.
    ///
    /// ```
    /// use gradwire_planner::{Algorithm, Line, Network};
    ///
    /// let network = Network::new(1.0, 0.25)?;
    /// assert_eq!(Algorithm::Ring.cost(&network, 4)?, Line::new(6.0, 0.375));
    /// assert_eq!(Algorithm::AllGather.cost(&network, 4)?, Line::new(3.0, 0.75));
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No rank, or more than [`MAX_RANKS`].
    pub fn cost(self, network: &Network, ranks: u32) -> Result<Line, PlanError> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(PlanError::Ranks { found: ranks, most: MAX_RANKS, model: "a collective over links all alike" });
        }
        let (alpha, beta, others) = (network.alpha(), network.beta(), f64::from(ranks - 1));
        let burst = network.burst(others);
        let (start, bytes) = match self {
            Self::Ring => (2.0 * others * alpha, 2.0 * others / f64::from(ranks)),
            Self::TwoPhase | Self::Direct => (2.0 * burst, 2.0 * others / f64::from(ranks)),
            Self::RecursiveDoubling => {
                let extra = if ranks.is_power_of_two() { 0 } else { 2 };
                let steps = f64::from(ranks.ilog2() + extra);
                (steps * alpha, steps)
            }
            Self::Tree | Self::MergeTree => {
                let depth = f64::from(Self::depth(ranks));
                (2.0 * depth * alpha, 2.0 * depth)
            }
            Self::AllGather => (burst, others),
        };
        Ok(Line::new(start, bytes * beta))
    }

    /// Whether it sums in the network, which payloads of most codecs do not allow.
    pub fn sums(self) -> bool {
        !matches!(self, Self::AllGather | Self::TwoPhase | Self::MergeTree)
    }

    /// The depth of a binary tree of `ranks`: messages in sequence from a leaf to the root.
    pub(crate) fn depth(ranks: u32) -> u32 {
        ranks.next_power_of_two().ilog2()
    }
}
