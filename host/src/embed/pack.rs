//! Codes that are packed, and unpacked.

use std::borrow::Cow;
use std::ops::Range;

use super::work::word;
use super::{Piece, Work, sealed};
use crate::entropy::Layout;
use crate::entropy::payload::bytes_of_total;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Limits, Pass, Role};
use crate::wire::{Entropy, Header};

/// Packs codes of fixed width, of which there is at least one: [`Device::pack`](crate::Device::pack).
pub(crate) struct Pack<'p> {
    /// Of the payload, which is not packed.
    pub(crate) header: &'p Header,
    pub(crate) entropy: Entropy,
    /// Who packs, for an error.
    pub(crate) device: BackendKind,
}

/// Unpacks codes, of which there is at least one: [`Device::unpack`](crate::Device::unpack). The table of the packed
/// ones is taken on trust; that of a payload was checked when it was read.
pub(crate) struct Unpack<'p> {
    /// Of the packed payload.
    pub(crate) header: &'p Header,
}

/// The memory of [`Pack`] and [`Unpack`].
pub(crate) struct PackBuffers<B> {
    /// Codes of fixed width.
    pub(crate) codes: B,
    /// Packed codes: the table, in whole words, and the words of the units. What [`Pack`] writes of it has as many
    /// words as there are.
    pub(crate) packed: B,
    /// Scratch, for sums of words.
    pub(crate) sums: B,
    /// Scratch, for the number of words.
    pub(crate) count: B,
}

impl sealed::Sealed for Pack<'_> {
    fn asks(&self, _: &[Pass]) -> Vec<(Role, Range<u64>)> {
        vec![(Role::Status, 0..4)]
    }

    fn judge(&self, _: &[Pass], answers: &[Vec<u8>]) -> Result<u64, Error> {
        Ok(bytes_of_total(self.device, self.header, self.entropy, word(answers, 0))? / 4)
    }
}

impl sealed::Sealed for Unpack<'_> {}

impl Work for Pack<'_> {
    type Buffers<B> = PackBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let passes = Layout::new(self.header, self.entropy).pack();
        limits.check(&passes).map(|()| passes.to_vec().into())
    }

    fn pieces<B>(&self, buffers: PackBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let [codes, packed, scratch @ ..] = pieces(&Layout::new(self.header, self.entropy), buffers);
        let [sums, count] = scratch;
        Ok(vec![codes.read(), packed, sums, count])
    }
}

impl Work for Unpack<'_> {
    type Buffers<B> = PackBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let passes = Layout::new(self.header, self.header.entropy()).unpack();
        limits.check(&passes).map(|()| passes.to_vec().into())
    }

    fn pieces<B>(&self, buffers: PackBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let [codes, packed, sums, count] = pieces(&Layout::new(self.header, self.header.entropy()), buffers);
        Ok(vec![codes, packed.read(), sums, count])
    }
}

/// Codes, packed codes, sums and count.
fn pieces<B>(layout: &Layout, buffers: PackBuffers<B>) -> [Piece<B>; 4] {
    let sizes = layout.sizes();
    let piece = |what, buffer, role| Piece::new(what, buffer, sizes.of(role), [Some((role, 0)), None]);
    [
        piece("codes", buffers.codes, Role::Codes),
        piece("packed codes", buffers.packed, Role::Values),
        piece("sums of words", buffers.sums, Role::Workspace).scratch(0, 0),
        piece("count of words", buffers.count, Role::Status).scratch(0, 0),
    ]
}
