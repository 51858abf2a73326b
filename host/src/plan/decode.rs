//! The plan of a decode.

use gradwire_kernels::params::{DECODE_SPAN, DecodeParams, decode_flags};

use super::role::Sizes;
use super::{ALIGNMENT, Bindings, Kernel, Limits, Params, Pass, Span};
use crate::error::Error;
use crate::wire::{Bucket, Header};

/// What to do with decoded values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecodeMode {
    /// `output = decode(payload)`.
    Write,
    /// `output += weight * decode(payload)`, payload after payload.
    Add(f32),
    /// `output = 0 + weight * decode(payload 0) + weight * decode(payload 1) + ...`, in this order.
    Sum(f32),
}

impl DecodeMode {
    /// The kernels' flags, and the weight.
    pub(crate) fn flags(self) -> (u32, f32) {
        match self {
            Self::Write => (0, 1.0),
            Self::Add(weight) => (decode_flags::ACCUMULATE | decode_flags::WEIGHTED, weight),
            Self::Sum(weight) => (decode_flags::WEIGHTED, weight),
        }
    }
}

/// The most payloads of one sum. It keeps offsets and counts of passes far from where they would wrap.
pub(crate) const MAX_PAYLOADS: u64 = 1 << 16;

/// Checks how many payloads are to be decoded together.
pub(crate) fn check_count(payloads: u64) -> Result<(), Error> {
    if payloads <= MAX_PAYLOADS {
        return Ok(());
    }
    let allowed = "at most 65536; decode the others onto the sum with DecodeMode::Add";
    Err(Error::Setting { what: "the number of payloads of a sum", got: payloads as f64, allowed })
}

/// How to decode one payload, or the sum of several of one kind. Made from a payload's header alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePlan {
    pub(crate) header: Header,
    pub(crate) payloads: u32,
    /// Whether scalars and codes lie together, payload after payload, as in device memory of a caller's.
    pub(crate) bodies: bool,
}

impl DecodePlan {
    /// A plan for `payloads` payloads that have this header. Of packed ones ([`Device::pack`](crate::Device::pack)) it
    /// is the plan for what [`Device::unpack`](crate::Device::unpack) makes of them.
    pub fn new(header: Header, payloads: u32) -> Self {
        Self { header: header.fixed(), payloads, bodies: false }
    }

    /// The header of the payloads.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Payloads that are decoded.
    pub fn payloads(&self) -> u32 {
        self.payloads
    }

    /// Bytes from one payload's scalars to the next one's, in the device's buffer of scalars.
    pub fn scalar_stride(&self) -> u64 {
        if self.bodies { self.header.body_bytes() } else { self.header.scalar_bytes().next_multiple_of(ALIGNMENT) }
    }

    /// Bytes from one payload's codes to the next one's, in the device's buffer of codes.
    pub fn code_stride(&self) -> u64 {
        if self.bodies { self.header.body_bytes() } else { self.header.code_bytes().next_multiple_of(ALIGNMENT) }
    }

    /// Bytes of the output.
    pub fn output_bytes(&self) -> u64 {
        self.header.n * 4
    }

    /// Bytes of each buffer of a session that the plan's passes run in.
    pub fn sizes(&self) -> Sizes {
        let k = u64::from(self.payloads);
        // More than any memory has is refused where it is asked for.
        let [scalars, codes] = [self.scalar_stride(), self.code_stride()].map(|stride| k.saturating_mul(stride));
        Sizes([0, 0, scalars, codes, 0, 0, self.output_bytes(), 0, 0])
    }

    /// The passes, in order.
    ///
    /// Several payloads go in one pass each chunk where their codes fit one binding, and else one after another,
    /// with the same result to the bit.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for any part of the tensor; [`Error::Setting`] for more than
    /// 65,536 payloads.
    pub fn passes(&self, mode: DecodeMode, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = Vec::new();
        let count = u64::from(self.payloads);
        check_count(count)?;
        if self.header.n == 0 || count == 0 {
            return Ok(passes);
        }
        let chunk = limits.chunk(4, DECODE_SPAN)?;
        let (flags, weight) = mode.flags();
        let together = count == 1 || self.code_stride().max(self.scalar_stride()) * count <= limits.binding_bytes;
        let rounds = if together { 1 } else { self.payloads };
        for first in 0..rounds {
            let flags = if first > 0 { flags | decode_flags::ACCUMULATE } else { flags };
            let in_pass = if together { self.payloads } else { 1 };
            self.each_chunk(chunk, &mut passes, flags, weight, first, in_pass);
        }
        Ok(passes)
    }

    fn each_chunk(&self, chunk: u64, passes: &mut Vec<Pass>, flags: u32, weight: f32, first: u32, in_pass: u32) {
        let h = &self.header;
        let mut start = 0;
        while start < h.n {
            let len = chunk.min(h.n - start);
            let (part, before) = (Header { n: len, ..*h }, Header { n: start, ..*h });
            let more = u64::from(in_pass - 1);
            let skip = u64::from(first);
            // A whole tensor has one scalar, which every part reads.
            let scalars_before = if h.bucket == Bucket::Whole { 0 } else { before.scalar_bytes() };
            let scalars = Span {
                offset: skip * self.scalar_stride() + scalars_before,
                bytes: more * self.scalar_stride() + part.scalar_bytes(),
            };
            let codes = Span {
                offset: skip * self.code_stride() + before.code_bytes(),
                bytes: more * self.code_stride() + part.code_bytes(),
            };
            let output = Span { offset: start * 4, bytes: len * 4 };
            let params = DecodeParams {
                n: len as u32,
                bucket_log2: h.bucket.log2(),
                bits: h.bits,
                levels: h.levels,
                flags,
                weight: weight.to_bits(),
                payloads: in_pass,
                scalar_stride: (self.scalar_stride() / 4) as u32,
                code_stride: (self.code_stride() / 4) as u32,
                first_item: 0,
                reserved: [0; 2],
            };
            let bindings = Bindings { scalars, codes, output, ..Bindings::default() };
            let groups = len.div_ceil(u64::from(DECODE_SPAN)) as u32;
            passes.push(Pass { kernel: Kernel::Decode(h.codec), params: Params::Decode(params), bindings, groups });
            start += len;
        }
    }
}
