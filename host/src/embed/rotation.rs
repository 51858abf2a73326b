//! A rotation, and a cosine transform.

use std::borrow::Cow;

use super::{Checked, Piece, Work, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Limits, Pass, Role};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::rotation::tiles::{self, Move};
use crate::rotation::{Dct, Rotation, dct, passes};
use crate::seed::Seed;

/// A rotation: [`Device::rotate`](crate::Device::rotate), or back.
pub(crate) struct Turn {
    pub(crate) rotation: Rotation,
    pub(crate) elements: u64,
    pub(crate) back: bool,
    pub(crate) seed: Seed,
}

/// A cosine transform: [`Device::dct`](crate::Device::dct), or back.
pub(crate) struct Cosine {
    pub(crate) dct: Dct,
    pub(crate) elements: u64,
    pub(crate) back: bool,
}

/// Tiles put one after another, or back. The CPU has none: there it is
/// [`Tiles::order`](crate::rotation::Tiles::order).
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) struct Tiling {
    pub(crate) of: Move,
    pub(crate) elements: u64,
    pub(crate) back: bool,
}

/// The memory of [`Turn`]: f32, [`Rotation::rotated_len`] of them if they are rotated. That of [`Cosine`] and
/// [`Tiling`]: f32, as many as elements.
pub(crate) struct TurnBuffers<B> {
    pub(crate) input: B,
    pub(crate) output: B,
}

impl sealed::Sealed for Turn {}
impl sealed::Sealed for Cosine {}
#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl sealed::Sealed for Tiling {}
impl Checked for Turn {}
impl Checked for Cosine {}
#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl Checked for Tiling {}

impl Work for Turn {
    type Buffers<B> = TurnBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        passes(&self.rotation.params(self.elements, self.back, self.seed)?, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: TurnBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let (whole, rotated) = (self.elements, self.rotation.rotated_len(self.elements));
        let (from, to) = if self.back { (rotated, whole) } else { (whole, rotated) };
        let input = Piece::gradient(buffers.input, from, Dtype::F32);
        Ok(vec![input, Piece::floats("output", buffers.output, to, Role::Output)])
    }
}

impl Work for Cosine {
    type Buffers<B> = TurnBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        dct::passes(&self.dct.params(self.elements, self.back)?, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: TurnBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let input = Piece::gradient(buffers.input, self.elements, Dtype::F32);
        Ok(vec![input, Piece::floats("output", buffers.output, self.elements, Role::Output)])
    }
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl Work for Tiling {
    type Buffers<B> = TurnBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        tiles::passes(&self.of, self.back, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: TurnBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let input = Piece::gradient(buffers.input, self.elements, Dtype::F32);
        // Elements that the tiles do not cover stay as they are.
        Ok(vec![input, Piece::floats("output", buffers.output, self.elements, Role::Output).updated()])
    }
}
