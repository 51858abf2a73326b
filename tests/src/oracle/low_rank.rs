//! The state of PowerSGD and a step of it, from `docs/wire.md` alone; the step where nothing is rounded.

use super::powersgd::Dense;
use super::wire::crc32;

/// What a reader knows beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Columns of a factor.
    pub rank: u8,
    /// Whether there is error feedback.
    pub feedback: bool,
    /// Rows, columns, whether it is compressed.
    pub tensors: Vec<(u64, u64, bool)>,
}

impl Model {
    /// Elements of each tensor.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.tensors.iter().map(|(n, m, _)| (n * m) as usize)
    }

    /// Entries of each compressed matrix's factor of a side: 0 = left, 1 = right.
    fn factors(&self, side: u8) -> impl Iterator<Item = usize> {
        let compressed = self.tensors.iter().filter(|(.., compressed)| *compressed);
        compressed.map(move |(n, m, _)| if side == 0 { *n } else { *m } as usize * usize::from(self.rank))
    }

    /// Bytes of a state.
    pub fn length(&self) -> usize {
        let sums = if self.feedback { self.sizes().sum() } else { 0 };
        52 + 24 * self.tensors.len() + 4 * (sums + self.factors(0).sum::<usize>() + self.factors(1).sum::<usize>())
    }
}

/// A state.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The factor that was computed last: 0 = left, 1 = right.
    pub side: u8,
    /// Finished steps.
    pub steps: u64,
    /// Run, step and tensor.
    pub seed: (u64, u64, u32),
    /// Of each tensor.
    pub flags: Vec<u64>,
    /// Of each tensor; none without feedback.
    pub sums: Vec<Vec<f32>>,
    /// Left and right, of each compressed matrix.
    pub factors: [Vec<Vec<f32>>; 2],
}

/// Why bytes are no state of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another length.
    Size,
    /// Another magic.
    Magic,
    /// Another version.
    Version,
    /// Damaged.
    Checksum,
    /// A field that no writer writes.
    Field,
    /// Another model.
    Shape,
    /// A number that is not finite.
    NotFinite(u64),
    /// A number that is too large.
    TooLarge(u64),
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

impl Saved {
    /// The bytes.
    pub fn write(&self, model: &Model) -> Vec<u8> {
        let mut bytes = b"GWLR".to_vec();
        bytes.extend([2, self.side, model.rank, u8::from(model.feedback)]);
        bytes.extend((model.length() as u64).to_le_bytes());
        bytes.extend(self.steps.to_le_bytes());
        bytes.extend(self.seed.0.to_le_bytes());
        bytes.extend(self.seed.1.to_le_bytes());
        bytes.extend(self.seed.2.to_le_bytes());
        bytes.extend((model.tensors.len() as u32).to_le_bytes());
        for ((n, m, _), flags) in model.tensors.iter().zip(&self.flags) {
            [n, m, flags].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        let sums = self.sums.iter().filter(|_| model.feedback).flatten();
        let numbers = sums.chain(self.factors.iter().flatten().flatten());
        numbers.for_each(|v| bytes.extend(v.to_bits().to_le_bytes()));
        bytes.extend(crc32(bytes.iter().copied()).to_le_bytes());
        bytes
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// The first reason to refuse them, in the page's order.
    pub fn read(bytes: &[u8], model: &Model) -> Result<Self, Refusal> {
        let refuse = |condition, why| if condition { Err(why) } else { Ok(()) };
        refuse(bytes.len() < 52, Refusal::Size)?;
        refuse(bytes[..4] != *b"GWLR", Refusal::Magic)?;
        refuse(bytes[4] != 2, Refusal::Version)?;
        refuse(word(bytes, 8) != bytes.len() as u64, Refusal::Size)?;
        let body = bytes.len() - 4;
        refuse(half(bytes, body) != crc32(bytes[..body].iter().copied()), Refusal::Checksum)?;
        refuse(bytes[5] > 1 || bytes[7] > 1, Refusal::Field)?;
        refuse(bytes[6] != model.rank || half(bytes, 44) as usize != model.tensors.len(), Refusal::Shape)?;
        let mut flags = Vec::new();
        for (at, (n, m, compressed)) in (48..).step_by(24).zip(&model.tensors) {
            if at + 24 > body {
                break;
            }
            flags.push(word(bytes, at + 16));
            refuse(word(bytes, at + 16) > 0x2f, Refusal::Field)?;
            let shape = (word(bytes, at), word(bytes, at + 8), word(bytes, at + 16) & 1 == 1);
            refuse(shape != (*n, *m, *compressed), Refusal::Shape)?;
        }
        let feedback = bytes[7] == 1;
        refuse(bytes.len() != Model { feedback, ..model.clone() }.length(), Refusal::Size)?;
        refuse(!feedback && flags.iter().any(|flags| flags & 2 != 0), Refusal::Field)?;
        refuse(feedback != model.feedback, Refusal::Shape)?;
        let numbers = bytes[48 + 24 * flags.len()..body].chunks_exact(4);
        let mut numbers = numbers.map(|v| f32::from_bits(half(v, 0))).zip(0u64..);
        let (mut sums, mut factors) = (Vec::new(), [vec![], vec![]]);
        let mut take = |count: usize, limit: f32| {
            let take = |(v, index): (f32, u64)| {
                refuse(!v.is_finite(), Refusal::NotFinite(index))?;
                refuse(v.abs() > limit, Refusal::TooLarge(index)).map(|()| v)
            };
            numbers.by_ref().take(count).map(take).collect::<Result<Vec<f32>, Refusal>>()
        };
        for size in model.sizes().filter(|_| feedback) {
            sums.push(take(size, f32::MAX)?);
        }
        let sent = flags.iter().filter(|flags| *flags & 1 == 1).map(|flags| flags & 2 != 0);
        let below = f32::from_bits(2f32.powi(120).to_bits() - 1);
        for side in [0, 1] {
            for (size, sent) in model.factors(side).zip(sent.clone()) {
                let limit = if sent && side != bytes[5] { 2.0 } else { below };
                factors[usize::from(side)].push(take(size, limit)?);
            }
        }
        let seed = (word(bytes, 24), word(bytes, 32), half(bytes, 40));
        Ok(Self { side: bytes[5], steps: word(bytes, 16), seed, flags, sums, factors })
    }

    /// The residual of each tensor.
    pub fn residual(&self, model: &Model) -> Vec<Vec<f32>> {
        let zeros = model.sizes().map(|size| vec![0.0; size]).collect();
        if !model.feedback {
            return zeros;
        }
        let mut residual: Vec<Vec<f32>> = zeros;
        let mut matrices = 0;
        for (tensor, (n, m, compressed)) in model.tensors.iter().enumerate() {
            let sent = self.flags[tensor] & 2 != 0;
            match (sent, compressed) {
                (false, _) => residual[tensor].clone_from(&self.sums[tensor]),
                (true, false) => {}
                (true, true) => {
                    let [left, right] = [0, 1].map(|side: usize| &self.factors[side][matrices]);
                    for (e, (to, sum)) in residual[tensor].iter_mut().zip(&self.sums[tensor]).enumerate() {
                        let (i, j) = (e / *m as usize, e % *m as usize);
                        let rest = sum - product(left, right, *n as usize, *m as usize, i, j);
                        *to = if rest.is_finite() { rest } else { 0.0 };
                    }
                }
            }
            matrices += usize::from(*compressed);
        }
        residual
    }
}

/// An element of L R^T.
fn product(left: &[f32], right: &[f32], n: usize, m: usize, i: usize, j: usize) -> f32 {
    let mut sum = left[i] * right[j];
    for k in 1..left.len() / n {
        sum += left[k * n + i] * right[k * m + j];
    }
    sum
}

/// What a step of one worker gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What each round hands out.
    pub factors: Vec<Vec<f32>>,
    /// The output.
    pub output: Vec<f32>,
    /// The state after it.
    pub after: Saved,
}

/// A step of one worker whose collective does nothing.
///
/// # Panics
/// Where a number would have to be rounded.
pub fn step(model: &Model, before: &Saved, gradient: &[f32], rounds: usize) -> Step {
    let mut after = before.clone();
    after.steps = before.steps.wrapping_add(1);
    let mut handed = vec![Vec::new(); rounds];
    let (mut plain, mut output) = (Vec::new(), Vec::new());
    let residuals = before.residual(model);
    let (mut at, mut matrix) = (0, 0);
    for (tensor, (n, m, compressed)) in model.tensors.iter().enumerate() {
        let (n, m) = (*n as usize, *m as usize);
        let (g, e) = (&gradient[at..at + n * m], &residuals[tensor]);
        at += n * m;
        let sums: Vec<f32> = g.iter().zip(e).map(|(g, e)| exact(f64::from(*g) + f64::from(*e))).collect();
        let kept: Vec<f32> = sums.iter().zip(e).map(|(sum, e)| if sum.is_finite() { *sum } else { *e }).collect();
        let well = sums.iter().all(|sum| sum.is_finite());
        let wary = before.flags[tensor] >> 4;
        let (outcome, wary_after) = match (well, wary) {
            (true, _) => (1, wary.saturating_sub(1)),
            (false, 0) if model.feedback => (2, 2),
            (false, _) => (3, 2),
        };
        let mut sent = well;
        let mut behind = if outcome == 3 { vec![0.0; n * m] } else { kept.clone() };
        if *compressed {
            let dense = Dense::of(n, m, &sums);
            let mut side = usize::from(before.side);
            let mut known = columns(&before.factors[side][matrix], [n, m][side]).orthonormal();
            for (round, handed) in handed.iter_mut().enumerate() {
                let computed = if side == 1 { dense.times(&known) } else { dense.t().times(&known) };
                let numbers = flat(&computed);
                // What is not finite shows in the first product; from then on the matrix is known to be poisoned.
                let poisoned = !well && round > 0;
                handed.extend(numbers.iter().map(|v| exact(if poisoned { f64::NAN } else { *v })));
                if round + 1 == rounds && well {
                    after.factors[side][matrix] = flat(&known).into_iter().map(exact).collect();
                    after.factors[1 - side][matrix] = numbers.into_iter().map(exact).collect();
                }
                (side, known) = (1 - side, computed.orthonormal());
            }
            let [left, right] = [0, 1].map(|side: usize| &after.factors[side][matrix]);
            for e in 0..n * m {
                let value = product(left, right, n, m, e / m, e % m);
                output.push(if well { value } else { f32::from_bits(0x7fc0_0000) });
            }
            matrix += 1;
        } else {
            plain.extend_from_slice(&sums);
            output.extend_from_slice(&sums);
            if outcome == 2 {
                let places = behind.iter_mut().zip(&sums).filter(|(_, sum)| sum.is_finite());
                places.for_each(|(to, _)| *to = 0.0);
            } else {
                behind.fill(0.0);
                sent = true;
            }
        }
        let sent = sent && model.feedback;
        after.flags[tensor] = u64::from(*compressed) | u64::from(sent) << 1 | outcome << 2 | wary_after << 4;
        if model.feedback {
            after.sums[tensor] = behind;
        }
    }
    if let Some(last) = handed.last_mut() {
        last.extend(plain);
    }
    after.side = if rounds.is_multiple_of(2) { before.side } else { 1 - before.side };
    Step { factors: handed, output, after }
}

/// A number that binary32 has.
fn exact(value: f64) -> f32 {
    let narrow = value as f32;
    assert!(f64::from(narrow) == value || !value.is_finite(), "{value} would be rounded");
    if narrow.is_nan() { f32::from_bits(0x7fc0_0000) } else { narrow }
}

fn columns(factor: &[f32], dimension: usize) -> Dense {
    Dense::columns(dimension, factor)
}

/// A factor, column after column.
fn flat(factor: &Dense) -> Vec<f64> {
    factor.t().x
}
