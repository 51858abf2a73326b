//! Queued work as values: the passes, the memory that they need, and what follows once they are queued.

use std::borrow::Cow;
use std::ops::Range;

use super::Piece;
use crate::error::Error;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Limits, Pass, Role, check_count, refuse_not_finite};
use crate::seed::Seed;
use crate::wire::Header;

/// What a caller queues in memory of its own, on any surface: `Cuda::queue`, `Cuda::queue_views` for cudarc,
/// `Wgpu::record`, `Wgpu::run_async`, `Cpu::run`, and `OnStream::queue` of the adapter for cust.
///
/// Work is a value, such as [`Encode`]. Its buffers are a struct with a name for each piece of memory; `B` is how a
/// surface names one: `DeviceSlice`, `View`, `wgpu::BufferSlice` or `HostSlice`. The trait is implemented here alone.
///
/// ```
/// use gradwire::embed::{Encode, EncodeBuffers, Work};
/// use gradwire::{Codec, Dtype, Qsgd, Seed};
/// let plan = Qsgd::bits(4).plan(1000, Dtype::F32)?;
/// // Which memory it takes can be asked without any.
/// let none = EncodeBuffers { gradient: (), residual: None, body: (), workspace: None };
/// let pieces = Encode { plan: &plan, seed: Seed::new(42) }.pieces(none)?;
/// let needed: Vec<_> = pieces.iter().map(|piece| (piece.what, piece.needed)).collect();
/// assert_eq!(needed, [("gradient", 4000), ("body", plan.header().body_bytes())]);
/// # Ok::<(), gradwire::Error>(())
/// ```
pub trait Work: sealed::Sealed {
    /// The memory that it works on.
    type Buffers<B>;

    /// Its passes, in order, for a device of these limits. None if there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for any part of it; those that the work's own page has.
    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error>;

    /// Its demands on each piece of memory.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::NoResidual`] for a piece that is needed and left out; those that the work's own
    /// page has.
    fn pieces<B>(&self, buffers: Self::Buffers<B>) -> Result<Vec<Piece<B>>, Error>;
}

/// Work that takes on trust nothing that it finds in memory: whatever the bytes are, it stays within its pieces.
pub trait Checked: Work {}

pub(crate) mod sealed {
    use std::ops::Range;

    use crate::error::Error;
    use crate::plan::{Pass, Role};

    /// Keeps [`Work`](super::Work) to this crate: a surface believes the sizes that work asks for.
    pub trait Sealed {
        /// What of its scratch says how its passes ended, a few bytes each: read before its results.
        fn asks(&self, _passes: &[Pass]) -> Vec<(Role, Range<u64>)> {
            Vec::new()
        }

        /// Refuses the work by the answers; or says how many words of its results there are, if the work decides that.
        ///
        /// # Errors
        /// Those of the work.
        fn judge(&self, _passes: &[Pass], _answers: &[Vec<u8>]) -> Result<u64, Error> {
            Ok(0)
        }

        /// What follows once it is queued, which a surface alone can say.
        fn queued(self, _: Surface)
        where
            Self: Sized,
        {
        }
    }

    /// What only this crate makes.
    #[derive(Debug)]
    pub struct Surface(pub(crate) ());
}

/// The memory that an encode works on.
///
/// Pieces that are written must not overlap any other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeBuffers<B> {
    /// The gradient, [`EncodePlan::gradient_bytes`]; of many tensors the flat one. Read; holds values.
    pub gradient: B,
    /// The residual, 4 bytes per element, where the plan has feedback. Read and written; holds values.
    pub residual: Option<B>,
    /// Where the payload's body goes, [`Header::body_bytes`], or [`ModelPlan::body_bytes`] of many tensors. Scalars and
    /// codes are written; bytes between them and after them may stay as they were.
    pub body: B,
    /// Scratch of [`EncodePlan::workspace_bytes`] or [`ModelPlan::workspace_bytes`], where that is not zero. It may
    /// hold anything, and begins at a multiple of 4 bytes, or of 16 where buckets are whole tensors.
    pub workspace: Option<B>,
}

/// The memory that a decode works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeBuffers<B> {
    /// Bodies, one after another, [`Header::body_bytes`] each. Read; hold bytes, any bytes.
    pub bodies: B,
    /// Where the values go, f32. Written; read with [`DecodeMode::Add`], and then it holds values. Of
    /// many tensors it is always read, since elements between them stay.
    pub output: B,
}

/// The memory that work on a model's tensors needs: `T` is [`EncodeBuffers`] or [`DecodeBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithTable<B, T> {
    /// The plan's table, [`ModelPlan::table_bytes`]. Read; holds [`ModelPlan::table`] of this very plan, but for its
    /// first eight bytes, which are added to the step of the seed. On wgpu it shares a buffer with no other piece.
    pub table: B,
    /// All else.
    pub buffers: T,
}

/// An encode.
///
/// Determinism, formats and edge cases are those of [`Device::encode`](crate::Device::encode): once the device has come
/// that far, the body holds the same bytes. Under [`NonFinite::Error`](crate::NonFinite::Error) the verdict is in the
/// workspace: [`EncodePlan::check_workspace`]. A CUDA graph repeats the seed that it was captured with.
#[derive(Clone, Copy, Debug)]
pub struct Encode<'p> {
    /// The codec and the elements.
    pub plan: &'p EncodePlan,
    /// The seed of its draws.
    pub seed: Seed,
}

/// A decode of one body, or of the sum of several, over or onto an output. A plan for no payloads is refused:
/// [`Error::Setting`].
#[derive(Clone, Copy, Debug)]
pub struct Decode<'p> {
    /// How many bodies, and of what.
    pub plan: &'p DecodePlan,
    /// What becomes of the output.
    pub mode: DecodeMode,
}

/// An encode of many tensors in one launch set: [`Encode`] for a [`ModelPlan`].
///
/// The plan is made for the limits of the device that runs it, else [`Error::Limit`].
#[derive(Clone, Copy, Debug)]
pub struct EncodeModel<'p> {
    /// The codec and the elements.
    pub plan: &'p ModelPlan,
    /// The seed of its draws.
    pub seed: Seed,
}

/// A decode of many tensors' bodies: [`Decode`] for a [`ModelPlan`]. [`Error::Setting`] for no payloads.
#[derive(Clone, Copy, Debug)]
pub struct DecodeModel<'p> {
    /// Of what.
    pub plan: &'p ModelPlan,
    /// What becomes of the output.
    pub mode: DecodeMode,
    /// How many bodies lie one after another, [`ModelPlan::body_bytes`] each.
    pub payloads: u32,
}

impl sealed::Sealed for Encode<'_> {
    fn asks(&self, _: &[Pass]) -> Vec<(Role, Range<u64>)> {
        status(self.plan.is_guarded())
    }

    fn judge(&self, _: &[Pass], answers: &[Vec<u8>]) -> Result<u64, Error> {
        refuse_not_finite(word(answers, 0)).map(|()| 0)
    }
}

impl sealed::Sealed for EncodeModel<'_> {
    fn asks(&self, _: &[Pass]) -> Vec<(Role, Range<u64>)> {
        status(self.plan.is_guarded())
    }

    fn judge(&self, _: &[Pass], answers: &[Vec<u8>]) -> Result<u64, Error> {
        refuse_not_finite(word(answers, 0)).map(|()| 0)
    }
}

impl sealed::Sealed for Decode<'_> {}
impl sealed::Sealed for DecodeModel<'_> {}
impl Checked for Encode<'_> {}
impl Checked for Decode<'_> {}

impl Work for Encode<'_> {
    type Buffers<B> = EncodeBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        self.plan.passes(self.seed, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: EncodeBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let (h, plan) = (self.plan.header(), self.plan);
        let gradient = Piece::gradient(buffers.gradient, h.n, h.dtype);
        let body = body("body", buffers.body, h, 1);
        let mut pieces = vec![gradient, body];
        pieces.extend(residual(plan.feedback(), buffers.residual, h.n)?);
        let workspace = [Some((Role::Status, 0)), Some((Role::Workspace, plan.status_room()))];
        pieces.extend(scratch(buffers.workspace, plan.workspace_bytes(), workspace, plan.scratch_bytes() > 0)?);
        Ok(pieces)
    }
}

impl Work for Decode<'_> {
    type Buffers<B> = DecodeBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        refuse_none(self.plan.payloads())?;
        self.plan.of_bodies().passes(self.mode, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: DecodeBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        refuse_none(self.plan.payloads())?;
        let bodies = body("bodies", buffers.bodies, self.plan.header(), self.plan.payloads()).read();
        Ok(vec![bodies, output(buffers.output, self.plan.header().n, self.mode)])
    }
}

impl Work for EncodeModel<'_> {
    type Buffers<B> = WithTable<B, EncodeBuffers<B>>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let passes = self.plan.encode_passes(self.seed);
        limits.check(&passes).map(|()| Cow::Owned(passes))
    }

    fn pieces<B>(&self, WithTable { table, buffers }: Self::Buffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let plan = self.plan;
        let elements = plan.layout().elements();
        let gradient = Piece::gradient(buffers.gradient, elements, plan.dtype());
        let body = bodies("body", buffers.body, plan.codes_offset(), plan.body_bytes());
        let mut pieces = vec![gradient, body, self.plan.table_piece(table)];
        pieces.extend(residual(plan.feedback(), buffers.residual, elements)?);
        let workspace = [Some((Role::Status, 0)), None];
        pieces.extend(scratch(buffers.workspace, plan.workspace_bytes(), workspace, plan.has_statistics())?);
        Ok(pieces)
    }
}

impl Work for DecodeModel<'_> {
    type Buffers<B> = WithTable<B, DecodeBuffers<B>>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        refuse_none(self.payloads)?;
        check_count(self.payloads.into())?;
        let passes = self.plan.decode_passes(self.mode, self.payloads, [self.plan.body_bytes(); 2]);
        limits.check(&passes).map(|()| Cow::Owned(passes))
    }

    fn pieces<B>(&self, WithTable { table, buffers }: Self::Buffers<B>) -> Result<Vec<Piece<B>>, Error> {
        refuse_none(self.payloads)?;
        let bytes = u64::from(self.payloads).saturating_mul(self.plan.body_bytes());
        let bodies = bodies("bodies", buffers.bodies, self.plan.codes_offset(), bytes).read();
        // What lies between tensors is left as it was.
        let output = output(buffers.output, self.plan.layout().elements(), self.mode).updated();
        Ok(vec![bodies, output, self.plan.table_piece(table)])
    }
}

/// Refuses to decode no payloads: their sum would be zeros on the CPU, and a GPU would leave the output as it was.
fn refuse_none(payloads: u32) -> Result<(), Error> {
    if payloads > 0 {
        return Ok(());
    }
    Err(Error::Setting { what: "the number of payloads that are decoded", got: 0.0, allowed: "1 to 65536" })
}

impl ModelPlan {
    fn table_piece<B>(&self, table: B) -> Piece<B> {
        Piece::new("table", table, self.table_bytes(), [Some((Role::Workspace, 0)), None]).read()
    }
}

/// The status, of work that scans for non-finite elements.
fn status(is_guarded: bool) -> Vec<(Role, Range<u64>)> {
    is_guarded.then_some((Role::Status, 0..4)).into_iter().collect()
}

/// An answer that is a word; zero if it was not asked for.
pub(crate) fn word(answers: &[Vec<u8>], at: usize) -> u32 {
    answers.get(at).and_then(|answer| answer.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// One body or several, one after another.
fn body<B>(what: &'static str, buffer: B, header: &Header, count: u32) -> Piece<B> {
    bodies(what, buffer, header.codes_offset(), u64::from(count).saturating_mul(header.body_bytes()))
}

fn bodies<B>(what: &'static str, buffer: B, codes_offset: u64, bytes: u64) -> Piece<B> {
    Piece::new(what, buffer, bytes, [Some((Role::Scalars, 0)), Some((Role::Codes, codes_offset))])
}

/// The output of a decode.
fn output<B>(buffer: B, elements: u64, mode: DecodeMode) -> Piece<B> {
    let output = Piece::floats("output", buffer, elements, Role::Output);
    if matches!(mode, DecodeMode::Add(_)) { output.updated() } else { output }
}

/// The residual of a plan with feedback.
pub(crate) fn residual<B>(feedback: bool, buffer: Option<B>, elements: u64) -> Result<Option<Piece<B>>, Error> {
    if !feedback {
        return Ok(None);
    }
    let buffer = buffer.ok_or(Error::NoResidual { expected: 4 * elements, unit: "bytes" })?;
    Ok(Some(Piece::floats("residual", buffer, elements, Role::Residual).updated()))
}

/// A piece that is needed here and may be left out elsewhere.
pub(crate) fn present<B>(what: &'static str, buffer: Option<B>, expected: u64) -> Result<B, Error> {
    buffer.ok_or(Error::Length { what, found: 0, expected, unit: "bytes" })
}

/// The workspace of an encode, if it needs one.
fn scratch<B>(
    buffer: Option<B>,
    needed: u64,
    roles: [Option<(Role, u64)>; 2],
    statistics: bool,
) -> Result<Option<Piece<B>>, Error> {
    if needed == 0 {
        return Ok(None);
    }
    let piece = Piece::new("workspace", present("workspace", buffer, needed)?, needed, roles).scratch(0, 0);
    // Partial statistics are read sixteen bytes at a time, all else word by word.
    Ok(Some(Piece { alignment: if statistics { 16 } else { 4 }, ..piece }))
}
