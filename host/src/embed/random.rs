//! Random-k in a caller's memory.

use std::borrow::Cow;

use gradwire_kernels::params::{RandomParams, random_flags};

use super::{Checked, Piece, Work, residual, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Role, Span};
use crate::random::{RandomK, passes};
use crate::seed::Seed;

/// The memory that [`EncodeRandom`] works on.
///
/// Pieces that are written must not overlap any other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeRandomBuffers<B> {
    /// The gradient, f32. Read; holds values.
    pub gradient: B,
    /// The residual, f32 as the gradient, with feedback. Read and written; holds values.
    pub residual: Option<B>,
    /// Where the values go, 4 bytes for each of [`RandomK::entries`]. Written.
    pub values: B,
}

/// The memory that [`DecodeRandom`] works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeRandomBuffers<B> {
    /// Values, 4 bytes for each of [`RandomK::entries`]. Read.
    pub values: B,
    /// The gradient, f32. Written; with a weight it holds values. Without one it needs the usage `COPY_DST` on wgpu.
    pub output: B,
}

/// The values of the entries that a seed draws, taken where the gradient lies:
/// [`Device::encode_random`](crate::Device::encode_random), and with feedback
/// [`Device::encode_random_with_feedback`](crate::Device::encode_random_with_feedback), whose bits it leaves.
///
/// Values of several workers are summed where they lie, by any all-reduce; [`DecodeRandom`] then takes the sum. Its
/// passes are refused as those calls are: [`RandomK::entries`], [`Error::FeedbackDiverges`], and [`Error::Limit`] for a
/// gradient that does not fit one binding. A CUDA graph repeats the seed that it was captured with.
///
/// ```
/// use gradwire::embed::{EncodeRandom, EncodeRandomBuffers, Work};
/// use gradwire::{RandomK, Seed};
/// let work = EncodeRandom { codec: RandomK::fraction(0.01), elements: 1000, feedback: true, seed: Seed::new(42) };
/// let pieces = work.pieces(EncodeRandomBuffers { gradient: (), residual: Some(()), values: () })?;
/// let needed: Vec<_> = pieces.iter().map(|piece| (piece.what, piece.needed)).collect();
/// assert_eq!(needed, [("gradient", 4000), ("list of values", 40), ("residual", 4000)]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EncodeRandom {
    /// How many entries.
    pub codec: RandomK,
    /// Elements of the gradient.
    pub elements: u64,
    /// Whether there is a residual: what is taken is of gradient + residual, and the rest stays there.
    pub feedback: bool,
    /// The seed that draws them, of (run, step, tensor).
    pub seed: Seed,
}

/// Values put in the places that a seed draws: over zeros, or with a weight onto the elements there, as
/// [`Device::decode_random`](crate::Device::decode_random) and
/// [`Device::decode_random_add`](crate::Device::decode_random_add) do.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRandom {
    /// How many entries.
    pub codec: RandomK,
    /// Elements of the gradient.
    pub elements: u64,
    /// The weight; none for a decode over zeros.
    pub weight: Option<f32>,
    /// The seed that drew them.
    pub seed: Seed,
}

impl sealed::Sealed for EncodeRandom {}
impl sealed::Sealed for DecodeRandom {}
impl Checked for EncodeRandom {}
impl Checked for DecodeRandom {}

impl Work for EncodeRandom {
    type Buffers<B> = EncodeRandomBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let Self { codec, elements, feedback, seed } = self;
        let params = codec.encode_params(*elements, *seed)?;
        if !feedback {
            return Ok(passes(&params, Kernel::RandomGather, &[Role::Input, Role::Output], limits)?.into());
        }
        codec.check_feedback(params.n.into(), params.entries.into())?;
        let add = RandomParams { entries: params.n, flags: random_flags::ADD, factor: 1f32.to_bits(), ..params };
        let take = RandomParams { flags: random_flags::TAKE, ..params };
        let mut all = passes(&add, Kernel::RandomGather, &[Role::Input, Role::Residual], limits)?;
        all.extend(passes(&take, Kernel::RandomGather, &[Role::Residual, Role::Output], limits)?);
        Ok(all.into())
    }

    fn pieces<B>(&self, buffers: EncodeRandomBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let entries = self.codec.entries(self.elements)?;
        let mut pieces = vec![
            Piece::gradient(buffers.gradient, self.elements, Dtype::F32),
            Piece::floats("list of values", buffers.values, entries, Role::Output),
        ];
        pieces.extend(residual(self.feedback, buffers.residual, self.elements)?);
        Ok(pieces)
    }
}

impl Work for DecodeRandom {
    type Buffers<B> = DecodeRandomBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let params = self.codec.params(self.elements, self.seed)?;
        let Some(weight) = self.weight else {
            let mut all = passes(&params, Kernel::RandomScatter, &[Role::Values, Role::Output], limits)?;
            if self.elements > 0 {
                let bindings = Bindings { output: Span { offset: 0, bytes: 4 * self.elements }, ..Bindings::default() };
                all.insert(0, Pass { kernel: Kernel::Clear, params: Params::Spread(params), bindings, groups: 1 });
            }
            return Ok(all.into());
        };
        let params = RandomParams { flags: random_flags::ACCUMULATE, factor: weight.to_bits(), ..params };
        Ok(passes(&params, Kernel::RandomScatter, &[Role::Values, Role::Output], limits)?.into())
    }

    fn pieces<B>(&self, buffers: DecodeRandomBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let entries = self.codec.entries(self.elements)?;
        // Over zeros it is filled with them first.
        let output = Piece::floats("output", buffers.output, self.elements, Role::Output);
        let output = if self.weight.is_none() { output.scratch(0, 4 * self.elements) } else { output.updated() };
        Ok(vec![Piece::floats("list of values", buffers.values, entries, Role::Values).read(), output])
    }
}
