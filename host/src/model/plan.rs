//! The passes over many tensors, and the table that tells kernels which is where.

use std::ops::Range;

use gradwire_kernels::params::{DECODE_SPAN, DecodeParams, EncodeParams, SPAN, decode_flags, item};

use super::Layout;
use super::item::Item;
use super::whole::Whole;
use crate::codec::Codec;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{ALIGNMENT, Bindings, DecodeMode, EncodePlan, Kernel, Limits, Params, Pass, STATUS_BYTES, Span};
use crate::seed::Seed;
use crate::view::AsPayload;
use crate::wire::{Bucket, Header, Payload};

/// A launch's buffers begin at multiples of this many elements, which are 256 bytes of the smallest type.
const BASE_ELEMENTS: u64 = ALIGNMENT / 2;

/// How to encode and decode a model's tensors with one codec, all of them in one launch set.
///
/// What becomes of a tensor is what [`Device::encode`](crate::Device::encode) makes of it alone, with the tensor's
/// number added to that of the seed: [`ModelPlan::seal`] gives a [`Payload`] a tensor, and the receiver need not know
/// how it was made. The number of launches does not depend on the number of tensors: an encode is one, or three where
/// every tensor is one bucket, whose statistics are taken and folded first.
///
/// In device memory the bodies of all tensors are one: first the scalars of every tensor, one after another, then,
/// from the next multiple of 256 bytes on, the codes of every tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    layout: Layout,
    dtype: Dtype,
    tensors: Vec<EncodePlan>,
    scalar_bytes: u64,
    code_bytes: u64,
    table: Vec<u32>,
    launches: Vec<Launch>,
    /// Where every tensor is one bucket.
    whole: Option<Whole>,
    limits: Limits,
}

/// Items that one launch takes, and the parts of the buffers that they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launch {
    first_item: u32,
    items: u32,
    /// Element of the flat buffer.
    base: u64,
    elements: u64,
    scalars: Span,
    codes: Span,
}

/// What two plans differ in beside their lengths, of all that one launch has once for all its tensors.
fn unlike(a: &EncodePlan, b: &EncodePlan) -> Option<&'static str> {
    let (x, y) = (a.header(), b.header());
    let checks = [
        (x.dtype != y.dtype, "type"),
        (x.l2 != y.l2, "norm"),
        (x.scaled != y.scaled, "scale"),
        (a.nearest != b.nearest, "rounding"),
        (a.feedback() != b.feedback(), "feedback"),
        (a.non_finite != b.non_finite, "policy for NaN"),
    ];
    let of_payloads = x.difference(&Header { n: x.n, ..*y });
    of_payloads.or_else(|| checks.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what))
}

impl ModelPlan {
    /// A plan for tensors of one type, on a device of these limits ([`Device::limits`](crate::Device::limits), or
    /// [`Limits::NONE`] for CUDA and the CPU).
    ///
    /// # Errors
    /// As [`Codec::plan`]; [`Error::Packed`] for a codec whose payloads are packed; [`Error::Uneven`] for a codec of
    /// the caller's that plans tensors with different settings; [`Error::Limit`] if the limits are too small for any
    /// part of a tensor, or, where every tensor is one bucket, for the scalars and the statistics of all of them.
    pub fn new(codec: &(impl Codec + ?Sized), layout: &Layout, dtype: Dtype, limits: &Limits) -> Result<Self, Error> {
        let plan = |elements: u64| codec.plan(elements as usize, dtype);
        let tensors = layout.spans().iter().map(|s| plan(s.elements)).collect::<Result<Vec<_>, _>>()?;
        for (index, (span, plan)) in layout.spans().iter().zip(&tensors).enumerate() {
            Error::expect_len("plan of a tensor", "elements", plan.len(), span.elements)?;
            plan.refuse_packed("a plan of many tensors")?;
            if let Some(what) = unlike(&tensors[0], plan) {
                return Err(Error::Uneven { index, what });
            }
        }
        let Header { codec: id, bucket, .. } = match tensors.first() {
            Some(first) => *first.header(),
            None => *plan(0)?.header(),
        };
        let is_whole = bucket == Bucket::Whole;
        let (mut scalar_bytes, mut code_bytes) = (0, 0);
        let mut items = Vec::new();
        for (index, (span, plan)) in layout.spans().iter().zip(&tensors).enumerate() {
            let h = plan.header();
            for start in (0..span.elements).step_by(SPAN as usize) {
                let part = Header { n: (span.elements - start).min(SPAN.into()), ..*h };
                let before = Header { n: start, ..*h };
                // A tensor that is one bucket has one bucket's scalars, which every item names.
                let scalars_before = if is_whole { 0 } else { before.scalar_bytes() };
                items.push(Item {
                    start: span.offset + start,
                    elements: part.n,
                    first_unit: start / 256,
                    tensor: index as u32,
                    scalars: Span { offset: scalar_bytes + scalars_before, bytes: part.scalar_bytes() },
                    codes: Span { offset: code_bytes + before.code_bytes(), bytes: part.code_bytes() },
                    beta: plan.params(Seed::new(0)).beta,
                });
            }
            scalar_bytes += h.scalar_bytes();
            code_bytes += h.code_bytes();
        }
        let launches = launches(&items, limits)?;
        let mut table = table(&items, &launches);
        let whole = is_whole.then(|| Whole::new(id, &items, &mut table));
        if let Some(whole) = &whole {
            let needed = whole.bytes().max(scalar_bytes).max(table.len() as u64 * 4);
            if needed > limits.binding_bytes {
                let limit = "max_storage_buffer_binding_size";
                return Err(Error::Limit { limit, found: limits.binding_bytes, needed });
            }
        }
        let (layout, limits) = (layout.clone(), *limits);
        Ok(Self { layout, dtype, tensors, scalar_bytes, code_bytes, table, launches, whole, limits })
    }

    /// The same plan with error feedback fused, as [`EncodePlan::with_feedback`]. The residual is a flat buffer too, of
    /// the gradient's layout.
    ///
    /// # Errors
    /// [`Error::FeedbackDiverges`], if for the longest of the tensors alone.
    pub fn with_feedback(self) -> Result<Self, Error> {
        let tensors = self.tensors.iter().map(|plan| plan.with_feedback()).collect::<Result<_, _>>()?;
        Ok(Self { tensors, ..self })
    }

    /// Whether the residual is fused.
    pub fn feedback(&self) -> bool {
        self.tensors.first().is_some_and(EncodePlan::feedback)
    }

    /// Whether the passes look for elements that are not finite.
    pub fn is_guarded(&self) -> bool {
        self.tensors.first().is_some_and(EncodePlan::is_guarded)
    }

    /// Where the tensors lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Launches that an encode or a decode takes: one, unless the limits are too small for all tensors at once. The
    /// scan for elements that are not finite takes as many again; and so do the statistics of tensors that are one
    /// bucket each, which are folded in one launch more.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// The type of the gradient's elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The plan of each tensor alone.
    pub fn tensors(&self) -> &[EncodePlan] {
        &self.tensors
    }

    /// Bytes of memory for the flat gradient, in whole 4-byte words, as [`EncodePlan::gradient_bytes`].
    pub fn gradient_bytes(&self) -> u64 {
        (self.layout.elements() * self.dtype.bytes() as u64).next_multiple_of(4)
    }

    /// Bytes of all payloads together, headers included.
    pub fn payload_bytes(&self) -> usize {
        self.tensors.iter().map(EncodePlan::payload_bytes).sum()
    }

    /// Whether an encode takes statistics of whole tensors first.
    pub(crate) fn has_statistics(&self) -> bool {
        self.whole.is_some()
    }

    /// Bytes of scratch that an encode in a caller's memory needs.
    pub fn workspace_bytes(&self) -> u64 {
        let statistics = self.whole.as_ref().map_or(0, Whole::bytes);
        if self.is_guarded() { statistics.max(ALIGNMENT) } else { statistics }
    }

    /// The table that kernels find the tensors by, as bytes to copy to the device, once a plan. Encoding and decoding
    /// take the same one.
    ///
    /// Its first eight bytes are a number, low word first, that is added to the step of the seed: zero here. A CUDA
    /// graph repeats the seed that it was captured with, and draws that repeat make rounding errors that add up; a
    /// caller who writes the step there before each launch of the graph has draws of its own for each.
    pub fn table(&self) -> Vec<u8> {
        self.table.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Bytes of [`ModelPlan::table`].
    pub fn table_bytes(&self) -> u64 {
        self.table.len() as u64 * 4
    }

    /// Where the codes begin in a body.
    pub fn codes_offset(&self) -> u64 {
        self.scalar_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a body, a multiple of 256.
    pub fn body_bytes(&self) -> u64 {
        self.codes_offset() + self.code_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the scalars of all tensors, and of their codes.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn part_bytes(&self) -> [u64; 2] {
        [self.scalar_bytes, self.code_bytes]
    }

    /// Where a body has the scalars of each tensor, and then the codes of each.
    pub(crate) fn body_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let (mut scalars_at, mut codes_at) = (0, self.codes_offset());
        let scalars = self.tensors.iter().map(move |plan| next(&mut scalars_at, plan.header().scalar_bytes()));
        scalars.chain(self.tensors.iter().map(move |plan| next(&mut codes_at, plan.header().code_bytes())))
    }

    /// The payloads of a body that was copied from device memory, one a tensor.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`ModelPlan::body_bytes`].
    pub fn seal(&self, body: &[u8]) -> Result<Vec<Payload>, Error> {
        Error::expect_len("body", "bytes", body.len(), self.body_bytes())?;
        let (scalars, codes) = body.split_at(self.codes_offset() as usize);
        Ok(self.seal_parts(scalars, codes))
    }

    /// The payloads of all scalars and all codes.
    pub(crate) fn seal_parts(&self, mut scalars: &[u8], mut codes: &[u8]) -> Vec<Payload> {
        let seal = |plan: &EncodePlan| {
            let h = plan.header();
            let (mine, rest) = scalars.split_at(h.scalar_bytes() as usize);
            scalars = rest;
            let (mine_too, rest) = codes.split_at(h.code_bytes() as usize);
            codes = rest;
            let mut bytes = vec![0; crate::wire::HEADER_BYTES];
            bytes.extend_from_slice(mine);
            bytes.extend_from_slice(mine_too);
            Payload::seal(*h, bytes)
        };
        self.tensors.iter().map(seal).collect()
    }

    /// Checks that there is a payload for each tensor, of the plan's codec and setting.
    ///
    /// # Errors
    /// [`Error::Length`] for more or fewer payloads than tensors; [`Error::Other`] for one that does not fit.
    pub(crate) fn check_payloads(&self, payloads: &[impl AsPayload]) -> Result<(), Error> {
        Error::expect_len("list of payloads", "of them", payloads.len(), self.tensors.len() as u64)?;
        for (index, (plan, payload)) in self.tensors.iter().zip(payloads).enumerate() {
            if let Some(what) = plan.header().difference(payload.as_payload().header()) {
                return Err(Error::Other { index, what });
            }
        }
        Ok(())
    }

    /// Writes payloads, one a tensor, as a body; bytes between its parts become zero.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`ModelPlan::body_bytes`], or more or fewer payloads than tensors;
    /// [`Error::Other`] for a payload that was made with another codec, setting or length; [`Error::Packed`] for a
    /// packed one.
    pub fn write_body(&self, payloads: &[impl AsPayload], body: &mut [u8]) -> Result<(), Error> {
        Error::expect_len("body", "bytes", body.len(), self.body_bytes())?;
        self.check_payloads(payloads)?;
        payloads.iter().try_for_each(|payload| payload.as_payload().header().refuse_packed())?;
        body.fill(0);
        let (mut scalars, mut codes) = body.split_at_mut(self.codes_offset() as usize);
        for payload in payloads {
            let payload = payload.as_payload();
            scalars
                .split_off_mut(..payload.scalars().len())
                .into_iter()
                .for_each(|s| s.copy_from_slice(payload.scalars()));
            codes.split_off_mut(..payload.codes().len()).into_iter().for_each(|c| c.copy_from_slice(payload.codes()));
        }
        Ok(())
    }

    /// The passes of an encode: one, and one that scans under [`NonFinite::Error`], for every part that fits the
    /// limits.
    pub(crate) fn encode_passes(&self, seed: Seed) -> Vec<Pass> {
        let mut passes = Vec::new();
        let Some(first) = self.tensors.first().filter(|_| !self.launches.is_empty()) else { return passes };
        let common = EncodeParams { n: 0, first_unit: 0, beta: 0, ..first.params(seed) };
        let status = Span { offset: 0, bytes: STATUS_BYTES };
        let with_table = |kernel, launch: &Launch, bindings: Bindings| {
            let params = EncodeParams { partials: launch.first_item, base: launch.base as u32, ..common };
            let input = self.flat(launch, self.dtype.bytes() as u64);
            let residual = if self.feedback() { self.flat(launch, 4) } else { Span::default() };
            let bindings = Bindings { input, residual, workspace: self.table_span(), ..bindings };
            Pass { kernel, params: Params::Encode(params), bindings, groups: launch.items }
        };
        let guard = if self.is_guarded() { status } else { Span::default() };
        let codec = first.header().codec;
        if self.is_guarded() {
            let bindings = Bindings { status, ..Bindings::default() };
            passes.push(Pass { kernel: Kernel::Clear, params: Params::Encode(common), bindings, groups: 1 });
            passes.extend(self.launches.iter().map(|l| with_table(Kernel::FiniteScanSegments, l, bindings)));
        }
        if let Some(whole) = &self.whole {
            let statistics = Bindings { status: whole.span(), ..Bindings::default() };
            passes.extend(self.launches.iter().map(|l| with_table(Kernel::StatsSegments(codec), l, statistics)));
            let scalars = Span { offset: 0, bytes: self.scalar_bytes };
            let bindings = Bindings { scalars, workspace: self.table_span(), ..statistics };
            passes.extend(whole.launches(self.limits.groups).map(|(first, groups)| {
                let params = EncodeParams { partials: first, base: whole.table_word(), ..common };
                Pass { kernel: Kernel::CombineSegments(codec), params: Params::Encode(params), bindings, groups }
            }));
            passes.extend(
                self.launches
                    .iter()
                    .map(|l| with_table(Kernel::EncodeTensors(codec), l, Bindings { codes: l.codes, ..statistics })),
            );
            return passes;
        }
        let kernel = Kernel::EncodeSegments(codec);
        passes.extend(self.launches.iter().map(|l| {
            with_table(kernel, l, Bindings { scalars: l.scalars, codes: l.codes, status: guard, ..Bindings::default() })
        }));
        passes
    }

    /// The passes of a decode of that many bodies, whose scalars and codes lie these bytes apart.
    pub(crate) fn decode_passes(&self, mode: DecodeMode, payloads: u32, strides: [u64; 2]) -> Vec<Pass> {
        let mut passes = Vec::new();
        let Some(first) = self.tensors.first().filter(|_| payloads > 0) else { return passes };
        let h = first.header();
        let (flags, weight) = mode.flags();
        let together = payloads == 1 || strides[0].max(strides[1]) * u64::from(payloads) <= self.limits.binding_bytes;
        let rounds = if together { 1 } else { payloads };
        for round in 0..rounds {
            let in_pass = if together { payloads } else { 1 };
            let of_round = |span: Span, stride: u64| Span {
                offset: u64::from(round) * stride + span.offset,
                bytes: u64::from(in_pass - 1) * stride + span.bytes,
            };
            for launch in &self.launches {
                let params = DecodeParams {
                    n: 0,
                    bucket_log2: h.bucket.log2(),
                    bits: h.bits,
                    levels: h.levels,
                    flags: if round > 0 { flags | decode_flags::ACCUMULATE } else { flags },
                    weight: weight.to_bits(),
                    payloads: in_pass,
                    scalar_stride: (strides[0] / 4) as u32,
                    code_stride: (strides[1] / 4) as u32,
                    first_item: launch.first_item,
                    reserved: [0; 2],
                };
                let bindings = Bindings {
                    scalars: of_round(launch.scalars, strides[0]),
                    codes: of_round(launch.codes, strides[1]),
                    output: self.flat(launch, 4),
                    workspace: self.table_span(),
                    ..Bindings::default()
                };
                let kernel = Kernel::DecodeSegments(h.codec);
                let groups = launch.items * (SPAN / DECODE_SPAN);
                passes.push(Pass { kernel, params: Params::Decode(params), bindings, groups });
            }
        }
        passes
    }

    fn table_span(&self) -> Span {
        Span { offset: 0, bytes: self.table_bytes() }
    }

    /// What a launch uses of a flat buffer whose elements have that many bytes.
    fn flat(&self, launch: &Launch, bytes: u64) -> Span {
        Span { offset: launch.base * bytes, bytes: (launch.elements * bytes).next_multiple_of(4) }
    }
}

/// The next bytes.
fn next(at: &mut u64, bytes: u64) -> Range<u64> {
    *at += bytes;
    *at - bytes..*at
}

/// Shares items out to launches, in order, as many to each as its bindings and its groups allow.
fn launches(items: &[Item], limits: &Limits) -> Result<Vec<Launch>, Error> {
    let most = (limits.groups / (SPAN / DECODE_SPAN)) as usize;
    let table_bytes = 4 * u64::from(item::HEADER) + 4 * u64::from(item::WORDS) * items.len() as u64;
    if most == 0 {
        let (found, needed) = (limits.groups.into(), (SPAN / DECODE_SPAN).into());
        return Err(Error::Limit { limit: "max_compute_workgroups_per_dimension", found, needed });
    }
    let too_small =
        |needed| Error::Limit { limit: "max_storage_buffer_binding_size", found: limits.binding_bytes, needed };
    if table_bytes > limits.binding_bytes {
        return Err(too_small(table_bytes));
    }
    let mut launches = Vec::new();
    let mut first = 0;
    while first < items.len() {
        let mut launch = around(items, first, first + 1);
        if largest(&launch) > limits.binding_bytes {
            return Err(too_small(largest(&launch)));
        }
        // Grown item by item, from the ranges that are known: a model may have a hundred thousand of them.
        let mut end = first + 1;
        while end < items.len() && end - first < most {
            let grown = join(&launch, &around(items, end, end + 1), first, end + 1);
            if largest(&grown) > limits.binding_bytes {
                break;
            }
            launch = grown;
            end += 1;
        }
        launches.push(launch);
        first = end;
    }
    Ok(launches)
}

fn largest(launch: &Launch) -> u64 {
    (launch.elements * 4).max(launch.scalars.bytes).max(launch.codes.bytes)
}

/// The launch over these items.
fn around(items: &[Item], first: usize, end: usize) -> Launch {
    let one = items[first];
    let aligned = |span: Span| {
        let offset = span.offset / ALIGNMENT * ALIGNMENT;
        Span { offset, bytes: span.offset + span.bytes - offset }
    };
    let base = one.start / BASE_ELEMENTS * BASE_ELEMENTS;
    Launch {
        first_item: first as u32,
        items: (end - first) as u32,
        base,
        elements: one.start + one.elements - base,
        scalars: aligned(one.scalars),
        codes: aligned(one.codes),
    }
}

/// The launch over what two launches take.
fn join(a: &Launch, b: &Launch, first: usize, end: usize) -> Launch {
    let span = |a: Span, b: Span| {
        let offset = a.offset.min(b.offset);
        Span { offset, bytes: (a.offset + a.bytes).max(b.offset + b.bytes) - offset }
    };
    let base = a.base.min(b.base);
    Launch {
        first_item: first as u32,
        items: (end - first) as u32,
        base,
        elements: (a.base + a.elements).max(b.base + b.elements) - base,
        scalars: span(a.scalars, b.scalars),
        codes: span(a.codes, b.codes),
    }
}

/// The table's words.
fn table(items: &[Item], launches: &[Launch]) -> Vec<u32> {
    let mut table = vec![0; item::HEADER as usize + items.len() * item::WORDS as usize];
    for launch in launches {
        for index in launch.first_item..launch.first_item + launch.items {
            let i = items[index as usize];
            let at = (item::HEADER + index * item::WORDS) as usize;
            let mut set = |word: u32, value: u64| table[at + word as usize] = value as u32;
            set(item::START, i.start - launch.base);
            set(item::ELEMENTS, i.elements);
            set(item::FIRST_UNIT, i.first_unit);
            set(item::TENSOR, i.tensor.into());
            set(item::SCALARS, (i.scalars.offset - launch.scalars.offset) / 4);
            set(item::CODES, (i.codes.offset - launch.codes.offset) / 4);
            set(item::BETA, i.beta.into());
        }
    }
    table
}
