//! The majority of the signs of payloads.

use std::borrow::Cow;

use super::{Checked, Piece, Work, sealed};
use crate::error::Error;
use crate::plan::{Limits, Pass, Role};
use crate::vote::{UNIT, UNIT_BYTES, passes};

/// The majority of the codes of payloads of signs: [`Device::vote`](crate::Device::vote).
pub(crate) struct Votes {
    pub(crate) payloads: u32,
    pub(crate) elements: u64,
}

/// The memory of [`Votes`].
pub(crate) struct VotesBuffers<B> {
    /// The payloads' codes, as [`Votes::parts`] places them. Read.
    pub(crate) codes: B,
    /// The votes, f32. Written.
    pub(crate) output: B,
}

impl Votes {
    /// Bytes of a payload's codes.
    pub(crate) fn code_bytes(&self) -> u64 {
        self.elements.div_ceil(UNIT) * UNIT_BYTES
    }

    /// The codes of each payload, cut at the passes for a device of these limits: those of a pass are contiguous,
    /// payload by payload.
    ///
    /// # Errors
    /// [`Error::Limit`] for limits that are too small for any part.
    pub(crate) fn parts<'c>(&self, codes: &[&'c [u8]], limits: &Limits) -> Result<Vec<(u64, &'c [u8])>, Error> {
        let mut parts = Vec::new();
        for pass in passes(self.elements, self.payloads, limits)? {
            let (input, output) = (pass.bindings.input, pass.bindings.output);
            let (each, from) = (input.bytes / u64::from(self.payloads), output.offset / 4 / UNIT * UNIT_BYTES);
            for (codes, place) in codes.iter().zip(0..) {
                parts.push((input.offset + place * each, &codes[from as usize..(from + each) as usize]));
            }
        }
        Ok(parts)
    }
}

impl sealed::Sealed for Votes {}
impl Checked for Votes {}

impl Work for Votes {
    type Buffers<B> = VotesBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        passes(self.elements, self.payloads, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: VotesBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let bytes = u64::from(self.payloads) * self.code_bytes();
        let codes = Piece::new("codes", buffers.codes, bytes, [Some((Role::Input, 0)), None]).read();
        Ok(vec![codes, Piece::floats("output", buffers.output, self.elements, Role::Output)])
    }
}
