//! The plan of an encode.

use std::ops::Range;

use gradwire_kernels::arith::eden;
use gradwire_kernels::arith::minifloat::Format;
use gradwire_kernels::codecs::{Variance, wire_flags};
use gradwire_kernels::params::{EncodeParams, SPAN, encode_flags};

use super::policy::NonFinite;
use super::role::Sizes;
use super::{ALIGNMENT, Bindings, Kernel, Limits, Params, Pass, STATUS_BYTES, Span};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::seed::Seed;
use crate::wire::{Bucket, CodecId, Entropy, Header};

/// The final statistic's room at the front of the workspace.
const FINAL_BYTES: u64 = ALIGNMENT;

/// The bound on E|C(x) - x|^2 / |x|^2 of a quantizer with `elements` elements a bucket and `levels` levels.
pub(crate) fn omega(codec: CodecId, elements: u64, levels: u32) -> f64 {
    FloatEnvironment::within(|| bound(codec, elements, levels))
}

fn bound(codec: CodecId, elements: u64, levels: u32) -> f64 {
    let (elements, s) = (elements as f64, f64::from(levels));
    match codec.variance() {
        Variance::Contraction => 1.0 - 1.0 / elements.max(1.0),
        // At least 1, so that feedback is refused whatever the length.
        Variance::Signs => (elements - 1.0).max(1.0),
        Variance::Centroids => {
            let of_width = eden::CENTROIDS[(levels.ilog2() as usize).min(3)];
            let (low, high) = (f64::from(of_width[0]), f64::from(of_width[of_width.len() - 1]));
            (elements * (low + high) * (low + high) / (4.0 * low * high) - 1.0).max(1.0)
        }
        Variance::Decades => 0.9205 + (elements * 0.25e-12).min(elements.sqrt() * 1e-6),
        Variance::Formats => {
            let format = Format::of(levels);
            let place = 2f64.powi(-(format.mantissa as i32));
            // The largest magnitude is above half of the largest number, and numbers are so far apart below the lowest.
            let largest = f64::from(levels % (1 << format.mantissa)) * place + 1.0;
            let apart = 2f64.powi(format.lowest - format.mantissa as i32 - format.highest() + 1) / largest;
            place * place / (4.0 * (1.0 + place)) + (elements * apart * apart / 4.0).min(elements.sqrt() * apart)
        }
        Variance::Powers => {
            0.125 + (elements * 4f64.powi(-(levels as i32))).min(elements.sqrt() * 2f64.powi(1 - levels as i32))
        }
        Variance::Stochastic { linear, root } => (linear * elements / (s * s)).min(root * elements.sqrt() / s),
    }
}

/// What makes the scale of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Its elements, as the codec has it.
    Own,
    /// Nothing: it is 1.
    One,
    /// As its own, and at most this many standard deviations.
    Clipped(f32),
    /// This many times its own.
    Stretched(f32),
    /// Its own, and at least this power of two.
    AtLeast(f32),
}

/// How to encode a tensor of one length and type with one codec.
///
/// Made by [`crate::Codec::plan`]. Sizes are pure functions of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncodePlan {
    pub(crate) header: Header,
    /// How the payload's codes are packed once it is made.
    pub(crate) entropy: Entropy,
    pub(crate) nearest: bool,
    pub(crate) scale: Scale,
    pub(crate) feedback: bool,
    pub(crate) omega: f64,
    pub(crate) non_finite: NonFinite,
}

impl EncodePlan {
    /// The same plan with error feedback fused: what is encoded is gradient + residual, and the residual becomes what
    /// decoding does not give back.
    ///
    /// # Errors
    /// [`Error::FeedbackDiverges`] if the codec's variance factor omega, [`EncodePlan::omega`], is 1 or more and the
    /// codec is not the contraction: feedback would amplify the error at every step (`contractive()` is the remedy).
    pub fn with_feedback(self) -> Result<Self, Error> {
        let _environment = FloatEnvironment::standard();
        // Where the scale is held up from below, to nearest, no error is above half a step, however many steps are
        // taken.
        let bounded = self.nearest && matches!(self.scale, Scale::AtLeast(_));
        if self.omega < 1.0 || bounded || (self.header.scaled && !self.nearest) {
            return Ok(Self { feedback: true, ..self });
        }
        let remedy = match (self.scale, self.header.codec) {
            (Scale::One, CodecId::Float) => {
                Some("elements may lie outside of the format's range; use scaled(), whose range follows the bucket")
            }
            (Scale::One, _) => Some(
                "signs alone say nothing of how large the elements are; use Sign::new(), whose scale is their mean",
            ),
            (Scale::Clipped(_), _) => {
                Some("what is clipped has no bound; leave out the clip and use contractive(), or Ternary::nearest()")
            }
            (_, CodecId::Eden) => Some(
                "its scale makes errors that may be larger than the gradient; use Quantile::levels(16), or OneBit::new(), \
                 whose means make a contraction",
            ),
            (_, CodecId::Drive) => Some(
                "its scale makes errors that may be larger than the gradient; use Sign::new(), the same signs with their \
                 mean, which is a contraction",
            ),
            _ => None,
        };
        if let Some(remedy) = remedy {
            return Err(Error::FeedbackDiverges { omega: self.omega, remedy: remedy.into() });
        }
        let settings = self.settings_with_feedback();
        let contracts = self.header.codec.wire_flags() & wire_flags::SCALED != 0;
        let or = settings.as_ref().map_or_else(String::new, |settings| format!(", or {settings}"));
        let remedy = if let (false, Some(settings)) = (contracts, settings) {
            format!("use {settings}")
        } else if self.nearest {
            format!(
                "nearest rounding cannot be scaled into a contraction; use stochastic rounding with contractive(){or}"
            )
        } else {
            format!("use contractive(), which sends C(x)/(1 + omega){or}")
        };
        Err(Error::FeedbackDiverges { omega: self.omega, remedy })
    }

    /// The nearest settings for which omega is below 1: the narrowest codes with this bucket, the largest bucket with
    /// these levels.
    fn settings_with_feedback(&self) -> Option<String> {
        let h = &self.header;
        let here = h.bucket.elements(h.n);
        let converges = |elements: u64, levels: u32| omega(h.codec, elements, levels) < 1.0;
        let bits = (1..=16).find(|bits| h.codec.packs(*bits) && converges(here, h.codec.max_levels(*bits)));
        let bucket = (5..=13).rev().map(|log2| 1u64 << log2).find(|size| *size < here && converges(*size, h.levels));
        let bits = bits.map(|bits| format!("{bits} bits or more with all their levels"));
        let bucket = bucket.map(|bucket| format!("buckets of {bucket} elements or fewer"));
        let both: Vec<String> = bits.into_iter().chain(bucket).collect();
        (!both.is_empty()).then(|| both.join(", or "))
    }

    /// Whether the residual is fused.
    pub fn feedback(&self) -> bool {
        self.feedback
    }

    /// Whether the passes look for elements that are not finite, and leave in the status word where the first is.
    pub fn is_guarded(&self) -> bool {
        self.non_finite == NonFinite::Error
    }

    /// The bound on E|C(x) - x|^2 / |x|^2 of the unscaled codec at this length. Infinite if there is none.
    pub fn omega(&self) -> f64 {
        self.omega
    }

    /// The same plan without the packing of the payload.
    pub(crate) fn fixed(&self) -> Self {
        Self { entropy: Entropy::None, ..*self }
    }

    /// Refuses a plan whose payload's length is not known before it is made.
    pub(crate) fn refuse_packed(&self, asked: &'static str) -> Result<(), Error> {
        if self.is_packed() { Err(Error::Packed { asked }) } else { Ok(()) }
    }

    /// Whether the payload's codes are packed.
    pub fn is_packed(&self) -> bool {
        self.entropy != Entropy::None
    }

    /// How the payload's codes are packed ([`Qsgd::elias`](crate::Qsgd::elias), [`Qsgd::delta`](crate::Qsgd::delta),
    /// [`Ternary::base3`](crate::Ternary::base3)).
    pub fn entropy(&self) -> Entropy {
        self.entropy
    }

    /// The same plan with this packing of the payload's codes.
    ///
    /// # Errors
    /// [`Error::NotPacked`] for codes that cannot be packed so.
    pub fn packed(self, entropy: Entropy) -> Result<Self, Error> {
        let (codec, bits) = (self.header.codec, self.header.bits);
        if entropy.fits(codec, bits, self.header.levels) {
            return Ok(Self { entropy, ..self });
        }
        Err(Error::NotPacked { asked: entropy.name(), takes: entropy.takes(), codec: codec.name(), bits })
    }

    /// What the payload will say of itself, if it is not packed: the words of packed codes are known only once they are
    /// made.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Elements of the gradient.
    pub fn len(&self) -> usize {
        self.header.n as usize
    }

    /// Whether the gradient has no element.
    pub fn is_empty(&self) -> bool {
        self.header.n == 0
    }

    /// Bytes of the payload, header included. Of one that is packed, the most that it may have. `usize::MAX` where that
    /// is more than this machine addresses, and so more than any buffer has.
    pub fn payload_bytes(&self) -> usize {
        let bytes = self.header.most_bytes(self.entropy);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Bytes of each buffer of a session that the plan's passes run in.
    pub fn sizes(&self) -> Sizes {
        let h = &self.header;
        let input = (h.n * h.dtype.bytes() as u64).next_multiple_of(4);
        let residual = if self.feedback { h.n * 4 } else { 0 };
        Sizes([input, residual, h.scalar_bytes(), h.code_bytes(), self.scratch_bytes() as u64, STATUS_BYTES, 0, 0, 0])
    }

    /// Bytes of statistics between passes. Zero unless the tensor is one bucket.
    pub(crate) fn scratch_bytes(&self) -> usize {
        match self.header.bucket {
            Bucket::Of(_) => 0,
            Bucket::Whole => (FINAL_BYTES + self.partials() * self.partial_bytes()) as usize,
        }
    }

    fn partials(&self) -> u64 {
        self.header.n.div_ceil(u64::from(SPAN))
    }

    /// Bytes of a partial statistic.
    fn partial_bytes(&self) -> u64 {
        u64::from(self.header.codec.partial_words()) * 4
    }

    pub(crate) fn params(&self, seed: Seed) -> EncodeParams {
        let _environment = FloatEnvironment::standard();
        let h = &self.header;
        let whole = h.bucket == Bucket::Whole;
        let mut flags = 0;
        let mut set = |on: bool, flag| flags |= if on { flag } else { 0 };
        set(h.l2, encode_flags::L2);
        set(self.nearest, encode_flags::NEAREST);
        set(self.feedback, encode_flags::FEEDBACK);
        set(self.scale == Scale::One, encode_flags::UNIT);
        set(matches!(self.scale, Scale::Clipped(_)), encode_flags::CLIPPED);
        set(matches!(self.scale, Scale::AtLeast(_)), encode_flags::AT_LEAST);
        // A whole tensor's elements are tiny beside its norm; 16 bits would round most of them away.
        set(whole, encode_flags::WIDE);
        set(self.is_guarded(), encode_flags::GUARDED);
        let beta = match self.scale {
            Scale::Clipped(factor) | Scale::Stretched(factor) | Scale::AtLeast(factor) => factor,
            _ if h.scaled => (1.0 / (1.0 + self.omega)) as f32,
            _ => 1.0,
        };
        EncodeParams {
            n: 0,
            first_unit: 0,
            bucket_log2: h.bucket.log2(),
            bits: h.bits,
            levels: h.levels,
            fraction: gradwire_kernels::arith::round::fraction_bits(h.levels),
            flags,
            dtype: h.dtype.tag().into(),
            beta: beta.to_bits(),
            key: seed.key(),
            tensor: seed.tensor_word(),
            step: seed.step_words(),
            partials: self.partials() as u32,
            base: 0,
        }
    }

    /// The passes, in order.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for any part of the tensor; [`Error::Packed`] for a plan whose
    /// payload is packed.
    pub fn passes(&self, seed: Seed, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let _environment = FloatEnvironment::standard();
        self.refuse_packed("a list of passes")?;
        let mut passes = Vec::new();
        if self.header.n == 0 {
            return Ok(passes);
        }
        let chunk = limits.chunk(4, SPAN)?;
        let base = self.params(seed);
        let codec = self.header.codec;
        if self.is_guarded() {
            self.scan(chunk, &mut passes, base);
        }
        if self.header.bucket == Bucket::Whole {
            self.each_chunk(chunk, &mut passes, Kernel::Stats(codec), base);
            let bindings = Bindings {
                workspace: Span { offset: 0, bytes: self.scratch_bytes() as u64 },
                scalars: Span { offset: 0, bytes: self.header.scalar_bytes() },
                ..Bindings::default()
            };
            passes.push(Pass { kernel: Kernel::Combine(codec), params: Params::Encode(base), bindings, groups: 1 });
        }
        self.each_chunk(chunk, &mut passes, Kernel::Encode(codec), base);
        Ok(passes)
    }

    /// The passes that leave the partial statistics of a tensor that is one bucket in the workspace, and no other.
    pub(crate) fn statistics(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = Vec::new();
        if self.header.n > 0 {
            let chunk = limits.chunk(4, SPAN)?;
            self.each_chunk(chunk, &mut passes, Kernel::Stats(self.header.codec), self.params(Seed::new(0)));
        }
        Ok(passes)
    }

    /// The bytes of the workspace that hold the partial statistics of a tensor that is one bucket.
    pub(crate) fn statistic_bytes(&self) -> Range<u64> {
        FINAL_BYTES..self.scratch_bytes() as u64
    }

    /// The passes that look for an element that is not finite, and no other.
    pub(crate) fn finite_scan(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = Vec::new();
        if self.header.n > 0 {
            self.scan(limits.chunk(4, SPAN)?, &mut passes, self.params(Seed::new(0)));
        }
        Ok(passes)
    }

    fn scan(&self, chunk: u64, passes: &mut Vec<Pass>, base: EncodeParams) {
        let status = Span { offset: 0, bytes: STATUS_BYTES };
        let bindings = Bindings { status, ..Bindings::default() };
        passes.push(Pass { kernel: Kernel::Clear, params: Params::Encode(base), bindings, groups: 1 });
        self.each_chunk(chunk, passes, Kernel::FiniteScan, base);
    }

    fn each_chunk(&self, chunk: u64, passes: &mut Vec<Pass>, kernel: Kernel, base: EncodeParams) {
        let n = self.header.n;
        let mut start = 0;
        while start < n {
            let len = chunk.min(n - start);
            let params = EncodeParams { n: len as u32, first_unit: (start / 256) as u32, ..base };
            let bindings = self.bindings(kernel, start, len);
            let groups = len.div_ceil(u64::from(SPAN)) as u32;
            passes.push(Pass { kernel, params: Params::Encode(params), bindings, groups });
            start += len;
        }
    }

    fn bindings(&self, kernel: Kernel, start: u64, len: u64) -> Bindings {
        let h = &self.header;
        let part = Header { n: len, ..*h };
        let before = Header { n: start, ..*h };
        let whole = h.bucket == Bucket::Whole;
        let size = h.dtype.bytes() as u64;
        let mut b = Bindings {
            input: Span { offset: start * size, bytes: (len * size).next_multiple_of(4) },
            ..Default::default()
        };
        if self.feedback {
            b.residual = Span { offset: start * 4, bytes: len * 4 };
        }
        match kernel {
            Kernel::FiniteScan => b.status = Span { offset: 0, bytes: STATUS_BYTES },
            Kernel::Stats(_) => {
                let partial = self.partial_bytes();
                let first = start / u64::from(SPAN) * partial;
                let count = len.div_ceil(u64::from(SPAN));
                b.workspace = Span { offset: FINAL_BYTES + first, bytes: count * partial };
            }
            Kernel::Encode(_) => {
                b.codes = Span { offset: before.code_bytes(), bytes: part.code_bytes() };
                if whole {
                    b.workspace = Span { offset: 0, bytes: FINAL_BYTES };
                } else {
                    b.scalars = Span { offset: before.scalar_bytes(), bytes: part.scalar_bytes() };
                }
                if self.is_guarded() {
                    b.status = Span { offset: 0, bytes: STATUS_BYTES };
                }
            }
            _ => {}
        }
        b
    }
}

/// Whether a gradient of this type and length fits the plan.
pub(crate) fn check_input(plan: &EncodePlan, dtype: Dtype, len: usize) -> Result<(), Error> {
    if dtype != plan.header.dtype {
        return Err(Error::Dtype { expected: plan.header.dtype.name(), found: dtype.name() });
    }
    Error::expect_len("gradient", "elements", len, plan.header.n)
}
