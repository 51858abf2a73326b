//! A step of PowerSGD in a caller's memory, call by call.

use std::borrow::Cow;

use super::{Piece, Work, present, sealed};
use crate::error::Error;
use crate::low_rank::resident::ResidentLowRank;
use crate::plan::{Limits, Pass, Role};

/// The memory that a step of PowerSGD works on. Each call uses what it names, and pieces must not overlap. On wgpu each
/// has a buffer of its own.
///
/// Residual and state hold what the calls before left there; before the first one zeros and [`ResidentLowRank::image`],
/// or what [`ResidentLowRank::upload`] gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankBuffers<B> {
    /// The gradients of all tensors, [`ResidentLowRank::gradient_bytes`]. Read by the step's first call, and left out
    /// of the others.
    pub gradient: Option<B>,
    /// The residual, [`ResidentLowRank::residual_bytes`]. Read and written by every call.
    pub residual: B,
    /// Factors and all else that is kept, [`ResidentLowRank::state_bytes`] from a multiple of 256 bytes on. Read and
    /// written by every call; on wgpu its buffer needs the usage `COPY_DST` as well.
    pub state: B,
    /// What goes over the network, [`ResidentLowRank::factor_bytes`]: each call but the last leaves there, from the
    /// start on, [`ResidentLowRank::factor_len`] entries, as that was before it; the next one takes their mean from the
    /// same place.
    pub factors: B,
    /// What all workers together send, [`ResidentLowRank::output_bytes`]. Written by the step's last call, and left out
    /// of the others; it may be the memory that held a gradient of f32.
    pub output: Option<B>,
}

/// The beginning of a step: [`Device::begin_low_rank`](crate::Device::begin_low_rank) where nothing leaves the device.
/// Once the device has come that far, `factors` holds the first factor, to be all-reduced there.
///
/// If it is not queued, the step has not begun; but after [`Error::Backend`], which may come when a part is queued,
/// a state has to be uploaded anew. [`Error::Order`] if another call is due.
#[derive(Debug)]
pub struct BeginLowRank<'s>(pub &'s mut ResidentLowRank);

/// What is between two all-reduces: the factor in `factors`, which holds values, is taken, and the next one is left
/// there.
///
/// If it is not queued, the step is where it was.
#[derive(Debug)]
pub struct AdvanceLowRank<'s>(pub &'s mut ResidentLowRank);

/// The end of a step: the last factor in `factors` is taken, and `output` becomes what all workers together send.
///
/// If it is not queued, the step is where it was.
#[derive(Debug)]
pub struct FinishLowRank<'s>(pub &'s mut ResidentLowRank);

/// One call of a step.
macro_rules! call {
    ($call:ident, $passes:ident) => {
        impl sealed::Sealed for $call<'_> {
            fn queued(self, _: sealed::Surface) {
                self.0.went_on();
            }
        }

        impl Work for $call<'_> {
            type Buffers<B> = LowRankBuffers<B>;

            fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
                self.0.$passes(limits).map(Cow::Owned)
            }

            fn pieces<B>(&self, buffers: LowRankBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
                pieces(self.0, buffers)
            }
        }
    };
}

call!(BeginLowRank, begin);
call!(AdvanceLowRank, advance);
call!(FinishLowRank, finish);

/// The demands of the next call on each piece.
fn pieces<B>(steps: &ResidentLowRank, buffers: LowRankBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
    let elements = steps.elements() as u64;
    let roles = [Some((Role::Workspace, 0)), Some((Role::Status, steps.status_bytes().start))];
    let state = Piece::new("state", buffers.state, steps.state_bytes(), roles);
    let state = state.scratch(steps.state_bytes(), steps.state_bytes());
    let (is_first, is_last) = steps.is_at();
    let factors = Piece::floats("factors", buffers.factors, steps.factor_bytes() / 4, Role::Values);
    let mut pieces = vec![
        Piece::floats("residual", buffers.residual, elements, Role::Residual).updated(),
        Piece { alignment: 256, ..state },
        if is_first { factors } else { factors.updated() },
    ];
    if is_first {
        let gradient = present("gradient", buffers.gradient, steps.gradient_bytes())?;
        pieces.push(Piece::gradient(gradient, elements, steps.dtype()));
    }
    if is_last {
        let output = present("output", buffers.output, steps.output_bytes())?;
        pieces.push(Piece::floats("output", output, elements, Role::Output));
    }
    Ok(pieces)
}
