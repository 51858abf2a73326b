//! Top-k in a caller's memory whose residual is late, beside a [`LazyResidual`] on the host: the same entries, and the
//! same residual whenever it is settled.

use std::ops::Range;

use gradwire::plan::Limits;
use gradwire::{Device, Dtype, Error, Gradient, LazyResidual, Seed, Segment, Selection, TopK};
use half::{bf16, f16};

use crate::cases::{self, Fill};
use crate::selections::misleading_in;

/// A caller's memory on a device: pieces named as `gradwire::embed::SelectBuffers` has them.
pub trait Memory {
    /// Overwrites the beginning of a piece.
    fn write(&mut self, piece: Name, bytes: &[u8]);
    /// Copies a part of a piece to the host, when the device has done what was asked of it.
    fn read(&mut self, piece: Name, bytes: Range<u64>) -> Vec<u8>;
    /// Has the device do a call.
    ///
    /// # Errors
    /// Those of the call.
    fn call(&mut self, call: Call, selection: &Selection) -> Result<(), Error>;
}

/// A piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The gradient.
    Gradient,
    /// The residual.
    Residual,
    /// The indices of the entries.
    Indices,
    /// Their values.
    Values,
    /// The table, and scratch.
    Workspace,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Select.
    Select,
    /// Select, with a list of values that is too short.
    SelectRefused,
    /// Look for what is not finite.
    Scan,
    /// Settle the residual.
    Settle,
}

/// Bytes of each piece, in the order of [`Name`], as a caller would allocate them.
pub fn sizes(selection: &Selection) -> [u64; 5] {
    let (elements, entries) = (selection.elements(), 4 * selection.entries());
    let gradient = elements * selection.dtype().bytes() as u64;
    [gradient, 4 * elements, entries, entries, selection.workspace_bytes()]
}

/// Elements of the gradients that [`codecs`] select from.
pub const ELEMENTS: usize = 50_000;

/// Settings: one segment, several of all sizes (of one nothing is kept, of one all), blocks that are segments, and
/// blocks that are not.
pub fn codecs() -> Vec<TopK> {
    let of = |elements: u64, k: u64| Segment { elements, k };
    let model = [
        of(5, 2),
        of(8200, 300),
        of(1, 1),
        of(0, 0),
        of(9001, 0),
        of(40, 7),
        of(9000, 9000),
        of(700, 90),
        of(14_873, 3),
        // From the last multiple of 32 before it on, it takes more than a tile.
        of(8180, 4000),
    ];
    vec![
        TopK::fraction(0.01),
        TopK::fraction(0.5),
        TopK::segments(&model),
        TopK::blocks(9000, 77),
        TopK::blocks(100, 3),
        // Most of these begin between multiples of 32 and end in another tile.
        TopK::blocks(8190, 40),
        TopK::count(0),
    ]
}

/// A gradient in another type.
enum Owned {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Owned {
    fn new(dtype: Dtype, x: Vec<f32>) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(x),
            Dtype::F16 => Self::F16(x.into_iter().map(f16::from_f32).collect()),
            Dtype::Bf16 => Self::Bf16(x.into_iter().map(bf16::from_f32).collect()),
        }
    }

    fn values(&self) -> Vec<f32> {
        match self {
            Self::F32(x) => x.clone(),
            Self::F16(x) => x.iter().map(|v| v.to_f32()).collect(),
            Self::Bf16(x) => x.iter().map(|v| v.to_f32()).collect(),
        }
    }

    fn as_gradient(&self) -> Gradient<'_> {
        match self {
            Self::F32(x) => Gradient::F32(x),
            Self::F16(x) => Gradient::F16(x),
            Self::Bf16(x) => Gradient::Bf16(x),
        }
    }
}

/// Fails with the first entry that differs, of thousands.
fn same(label: &str, what: &str, found: &[u8], expected: &[u8]) {
    let [found, expected] = [found, expected].map(bytemuck::pod_collect_to_vec::<u8, u32>);
    assert_eq!(found.len(), expected.len(), "{label}: {what}");
    if let Some(at) = found.iter().zip(&expected).position(|(a, b)| a != b) {
        panic!("{label}: {what}, entry {at}: {:#x} where the host has {:#x}", found[at], expected[at]);
    }
}

/// Both residuals, side by side.
struct Pair<'a, M> {
    host: &'a Device,
    codec: &'a TopK,
    memory: M,
    selection: Selection,
    residual: LazyResidual,
    label: String,
    /// Entries of the residual that were late, in all steps.
    late: usize,
    is_guarded: bool,
}

impl<M: Memory> Pair<'_, M> {
    /// A step on either side; and what is late of it, taken off, whether or not the next step goes on from there.
    fn step(&mut self, t: u64, x: Vec<f32>, settles: bool) {
        let label = format!("{}, step {t}", self.label);
        let x = Owned::new(self.selection.dtype(), x);
        let seed = Seed::new(3).step(t);
        let expected = self.host.encode_sparse_lazily(self.codec, x.as_gradient(), &mut self.residual, seed);
        let expected = expected.unwrap_or_else(|e| panic!("{label}: {e}"));
        let begun = self.state();
        let sums = begun[0].chunks_exact(4).zip(x.values());
        let is_finite = sums.into_iter().all(|(e, g)| (f32::from_le_bytes([e[0], e[1], e[2], e[3]]) + g).is_finite());

        self.memory.write(Name::Gradient, x.as_gradient().as_bytes());
        if self.is_guarded {
            self.scan().unwrap_or_else(|e| panic!("{label}: {e}"));
        }
        self.call(Call::Select);
        let entries = 0..4 * self.selection.entries();
        let indices = bytemuck::pod_collect_to_vec(&self.memory.read(Name::Indices, entries.clone()));
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&self.memory.read(Name::Values, entries));
        let found = self.selection.seal(&indices, &values).unwrap_or_else(|e| panic!("{label}: {e}"));
        assert!(found.as_bytes() == expected.as_bytes(), "{label}: the payload is another");
        if !is_finite {
            // The host leaves the residual as it was. What is queued cannot; its caller keeps a copy.
            self.memory.write(Name::Residual, &begun[0]);
            self.memory.write(Name::Workspace, &begun[1]);
            return;
        }

        let before = self.state();
        self.call(Call::Settle);
        let after = self.state();
        same(&label, "residual", &after[0], bytemuck::cast_slice(&self.residual.clone().into_values()));
        same(&label, "table", &after[1], &self.selection.table());
        let differ = before[0].chunks_exact(4).zip(after[0].chunks_exact(4)).filter(|(a, b)| a != b).count();
        self.late += differ;
        if !settles {
            self.memory.write(Name::Residual, &before[0]);
            self.memory.write(Name::Workspace, &before[1]);
        }
    }

    fn call(&mut self, call: Call) {
        self.memory.call(call, &self.selection).unwrap_or_else(|e| panic!("{}: {call:?}: {e}", self.label));
    }

    /// The residual, and what is kept of the workspace.
    fn state(&mut self) -> [Vec<u8>; 2] {
        let residual = 0..4 * self.selection.elements();
        let table = 0..self.selection.table_bytes();
        [self.memory.read(Name::Residual, residual), self.memory.read(Name::Workspace, table)]
    }

    /// Under the policy that refuses it, what is not finite leaves the residual as it is.
    fn not_finite(&mut self, mut x: Vec<f32>) {
        let label = format!("{}, refused", self.label);
        let at = x.len() - 5;
        x[at] = f32::NAN;
        let x = Owned::new(self.selection.dtype(), x);
        let expected = self.host.encode_sparse_lazily(self.codec, x.as_gradient(), &mut self.residual, Seed::new(1));
        assert!(matches!(expected, Err(Error::NotFinite { index }) if index == at as u64), "{label}: {expected:?}");
        self.memory.write(Name::Gradient, x.as_gradient().as_bytes());
        let error = self.scan().expect_err("there is a NaN");
        assert!(matches!(error, Error::NotFinite { index } if index == at as u64), "{label}: {error:?}");
        let [residual, table] = self.state();
        same(&label, "residual", &residual, bytemuck::cast_slice(&self.residual.clone().into_values()));
        same(&label, "table", &table, &self.selection.table());
    }

    fn scan(&mut self) -> Result<(), Error> {
        self.call(Call::Scan);
        let status = self.memory.read(Name::Workspace, self.selection.status_bytes());
        self.selection.check(&status)
    }

    /// A call that is refused changes nothing.
    fn refused(&mut self) {
        let before = self.state();
        let error = self.memory.call(Call::SelectRefused, &self.selection).expect_err("the list is short");
        assert!(matches!(error, Error::Length { what: "list of values", .. }), "{error:?}");
        assert!(self.state() == before, "{}: after a refusal", self.label);
    }
}

/// Runs a step of each of some gradients in memory that `memory` allocates, and the same ones on `host`. The residual
/// is settled in the middle; a call is refused. Tells how many entries were late.
///
/// # Panics
/// Where a bit differs.
pub fn against_the_host<M: Memory>(
    host: &Device,
    (codec, dtype, is_guarded): (&TopK, Dtype, bool),
    limits: &Limits,
    (label, gradients): (&str, &[Vec<f32>]),
    memory: impl Fn(&Selection) -> M,
) -> usize {
    let elements = gradients.first().map_or(0, Vec::len);
    let selection = codec.lazy_selection(elements, dtype, limits).expect("valid");
    let mut memory = memory(&selection);
    memory.write(Name::Workspace, &selection.table());
    memory.write(Name::Residual, &vec![0; 4 * elements]);
    let (label, residual) = (format!("{label}, {codec:?}, {}", dtype.name()), LazyResidual::zeros(elements));
    let mut pair = Pair { host, codec, memory, selection, residual, label, late: 0, is_guarded };
    for (t, x) in (0u64..).zip(gradients) {
        pair.step(t, x.clone(), t == 2);
        if t == 0 && pair.selection.entries() > 0 {
            pair.refused();
        }
        if t == 1 && is_guarded {
            pair.not_finite(x.clone());
        }
    }
    pair.late
}

/// Four gradients that begin with a distribution of the suite's, which may have NaN and infinities.
pub fn steps_from((_, fill): Fill, elements: usize) -> Vec<Vec<f32>> {
    let normal = |t: u64| cases::normal(elements, 900 + t);
    vec![fill(elements), fill(elements), normal(1), normal(2)]
}

/// A gradient of three tiles whose last kept entries are in the first tile alone, though the same key is in the others:
/// where the sample misleads, the sketch tells that the first tile's are in for certain, and nothing is left to be
/// looked for.
///
/// In each run of 1024 elements as many are larger, or of the last kept key, as the sketch can miss at the most, 31;
/// and in the first tile's 128 more.
pub fn sure_by_their_tile() -> (TopK, Vec<f32>) {
    const RUN: usize = 1024;
    let mut x = misleading_in(vec![0.0; 24 * RUN], &[24 * RUN], |_| 2.0);
    for (run, part) in x.chunks_exact_mut(RUN).enumerate() {
        let is_first = run < 8;
        let mut larger = part.iter().filter(|v| **v == 2.0).count();
        assert!(larger <= 31, "the sample takes more of a run than the sketch can miss");
        let mut equal = 0;
        for v in part.iter_mut().filter(|v| **v == 0.0) {
            if larger < 31 && !is_first {
                *v = 2.0;
                larger += 1;
            } else if equal + larger * usize::from(is_first) < if is_first { 31 + 128 } else { 200 } {
                *v = 1.0;
                equal += 1;
            }
        }
    }
    (TopK::count(24 * 31 + 8 * 128), x)
}
