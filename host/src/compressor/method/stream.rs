//! The operations of every method whose messages are queued on a CUDA stream.

use crate::backend::cuda::Cuda;
use crate::compressor::group::Group;
use crate::compressor::queue::{Place, Queue, Ranks};
use crate::error::{Error, RecipeError};
use crate::plan::{Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

/// A method whose messages are queued on a CUDA stream. Their sizes do not depend on the gradient.
pub(crate) trait Streamed {
    /// Allocates the memory of messages. Returns the bytes of this rank's message, or the most of several.
    fn reserve(&mut self, queue: &Queue<'_, Cuda>, group: &Group, ranks: u32) -> Result<u64, Error>;

    /// The passes of a step, to be compiled beforehand.
    fn passes(&self, limits: &Limits, ranks: u32) -> Result<Vec<Pass>, Error>;

    /// Queues a step: the gradient becomes the mean over the ranks. Formed values are formed before.
    fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        seed: Seed,
    ) -> Result<(), Error>;
}

/// The error of a method whose messages have no fixed size: no recipe that is admitted has one.
pub(crate) fn unfixed() -> Error {
    let what = "what a tensor sends has no fixed size on the device";
    RecipeError::Stages { what, remedy: "use ResidentCompressor::exchange" }.into()
}
