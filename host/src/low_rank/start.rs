//! How a state begins: from a seed, or from the bytes of another one.

use super::LowRankState;
use crate::codec::powersgd::{Matrix, PowerSgd, shared};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::seed::Seed;

impl PowerSgd {
    /// The state for gradients of these tensors, one after another in one buffer: residuals of zeros, and first factors
    /// that depend on the seed. Every worker starts from the same seed. The seed's step is where the state's steps
    /// begin.
    ///
    /// # Errors
    /// [`Error::WorkerSeed`] for a seed of another worker than 0: first factors that differ would make a mean of
    /// factors that is no factor of the mean. [`Error::Rank`] for a rank of 0, above 32, or above min(n, m) of a matrix
    /// that is to be compressed; [`Error::Setting`]; [`Error::TooLong`] for more than 2^31 elements together, or a side
    /// that this machine cannot count; [`Error::Backend`] if there is no memory for it.
    pub fn state(&self, tensors: &[Matrix], seed: Seed) -> Result<LowRankState, Error> {
        let _environment = FloatEnvironment::standard();
        LowRankState::new(*self, self.table(tensors)?, shared(seed)?)
    }

    /// The state that [`LowRankState::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Error::State`] for bytes that are not a state; [`Error::Shape`] for one of other tensors, of another rank, or
    /// with feedback where this codec has none, or the other way round; as [`PowerSgd::state`].
    pub fn restore(&self, tensors: &[Matrix], bytes: &[u8]) -> Result<LowRankState, Error> {
        let _environment = FloatEnvironment::standard();
        LowRankState::from_bytes(*self, self.table(tensors)?, bytes)
    }
}
