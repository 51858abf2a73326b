//! A plan is data: the passes that encode or decode a tensor, over named buffers, with sizes and launch shapes.
//!
//! A plan knows no backend, and a backend knows no codec: it is handed passes. Everything here is pure.

use gradwire_kernels::params::{
    DECODE_SPAN, DecodeParams, EncodeParams, LowRankParams, PARTIAL_WORDS, SPAN, ScatterParams, SelectParams,
    decode_flags, encode_flags,
};

use crate::codec::NonFinite;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::seed::Seed;
use crate::session::Role;
use crate::wire::{Bucket, CodecId, HEADER_BYTES, Header};

/// A kernel, by what it does. Backends map it to a PTX entry point, a WGSL entry point or a CPU function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Writes zeros over what is bound of the status, the workspace and the output.
    Clear,
    /// Leaves in the status word where the first element is that is not finite.
    FiniteScan,
    /// Statistics of spans of 8192 elements, for a tensor that is one bucket.
    Stats(CodecId),
    /// Folds the statistics into one, and writes the wire's scalars.
    Combine(CodecId),
    /// Encodes; with feedback, also leaves the new residual.
    Encode(CodecId),
    /// Decodes one payload or the sum of several, over or onto the output.
    Decode(CodecId),
    /// As the scan, over many tensors of one buffer.
    FiniteScanSegments,
    /// Encodes many tensors of one buffer.
    EncodeSegments(CodecId),
    /// Decodes onto many tensors of one buffer.
    DecodeSegments(CodecId),
    /// Tells from a sample between which two keys the last kept one is likely to lie.
    TopKSample,
    /// Stores what may be kept: the one read of the gradient.
    TopKFilter,
    /// Sorts short runs, where the sample was wrong.
    TopKSketch,
    /// Stores anew what may be kept, by what the sorted runs tell.
    TopKFilterAgain,
    /// Counts the keys of a range.
    TopKHistogram,
    /// Counts what is kept of each tile.
    TopKCount,
    /// Writes the kept entries.
    TopKEmit,
    /// Selects of segments that are a tile at most.
    TopKBlock,
    /// Puts the entries of a sparse payload in their places.
    Scatter,
    /// Takes factors that were all-reduced, and makes their columns orthonormal.
    PowerSgdFactor,
    /// Forms gradient + residual, and multiplies it by right factors.
    PowerSgdLeft,
    /// Forms gradient + residual, and multiplies its transpose by left factors.
    PowerSgdRight,
    /// Sums up what the tiles gave of a factor.
    PowerSgdGather,
    /// Writes the product of two factors.
    PowerSgdExpand,
    /// Forms, sends or takes tensors that are not compressed.
    PowerSgdPlain,
    /// Statistics of spans of many tensors, each of them one bucket.
    StatsSegments(CodecId),
    /// Folds those of each tensor into one, and writes the wire's scalars.
    CombineSegments(CodecId),
    /// Encodes many tensors of one buffer, each of them one bucket.
    EncodeTensors(CodecId),
    /// Takes off a residual what was sent of it last.
    TopKSettle,
}

impl Kernel {
    /// Every kernel that is an entry point of its own.
    pub const ALL: [Self; 36] = [
        Self::FiniteScan,
        Self::Stats(CodecId::Qsgd),
        Self::Combine(CodecId::Qsgd),
        Self::Encode(CodecId::Qsgd),
        Self::Decode(CodecId::Qsgd),
        Self::Stats(CodecId::Uniform),
        Self::Combine(CodecId::Uniform),
        Self::Encode(CodecId::Uniform),
        Self::Decode(CodecId::Uniform),
        Self::FiniteScanSegments,
        Self::EncodeSegments(CodecId::Qsgd),
        Self::DecodeSegments(CodecId::Qsgd),
        Self::EncodeSegments(CodecId::Uniform),
        Self::DecodeSegments(CodecId::Uniform),
        Self::TopKSample,
        Self::TopKFilter,
        Self::TopKSketch,
        Self::TopKFilterAgain,
        Self::TopKHistogram,
        Self::TopKCount,
        Self::TopKEmit,
        Self::TopKBlock,
        Self::Scatter,
        Self::PowerSgdFactor,
        Self::PowerSgdLeft,
        Self::PowerSgdRight,
        Self::PowerSgdGather,
        Self::PowerSgdExpand,
        Self::PowerSgdPlain,
        Self::StatsSegments(CodecId::Qsgd),
        Self::CombineSegments(CodecId::Qsgd),
        Self::EncodeTensors(CodecId::Qsgd),
        Self::StatsSegments(CodecId::Uniform),
        Self::CombineSegments(CodecId::Uniform),
        Self::EncodeTensors(CodecId::Uniform),
        Self::TopKSettle,
    ];

    /// The name that the entry point has in every room.
    pub const fn name(self) -> &'static str {
        use CodecId::{Qsgd, Uniform};
        match self {
            Self::Clear => "clear",
            Self::FiniteScan => "finite_scan",
            Self::Stats(Qsgd) => "qsgd_stats",
            Self::Combine(Qsgd) => "qsgd_combine",
            Self::Encode(Qsgd) => "qsgd_encode",
            Self::Decode(Qsgd) => "qsgd_decode",
            Self::Stats(Uniform) => "uniform_stats",
            Self::Combine(Uniform) => "uniform_combine",
            Self::Encode(Uniform) => "uniform_encode",
            Self::Decode(Uniform) => "uniform_decode",
            Self::FiniteScanSegments => "finite_scan_segments",
            Self::EncodeSegments(Qsgd) => "qsgd_encode_segments",
            Self::DecodeSegments(Qsgd) => "qsgd_decode_segments",
            Self::EncodeSegments(Uniform) => "uniform_encode_segments",
            Self::DecodeSegments(Uniform) => "uniform_decode_segments",
            Self::TopKSample => "topk_sample",
            Self::TopKFilter => "topk_filter",
            Self::TopKSketch => "topk_sketch",
            Self::TopKFilterAgain => "topk_filter_again",
            Self::TopKHistogram => "topk_histogram",
            Self::TopKCount => "topk_count",
            Self::TopKEmit => "topk_emit",
            Self::TopKBlock => "topk_block",
            Self::Scatter => "sparse_scatter",
            Self::PowerSgdFactor => "powersgd_factor",
            Self::PowerSgdLeft => "powersgd_left",
            Self::PowerSgdRight => "powersgd_right",
            Self::PowerSgdGather => "powersgd_gather",
            Self::PowerSgdExpand => "powersgd_expand",
            Self::PowerSgdPlain => "powersgd_plain",
            Self::StatsSegments(Qsgd) => "qsgd_stats_segments",
            Self::CombineSegments(Qsgd) => "qsgd_combine_segments",
            Self::EncodeTensors(Qsgd) => "qsgd_encode_tensors",
            Self::StatsSegments(Uniform) => "uniform_stats_segments",
            Self::CombineSegments(Uniform) => "uniform_combine_segments",
            Self::EncodeTensors(Uniform) => "uniform_encode_tensors",
            Self::TopKSettle => "topk_settle",
        }
    }
}

/// A kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// Of the scan, statistics, combine and encode kernels.
    Encode(EncodeParams),
    /// Of the decode kernels.
    Decode(DecodeParams),
    /// Of the top-k kernels.
    Select(SelectParams),
    /// Of the kernel that decodes sparse payloads.
    Scatter(ScatterParams),
    /// Of the PowerSGD kernels.
    LowRank(LowRankParams),
}

impl Params {
    /// The argument's bytes, as PTX and WGSL take them.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Encode(p) => bytemuck::bytes_of(p),
            Self::Decode(p) => bytemuck::bytes_of(p),
            Self::Select(p) => bytemuck::bytes_of(p),
            Self::Scatter(p) => bytemuck::bytes_of(p),
            Self::LowRank(p) => bytemuck::bytes_of(p),
        }
    }
}

/// A range of bytes of a named buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte. A multiple of 256.
    pub offset: u64,
    /// Bytes. Zero where the kernel does not use the buffer.
    pub bytes: u64,
}

/// The ranges that a pass works on; a kernel reads and writes nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// The gradient, in its own type. Read.
    pub input: Span,
    /// The residual, f32. Read, and written by the encode kernels.
    pub residual: Span,
    /// The wire's scalars.
    pub scalars: Span,
    /// The wire's codes.
    pub codes: Span,
    /// Scratch between passes.
    pub workspace: Span,
    /// Two words: what went wrong.
    pub status: Span,
    /// The decoded values, f32.
    pub output: Span,
    /// The indices of sparse entries.
    pub indices: Span,
    /// Their values, f32.
    pub values: Span,
}

impl Bindings {
    /// The range of a buffer.
    pub fn of(&self, role: Role) -> Span {
        match role {
            Role::Input => self.input,
            Role::Residual => self.residual,
            Role::Scalars => self.scalars,
            Role::Codes => self.codes,
            Role::Workspace => self.workspace,
            Role::Status => self.status,
            Role::Output => self.output,
            Role::Indices => self.indices,
            Role::Values => self.values,
        }
    }

    fn of_mut(&mut self, role: Role) -> &mut Span {
        match role {
            Role::Input => &mut self.input,
            Role::Residual => &mut self.residual,
            Role::Scalars => &mut self.scalars,
            Role::Codes => &mut self.codes,
            Role::Workspace => &mut self.workspace,
            Role::Status => &mut self.status,
            Role::Output => &mut self.output,
            Role::Indices => &mut self.indices,
            Role::Values => &mut self.values,
        }
    }
}

/// One launch of one kernel. Only a plan makes one, so that its parameters and its bindings agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub(crate) kernel: Kernel,
    pub(crate) params: Params,
    pub(crate) bindings: Bindings,
    pub(crate) groups: u32,
}

impl Pass {
    /// The same pass over ranges that begin later, by as many bytes of each buffer as `by` says: over another of several
    /// tensors that lie one after another in a session's buffers. The bytes have to be multiples of 256.
    ///
    /// Sessions on the CPU hold one tensor, and refuse passes that were moved to another.
    pub fn moved(&self, by: impl Fn(Role) -> u64) -> Self {
        let mut moved = *self;
        for role in Role::ALL {
            let span = moved.bindings.of_mut(role);
            if span.bytes > 0 {
                // Saturated, it lies beyond every buffer, and sessions refuse it.
                span.offset = span.offset.saturating_add(by(role));
            }
        }
        moved
    }

    /// Which kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Its argument.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// What it works on.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Workgroups of 256 threads.
    pub fn groups(&self) -> u32 {
        self.groups
    }
}

/// What bounds a single pass on a device. Larger tensors take several passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of one binding.
    pub binding_bytes: u64,
    /// The most workgroups of one launch.
    pub groups: u32,
}

impl Limits {
    /// No bound but that of the parameters: CPU and CUDA.
    pub const NONE: Self = Self { binding_bytes: u64::MAX, groups: i32::MAX as u32 };

    /// Checks that passes stay within the limits: those over many tensors are planned once, and may come to another device.
    pub(crate) fn check(&self, passes: &[Pass]) -> Result<(), Error> {
        for pass in passes {
            let needed = Role::ALL.into_iter().map(|role| pass.bindings.of(role).bytes).max().unwrap_or(0);
            if needed > self.binding_bytes {
                let limit = "max_storage_buffer_binding_size";
                return Err(Error::Limit { limit, found: self.binding_bytes, needed });
            }
            if pass.groups > self.groups {
                let limit = "max_compute_workgroups_per_dimension";
                return Err(Error::Limit { limit, found: self.groups.into(), needed: pass.groups.into() });
            }
        }
        Ok(())
    }

    /// Elements of one pass, so that `bytes_per_element` and `per_group` stay within the limits.
    fn chunk(&self, bytes_per_element: u64, per_group: u32) -> Result<u64, Error> {
        let by_bytes = self.binding_bytes / bytes_per_element;
        let by_groups = u64::from(self.groups) * u64::from(per_group);
        let chunk = by_bytes.min(by_groups) / CHUNK_UNIT * CHUNK_UNIT;
        if chunk > 0 {
            return Ok(chunk);
        }
        if by_bytes < CHUNK_UNIT {
            let (found, needed) = (self.binding_bytes, CHUNK_UNIT * bytes_per_element);
            return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
        }
        let (found, needed) = (self.groups.into(), CHUNK_UNIT / u64::from(per_group));
        Err(Error::Limit { limit: "max_compute_workgroups_per_dimension", found, needed })
    }
}

/// Parts of a tensor start at multiples of this many elements, so that the parts' inputs, codes, scalars and
/// statistics all start at multiples of 256 bytes, the coarsest alignment that a device asks of a binding.
const CHUNK_UNIT: u64 = 64 * SPAN as u64;

/// Every region of a device buffer starts at a multiple of this.
pub(crate) const ALIGNMENT: u64 = 256;

/// The final statistic's room at the front of the workspace.
const FINAL_BYTES: u64 = ALIGNMENT;

/// Bytes of the status buffer.
pub const STATUS_BYTES: u64 = 8;

/// How to encode a tensor of one length and type with one codec.
///
/// Made by [`crate::Codec::plan`]. Sizes are pure functions of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncodePlan {
    pub(crate) header: Header,
    pub(crate) nearest: bool,
    pub(crate) feedback: bool,
    pub(crate) omega: f64,
    pub(crate) non_finite: NonFinite,
}

impl EncodePlan {
    /// The same plan with error feedback fused: what is encoded is gradient + residual, and the residual becomes what
    /// decoding does not give back.
    ///
    /// # Errors
    /// [`Error::FeedbackDiverges`] where the codec's variance factor omega, [`EncodePlan::omega`], is 1 or more and
    /// the codec is not the contraction: feedback would amplify the error at every step (`contractive()` is the remedy).
    pub fn with_feedback(self) -> Result<Self, Error> {
        if self.omega < 1.0 || (self.header.scaled && !self.nearest) {
            return Ok(Self { feedback: true, ..self });
        }
        let remedy = if self.nearest {
            "nearest rounding cannot be scaled into a contraction; use more bits, smaller buckets, or stochastic rounding with contractive()"
        } else {
            "use contractive(), which sends C(x)/(1 + omega), or more bits or smaller buckets"
        };
        Err(Error::FeedbackDiverges { omega: self.omega, remedy })
    }

    /// Whether the residual is fused.
    pub fn feedback(&self) -> bool {
        self.feedback
    }

    /// Whether the passes look for elements that are not finite, and leave in the status word where the first is.
    pub fn is_guarded(&self) -> bool {
        self.non_finite == NonFinite::Error
    }

    /// The bound on E|C(x) - x|^2 / |x|^2 of the unscaled codec at this length.
    pub fn omega(&self) -> f64 {
        self.omega
    }

    /// What the payload will say of itself.
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

    /// Bytes of the payload, header included.
    pub fn payload_bytes(&self) -> usize {
        self.header.payload_bytes() as usize
    }

    /// Bytes of statistics between passes. Zero unless the tensor is one bucket.
    pub(crate) fn scratch_bytes(&self) -> usize {
        match self.header.bucket {
            Bucket::Of(_) => 0,
            Bucket::Whole => (FINAL_BYTES + self.partials() * u64::from(PARTIAL_WORDS) * 4) as usize,
        }
    }

    fn partials(&self) -> u64 {
        self.header.n.div_ceil(u64::from(SPAN))
    }

    pub(crate) fn params(&self, seed: Seed) -> EncodeParams {
        let h = &self.header;
        let whole = h.bucket == Bucket::Whole;
        let mut flags = 0;
        let mut set = |on: bool, flag| flags |= if on { flag } else { 0 };
        set(h.l2, encode_flags::L2);
        set(self.nearest, encode_flags::NEAREST);
        set(self.feedback, encode_flags::FEEDBACK);
        // A whole tensor's elements are tiny beside its norm; 16 bits would round most of them away.
        set(whole, encode_flags::WIDE);
        set(self.is_guarded(), encode_flags::GUARDED);
        let beta = if h.scaled { (1.0 / (1.0 + self.omega)) as f32 } else { 1.0 };
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
    /// [`Error::Limit`] where the limits are too small for any part of the tensor.
    pub fn passes(&self, seed: Seed, limits: &Limits) -> Result<Vec<Pass>, Error> {
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
                let partial = u64::from(PARTIAL_WORDS) * 4;
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

/// How to decode one payload, or the sum of several of one kind. Made from a payload's header alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePlan {
    pub(crate) header: Header,
    pub(crate) payloads: u32,
    /// Whether scalars and codes lie together, payload after payload, as in device memory of a caller's.
    pub(crate) bodies: bool,
}

impl DecodePlan {
    /// A plan for `payloads` payloads that have this header.
    pub fn new(header: Header, payloads: u32) -> Self {
        Self { header, payloads, bodies: false }
    }

    /// What the payloads say of themselves.
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

    /// The passes, in order.
    ///
    /// Several payloads go in one pass each chunk where their codes fit one binding, and else one after another,
    /// with the same result to the bit.
    ///
    /// # Errors
    /// [`Error::Limit`] where the limits are too small for any part of the tensor.
    pub fn passes(&self, mode: DecodeMode, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = Vec::new();
        let count = u64::from(self.payloads);
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

/// Whether a gradient of this type and length fits the plan.
pub(crate) fn check_input(plan: &EncodePlan, dtype: Dtype, len: usize) -> Result<(), Error> {
    if dtype != plan.header.dtype {
        return Err(Error::Dtype { expected: plan.header.dtype.name(), found: dtype.name() });
    }
    Error::expect_len("gradient", "elements", len, plan.header.n)
}

/// Bytes of a payload's body behind room for its header.
pub(crate) fn body_range(plan: &EncodePlan) -> std::ops::Range<usize> {
    HEADER_BYTES..plan.payload_bytes()
}
