//! The golden vectors of PowerSGD: states as bytes, and steps in which nothing is rounded; and the check of a device
//! against them.

use gradwire::{Device, Matrix, PowerSgd};
use serde::{Deserialize, Serialize};

use super::words::{bytes, read, write};
use crate::cases::Random;
use crate::conformance::{Outcome, differ};
use crate::oracle::low_rank::{Model, Saved, step};

/// The committed vectors.
pub const POWERSGD: &str = include_str!("../../vectors/powersgd.json");

const COMMENT: &[&str] = &[
    "Golden vectors of PowerSGD in Gradwire: docs/wire.md, under The state of PowerSGD, is the page that they belong to. They never change as long as a state's version is 2; new ones may be added.",
    "A step of a single worker, whose collective does nothing. Its numbers are such that nothing is rounded, in any order of summation: small integers, and columns whose norms are powers of two.",
    "name: what the vector is there for. rank, one_sided, feedback: the setting. iterations: power iterations a step; 1 where one-sided. tensors: rows, columns, and whether the tensor is compressed.",
    "state_before: the bytes of the state before the step, two digits a byte. state_after: the same behind it. gradient: of all tensors, one after another.",
    "factors: what each round hands out. output: of all tensors. residual_after: what state_after keeps.",
    "Numbers are lists of words with a space between. A word is the bits of one binary32 number as a hexadecimal number of 8 digits, most significant digit first: 1.0 is 3f800000. `word*count` is that word count times.",
    "A vector is passed if state_before is read, a step gives factors and output, and the state is then written as state_after and has residual_after, all of them bit for bit.",
];

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// How to read what follows.
    pub comment: Vec<String>,
    /// The vectors.
    pub vectors: Vec<Vector>,
}

/// One vector; the file's comment says what each field is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What it is there for; no two vectors share one.
    pub name: String,
    /// Columns of a factor.
    pub rank: u8,
    /// Whether a step computes one factor alone.
    pub one_sided: bool,
    /// Power iterations of a step.
    pub iterations: u32,
    /// Whether there is error feedback.
    pub feedback: bool,
    /// Rows, columns, whether it is compressed.
    pub tensors: Vec<(u64, u64, bool)>,
    /// A state.
    pub state_before: String,
    /// Of all tensors.
    pub gradient: String,
    /// Of each round.
    pub factors: Vec<String>,
    /// Of all tensors.
    pub output: String,
    /// Of all tensors.
    pub residual_after: String,
    /// A state.
    pub state_after: String,
}

/// What a vector is made of.
struct Spec {
    name: &'static str,
    one_sided: bool,
    iterations: u32,
    model: Model,
    before: Saved,
    gradient: Vec<f32>,
}

/// +1 or -1: columns of these are orthogonal, over any power of two of rows.
fn sign(i: usize, column: usize) -> f32 {
    if (i & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// A matrix of 16 x 6 and one of 4 x 6, with a vector between, and a step whose first factor's columns are orthogonal
/// with norms that are powers of two. `side` is the one the step starts from.
fn spec(name: &'static str, seed: u64, rank: u8, side: u8) -> Spec {
    let tensors = vec![(16, 6, true), (5, 1, false), (4, 6, true)];
    let model = Model { rank, feedback: true, tensors };
    let mut random = Random(seed);
    let mut odd =
        |most: u64| (2 * (random.bits() % most) + 1) as f32 * if random.bits().is_multiple_of(2) { 1.0 } else { -1.0 };
    let (mut factors, mut sums, mut gradient) = ([vec![], vec![]], vec![], vec![]);
    for (n, m, compressed) in &model.tensors {
        let (n, m, r) = (*n as usize, *m as usize, usize::from(rank));
        if !compressed {
            sums.push((0..n * m).map(|_| odd(9)).collect());
            gradient.extend((0..n * m).map(|_| odd(9)));
            continue;
        }
        // Right: a column of zeros but for a one, which picks a column of M. Left: a column of signs over the root of
        // n.
        let place = |k: usize| (2 * k + 1) % m;
        let root = 1.0 / (n as f32).sqrt();
        let unit: Vec<f32> = (0..r * m).map(|e| if e % m == place(e / m) { 1.0 } else { 0.0 }).collect();
        let signs: Vec<f32> = (0..r * n).map(|e| sign(e % n, 1 + e / n) * root).collect();
        let any = |of: usize, odd: &mut dyn FnMut(u64) -> f32| (0..r * of).map(|_| odd(4) / 4.0).collect::<Vec<f32>>();
        let [left, right] = if side == 1 { [signs, unit] } else { [signs, any(m, &mut odd)] };
        factors[0].push(left);
        factors[1].push(right);
        // M, of which the columns that are picked are orthogonal; the rest is odd, over several binades.
        let target: Vec<f32> = (0..n * m)
            .map(|e| match (0..r).find(|k| side == 1 && place(*k) == e % m) {
                Some(k) => sign(e / m, 1 + k) * (8 >> (k % 3)) as f32,
                None => odd(32),
            })
            .collect();
        sums.push((0..n * m).map(|_| odd(40) / 8.0).collect());
        gradient.extend(target);
    }
    // What the compressed matrices have kept was sent; the vector waits.
    let before = Saved {
        side,
        steps: 7 + seed,
        seed: (0x0123_4567_89ab_cdef, 5, 2),
        flags: vec![0b0111, 0b1000, 0b0111],
        sums,
        factors,
    };
    // The gradient makes M of what is kept.
    let mut at = 0;
    for (tensor, residual) in before.residual(&model).iter().enumerate() {
        for (g, e) in gradient[at..].iter_mut().zip(residual).filter(|_| model.tensors[tensor].2) {
            *g -= e;
        }
        at += residual.len();
    }
    Spec { name, one_sided: false, iterations: 1, model, before, gradient }
}

/// 4 h1 g1^T + 2 h2 g2^T + h3 g3^T, with columns of signs, of which the first two are what is kept warm.
fn signs(name: &'static str, iterations: u32) -> Spec {
    let model = Model { rank: 2, feedback: true, tensors: vec![(16, 16, true), (4, 1, false)] };
    let term = |e: usize, k: usize| (4 >> k) as f32 * sign(e / 16, 1 + k) * sign(e % 16, 4 + k);
    let mut gradient: Vec<f32> = (0..256).map(|e| (0..3).map(|k| term(e, k)).sum()).collect();
    gradient.extend([1.0, -2.0, 0.5, 3.0]);
    let right = (0..32).map(|e| sign(e % 16, 4 + e / 16) / 4.0).collect();
    // The left one is unused so far: nothing was sent.
    let factors = [vec![vec![0.0; 32]], vec![right]];
    let sums = vec![vec![0.0; 256], vec![0.0; 4]];
    let before = Saved { side: 1, steps: 0, seed: (1, 0, 0), flags: vec![1, 0], sums, factors };
    Spec { name, one_sided: false, iterations, model, before, gradient }
}

fn specs() -> Vec<Spec> {
    let without = |mut spec: Spec| {
        // The gradient is all of M.
        let kept = spec.before.residual(&spec.model).concat();
        spec.gradient.iter_mut().zip(kept).for_each(|(g, e)| *g += e);
        spec.model.feedback = false;
        spec.before.sums.clear();
        spec.before.flags.iter_mut().for_each(|flags| *flags &= !2);
        spec
    };
    let poisoned = |mut spec: Spec, tensors: &[usize], wary: u64| {
        let odd = [0x7fc0_0001, 0x7f80_0000, 0xff80_0000].map(f32::from_bits);
        for tensor in tensors {
            let first: usize = spec.model.sizes().take(*tensor).sum();
            spec.gradient[first + 3] = odd[*tensor];
            spec.before.flags[*tensor] |= wary << 4;
        }
        spec
    };
    let one_sided = |spec: Spec| Spec { one_sided: true, ..spec };
    vec![
        spec("two matrices and a vector that waited", 1, 2, 1),
        spec("rank 1", 2, 1, 1),
        spec("rank 3", 3, 3, 1),
        signs("the first two of three directions, warm", 1),
        signs("two power iterations", 2),
        one_sided(spec("one-sided, the left factor next", 4, 2, 1)),
        one_sided(spec("one-sided, the right factor next", 5, 2, 0)),
        without(spec("no feedback: no sums are written", 6, 2, 1)),
        poisoned(spec("a matrix with NaN is kept", 7, 2, 1), &[0], 0),
        poisoned(spec("and dropped where it was poisoned two steps ago", 7, 2, 1), &[0], 1),
        poisoned(spec("an infinite element of a vector waits", 8, 2, 1), &[1, 2], 0),
        poisoned(spec("or is dropped", 8, 2, 1), &[1, 2], 2),
        poisoned(without(spec("no feedback: what is poisoned is dropped", 9, 2, 1)), &[0, 1], 0),
        one_sided(poisoned(spec("one-sided, poisoned: the next step starts from the other side", 10, 2, 0), &[2], 0)),
    ]
}

fn floats(x: &[f32]) -> String {
    write(&x.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), 8)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn vector(spec: &Spec) -> Vector {
    let Spec { name, one_sided, iterations, model, before, gradient } = spec;
    let rounds = if *one_sided { 1 } else { 2 * *iterations as usize };
    let done = step(model, before, gradient, rounds);
    Vector {
        name: (*name).to_owned(),
        rank: model.rank,
        one_sided: *one_sided,
        iterations: *iterations,
        feedback: model.feedback,
        tensors: model.tensors.clone(),
        state_before: hexadecimal(&before.write(model)),
        gradient: floats(gradient),
        factors: done.factors.iter().map(|factor| floats(factor)).collect(),
        output: floats(&done.output),
        residual_after: floats(&done.after.residual(model).concat()),
        state_after: hexadecimal(&done.after.write(model)),
    }
}

/// The file, as the oracle computes it.
pub(super) fn file() -> File {
    let comment = COMMENT.iter().map(|line| (*line).to_owned()).collect();
    File { comment, vectors: specs().iter().map(vector).collect() }
}

/// The committed vectors.
///
/// # Errors
/// A text that says where the file is not as it should be.
pub fn committed() -> Result<Vec<Vector>, String> {
    let file: Result<File, _> = serde_json::from_str(POWERSGD);
    file.map(|f| f.vectors)
        .map_err(|e| format!("tests/vectors/powersgd.json: {e}; `cargo xtask vectors` writes it anew"))
}

/// A device reads these vectors' states, and its steps give their bits.
pub fn check(device: &Device, vectors: &[Vector]) -> Outcome {
    let mut compared = 0;
    for vector in vectors {
        let label = format!("golden vector of PowerSGD, \"{}\"", vector.name);
        compared += check_one(device, vector, &label)
            .map_err(|e| if e.starts_with(&label) { e } else { format!("{label}: {e}") })?;
    }
    Ok(compared)
}

fn check_one(device: &Device, v: &Vector, label: &str) -> Outcome {
    let fail = |e: gradwire::Error| e.to_string();
    let mut codec = PowerSgd::rank(v.rank.into()).iterations(v.iterations).min_compression(0.0);
    codec = if v.one_sided { codec.one_sided() } else { codec };
    codec = if v.feedback { codec } else { codec.without_feedback() };
    let tensors: Vec<Matrix> = v.tensors.iter().map(|(n, m, _)| Matrix::new(*n, *m)).collect();
    let mut state = codec.restore(&tensors, &bytes(&v.state_before)?).map_err(fail)?;
    let same = |what: &str, found: &[f32], expected: &str| {
        let expected = read(expected, 8, found.len())?;
        differ(what, label, bytemuck::cast_slice(found), bytemuck::cast_slice(&expected))
    };
    differ("state before", label, &state.to_bytes().map_err(fail)?, &bytes(&v.state_before)?)?;
    let n = state.elements();
    let gradient: Vec<f32> = read(&v.gradient, 8, n)?.into_iter().map(f32::from_bits).collect();
    let (mut output, mut factors) = (vec![0.0; n], Vec::new());
    let hand = |factor: &mut [f32]| {
        factors.push(factor.to_vec());
        Ok::<_, gradwire::Error>(())
    };
    device.low_rank_step(&mut state, &gradient, &mut output, hand).map_err(fail)?;
    if factors.len() != v.factors.len() {
        return Err(format!("{} factors were handed out, and {} are expected", factors.len(), v.factors.len()));
    }
    for (found, expected) in factors.iter().zip(&v.factors) {
        same("factor", found, expected)?;
    }
    same("output", &output, &v.output)?;
    same("residual", &state.residual().map_err(fail)?, &v.residual_after)?;
    differ("state", label, &state.to_bytes().map_err(fail)?, &bytes(&v.state_after)?)?;
    Ok(4 + factors.len() as u64)
}
