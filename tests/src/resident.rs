//! PowerSGD in a caller's memory, beside the same device with the state on the host: bit for bit the same.

use std::ops::Range;

use gradwire::{
    Device, Dtype, Error, Gradient, LowRankState, Matrix, NonFinite, Outcome, PowerSgd, ResidentLowRank, Seed,
};
use half::{bf16, f16};

use crate::cases;
use crate::low_rank::{alone, bits};

/// A caller's memory on a device: pieces named as `gradwire::embed::LowRankBuffers` has them.
pub trait Memory {
    /// Overwrites the beginning of a piece.
    fn write(&mut self, piece: Name, bytes: &[u8]);
    /// Copies a part of a piece to the host, when the device has done what was asked of it.
    fn read(&mut self, piece: Name, bytes: Range<u64>) -> Vec<u8>;
    /// Has the device do a call of a step.
    ///
    /// # Errors
    /// Those of the call.
    fn call(&mut self, call: Call, steps: &mut ResidentLowRank) -> Result<(), Error>;
}

/// A piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The gradient.
    Gradient,
    /// The residual.
    Residual,
    /// The state.
    State,
    /// The factors.
    Factors,
    /// The output.
    Output,
}

/// A call of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The first.
    Begin,
    /// The first, of which the device never hears where that can be.
    BeginUnsubmitted,
    /// Between two all-reduces.
    Advance,
    /// The last.
    Finish,
}

/// Matrices with and without whole tiles, vectors longer than a workgroup takes, and tensors of nothing.
pub const MODEL: [Matrix; 8] = [
    Matrix::vector(33),
    Matrix::new(300, 70),
    Matrix::new(0, 7),
    Matrix::vector(5000),
    Matrix::new(48, 530),
    Matrix::new(5, 5),
    Matrix::vector(0),
    Matrix::new(64, 64),
];

fn place(tensor: usize) -> Range<usize> {
    let first = MODEL[..tensor].iter().map(Matrix::elements).sum::<u64>() as usize;
    first..first + MODEL[tensor].elements() as usize
}

/// The codecs that are run, and whether they refuse what is not finite.
pub fn codecs() -> Vec<(PowerSgd, bool)> {
    let small = PowerSgd::rank(3);
    vec![
        (small, false),
        (small.one_sided(), false),
        (small.iterations(2).min_compression(0.5), false),
        (small.without_feedback(), false),
        (small.non_finite(NonFinite::Error), true),
        (PowerSgd::rank(10).min_compression(1.5).non_finite(NonFinite::Error), true),
        (PowerSgd::rank(11).one_sided().min_compression(1.5).non_finite(NonFinite::Error), true),
        (PowerSgd::rank(10).min_compression(1.5), false),
        (PowerSgd::rank(9).one_sided().min_compression(1.5), false),
        (PowerSgd::rank(4).min_compression(1e9), false),
    ]
}

/// A gradient of another step, in a type.
fn gradient(dtype: Dtype, t: u64) -> Owned {
    let x = cases::normal(place(7).end, 300 + t);
    match dtype {
        Dtype::F32 => Owned::F32(x),
        Dtype::F16 => Owned::F16(x.iter().map(|v| f16::from_f32(*v)).collect()),
        Dtype::Bf16 => Owned::Bf16(x.iter().map(|v| bf16::from_f32(*v)).collect()),
    }
}

enum Owned {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Owned {
    fn as_gradient(&self) -> Gradient<'_> {
        match self {
            Self::F32(x) => Gradient::F32(x),
            Self::F16(x) => Gradient::F16(x),
            Self::Bf16(x) => Gradient::Bf16(x),
        }
    }

    fn set(&mut self, at: usize, value: f32) {
        match self {
            Self::F32(x) => x[at] = value,
            Self::F16(x) => x[at] = f16::from_f32(value),
            Self::Bf16(x) => x[at] = bf16::from_f32(value),
        }
    }
}

/// Fails with the first entry that differs, of thousands.
fn same(label: &str, what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{label}: {what}");
    let differs = bits(found).into_iter().zip(bits(expected)).position(|(a, b)| a != b);
    if let Some(at) = differs {
        panic!("{label}: {what}, entry {at}: {:e} where the host has {:e}", found[at], expected[at]);
    }
}

/// Both states, side by side.
struct Pair<'a, M> {
    device: &'a Device,
    memory: M,
    steps: ResidentLowRank,
    host: LowRankState,
    label: String,
    is_guarded: bool,
}

impl<M: Memory> Pair<'_, M> {
    fn factors(&mut self, count: usize) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.memory.read(Name::Factors, 0..4 * count as u64))
    }

    /// A call that hands out a factor, and a mean of it that a collective may have made.
    fn hand_out(&mut self, call: Call, mut host: impl FnMut(&mut LowRankState, &mut [f32])) -> Vec<f32> {
        let count = self.steps.factor_len();
        assert_eq!(count, self.host.factor_len(), "{}", self.label);
        self.memory.call(call, &mut self.steps).unwrap_or_else(|e| panic!("{}: {e}", self.label));
        let mut expected = vec![0.0; count];
        host(&mut self.host, &mut expected);
        let found = self.factors(count);
        same(&self.label, &format!("{call:?}"), &found, &expected);
        found.iter().map(|v| v * 0.75).collect()
    }

    /// A step, of which `spoil` may spoil the last mean. Compares all that is handed out, and what is left.
    fn step(&mut self, gradient: &Owned, spoil: Option<(usize, f32)>) {
        self.memory.write(Name::Gradient, gradient.as_gradient().as_bytes());
        let device = self.device;
        let mut mean = self.hand_out(Call::Begin, |state, factor| {
            device.begin_low_rank(state, gradient.as_gradient(), factor).expect("valid");
        });
        self.check_status().expect("the host found none");
        while self.steps.factor_len() > 0 {
            self.memory.write(Name::Factors, bytemuck::cast_slice(&mean));
            mean = self.hand_out(Call::Advance, |state, factor| {
                device.advance_low_rank(state, &mean, factor).expect("valid");
            });
        }
        if let Some((from_the_end, value)) = spoil {
            let at = mean.len() - 1 - from_the_end;
            mean[at] = value;
        }
        self.memory.write(Name::Factors, bytemuck::cast_slice(&mean));
        self.memory.call(Call::Finish, &mut self.steps).unwrap_or_else(|e| panic!("{}: {e}", self.label));
        let mut expected = vec![0.0; self.host.elements()];
        device.finish_low_rank(&mut self.host, &mean, &mut expected).expect("valid");
        let found = self.memory.read(Name::Output, 0..4 * expected.len() as u64);
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(&found);
        same(&self.label, "output", &found, &expected);
        self.compare();
    }

    fn check_status(&mut self) -> Result<(), Error> {
        if !self.is_guarded {
            // Nothing writes it.
            return self.steps.check(&[]);
        }
        let status = self.memory.read(Name::State, self.steps.status_bytes());
        self.steps.check(&status)
    }

    fn download(&mut self) -> LowRankState {
        let state = self.memory.read(Name::State, 0..self.steps.saved_bytes());
        let residual = self.memory.read(Name::Residual, 0..self.steps.residual_bytes());
        self.steps.download(&state, &bytemuck::pod_collect_to_vec::<u8, f32>(&residual)).expect("between steps")
    }

    fn compare(&mut self) {
        let (found, label) = (self.download(), &self.label);
        let expected = &self.host;
        assert_eq!(found.steps(), expected.steps(), "{label}");
        let [found_rest, rest] = [&found, expected].map(|state| state.residual().expect("between steps"));
        same(label, "residual", &found_rest, &rest);
        for t in 0..MODEL.len() {
            assert_eq!(found.outcome(t), expected.outcome(t), "{label}: outcome of tensor {t}");
            assert!(found.factors_of(t) == expected.factors_of(t), "{label}: factors of tensor {t}");
        }
        let marks = self.memory.read(Name::State, self.steps.outcome_bytes());
        let outcomes: Vec<Option<Outcome>> = (0..MODEL.len()).map(|t| self.host.outcome(t)).collect();
        assert_eq!(self.steps.outcomes(&marks).expect("as many bytes"), outcomes, "{}", self.label);
    }

    /// Puts what is expected into the memory anew, as after a checkpoint.
    fn restore(&mut self) {
        let (state, residual) = self.steps.upload(&self.host).expect("of the same tensors");
        self.memory.write(Name::State, &state);
        self.memory.write(Name::Residual, bytemuck::cast_slice(&residual));
    }
}

/// Runs steps in memory that `memory` allocates, and the same ones with a state on the host.
///
/// # Panics
/// Where a bit differs.
pub fn against_the_host<M: Memory>(
    device: &Device,
    (codec, is_guarded): (PowerSgd, bool),
    dtype: Dtype,
    memory: impl Fn(&ResidentLowRank) -> M,
) {
    let seed = Seed::new(77).step(u64::from(u32::MAX) - 2);
    let steps = codec.resident(&MODEL, dtype, seed).expect("valid");
    let host = codec.state(&MODEL, seed).expect("valid");
    let mut memory = memory(&steps);
    memory.write(Name::State, &steps.image());
    memory.write(Name::Residual, &vec![0; steps.residual_bytes() as usize]);
    let label = format!("{codec:?}, {}", dtype.name());

    let mut pair = Pair { device, memory, steps, host, label, is_guarded };
    // Seeded columns, then warm ones.
    for t in 0..2 {
        pair.step(&gradient(dtype, t), None);
    }
    if is_guarded {
        refused(&mut pair, dtype);
    } else {
        poisoned(&mut pair, dtype);
    }
    abandoned(&mut pair, dtype);
    pair.restore();
    pair.compare();
    for t in 8..10 {
        pair.step(&gradient(dtype, t), None);
    }
}

/// What is not finite is kept, dropped the second time, and sent again later.
fn poisoned<M: Memory>(pair: &mut Pair<'_, M>, dtype: Dtype) {
    for t in 2..4 {
        let mut spoilt = gradient(dtype, t);
        for tensor in [1, 3] {
            spoilt.set(place(tensor).start + 7, f32::NAN);
        }
        spoilt.set(place(0).start, f32::NEG_INFINITY);
        // The last element of the last tensor that is sent, or of the last factor.
        pair.step(&spoilt, (t == 3).then_some((0, f32::INFINITY)));
    }
    for t in 4..7 {
        pair.step(&gradient(dtype, t), None);
    }
}

/// Under the policy that refuses, nothing has happened.
fn refused<M: Memory>(pair: &mut Pair<'_, M>, dtype: Dtype) {
    let before = pair.download();
    for tensor in [4, 3] {
        let mut spoilt = gradient(dtype, 20);
        spoilt.set(place(tensor).start + 100, f32::NAN);
        pair.memory.write(Name::Gradient, spoilt.as_gradient().as_bytes());
        pair.memory.call(Call::Begin, &mut pair.steps).expect("queued");
        let error = pair.check_status().expect_err("there is a NaN");
        let at = place(tensor).start as u64 + 100;
        assert!(matches!(error, Error::NotFinite { index } if index == at), "{error:?}");
        assert!(pair.download() == before, "{}: after a refusal", pair.label);
    }
    pair.step(&gradient(dtype, 5), None);
}

/// A state that one-sided steps left at the left side goes on in two-sided ones, whose factors then have other sizes.
///
/// # Panics
/// Where a bit differs.
pub fn from_one_sided<M: Memory>(device: &Device, memory: impl Fn(&ResidentLowRank) -> M) {
    let (one, two) = (PowerSgd::rank(2).one_sided(), PowerSgd::rank(2));
    let (seed, mut output) = (Seed::new(5), vec![0.0; place(7).end]);
    let mut host = one.state(&MODEL, seed).expect("valid");
    let Owned::F32(first) = gradient(Dtype::F32, 0) else { unreachable!("as asked") };
    device.low_rank_step(&mut host, &first, &mut output, alone).expect("valid");
    let host = two.restore(&MODEL, &host.to_bytes().expect("between steps")).expect("of the same tensors");
    let mut steps = two.resident(&MODEL, Dtype::F32, seed).expect("valid");
    let before = steps.factor_bytes();
    let (state, residual) = steps.upload(&host).expect("of the same tensors");
    assert_ne!(steps.factor_bytes(), before, "the model's sides are alike");
    let mut memory = memory(&steps);
    memory.write(Name::State, &state);
    memory.write(Name::Residual, bytemuck::cast_slice(&residual));
    let mut pair = Pair { device, memory, steps, host, label: "from one-sided".to_owned(), is_guarded: false };
    for t in 1..3 {
        pair.step(&gradient(Dtype::F32, t), None);
    }
}

/// A step that is given up leaves its gradient in the residual.
fn abandoned<M: Memory>(pair: &mut Pair<'_, M>, dtype: Dtype) {
    let begun = gradient(dtype, 7);
    pair.memory.write(Name::Gradient, begun.as_gradient().as_bytes());
    let device = pair.device;
    pair.hand_out(Call::Begin, |state, factor| {
        device.begin_low_rank(state, begun.as_gradient(), factor).expect("valid");
    });
    for call in [Call::Begin, if pair.steps.rounds() == 1 { Call::Advance } else { Call::Finish }] {
        let error = pair.memory.call(call, &mut pair.steps).expect_err("another call is due");
        assert!(matches!(error, Error::Order { .. }), "{error:?}");
    }
    pair.steps.abandon();
    pair.host.abandon();
    pair.steps.abandon();
    pair.compare();
    // One that the device never heard of changes nothing.
    let before = pair.download();
    pair.memory.call(Call::BeginUnsubmitted, &mut pair.steps).expect("recorded");
    pair.steps.abandon();
    assert!(pair.download() == before, "{}: after a step that was not submitted", pair.label);
    pair.step(&gradient(dtype, 7), None);
}
