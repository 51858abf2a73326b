//! The theorems of the literature as tests, with a stated probability of a false alarm.
//!
//! Seeds are fixed, so a test gives the same verdict every time; the probability is that of a correct implementation
//! having been unlucky with these seeds. Every statistical check uses a bound on the tail, and each is sized to
//! [`FALSE_ALARM`].

use gradwire::{Device, Error, Seed};

use crate::cases::{self, Case};
use crate::conformance::Outcome;

/// The probability that one statistical check fails although the implementation is right.
pub const FALSE_ALARM: f64 = 1e-9;

/// Standard deviations that a sum of very many bounded, independent terms passes with probability [`FALSE_ALARM`]:
/// 2 exp(-z^2/2) = 1e-9 gives 6.55, and an eighth more covers what a finite sum has beyond the normal tail (Bernstein's
/// inequality with thousands of terms).
const Z: f64 = 7.4;

/// Draws of 16 bits leave a bias of at most this, in levels (`arith::round`).
pub(crate) const DRAW_BIAS: f64 = 1.0 / 131072.0;

/// Binary32 arithmetic moves a scaled value by at most this, as a share of itself: three roundings of 2^-24 each.
pub(crate) const ROUNDING: f64 = 3.0 / 16777216.0;

fn failed(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

pub(crate) fn decode_with(device: &Device, case: &Case, x: &[f32], run: u64) -> Result<Vec<f32>, String> {
    let label = case.label();
    let payload = device.encode(&case.codec(), x, Seed::new(run).tensor(3)).map_err(failed(&label))?;
    device.decode(&payload).map_err(failed(&label))
}

fn square(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}

/// The distance of two levels in each element's bucket, and the position of each element between levels, in f64.
pub(crate) fn positions(case: &Case, x: &[f32]) -> Vec<(f64, f64)> {
    let size = case.bucket.unwrap_or(x.len());
    x.chunks(size)
        .flat_map(|bucket| {
            let wide: Vec<f64> = bucket.iter().map(|v| f64::from(*v)).collect();
            case.kind.formula().positions(case.levels, &wide)
        })
        .collect()
}

/// P1: E\[decode\] = x, element by element (Hoeffding) and all together; P4: the variance is r(1 - r) step^2; P2: it is
/// at most omega |x|^2.
pub fn unbiased(device: &Device, case: &Case, x: &[f32], runs: u64) -> Outcome {
    let label = case.label();
    let places = positions(case, x);
    let mut sums = vec![0.0f64; x.len()];
    let mut squares = Vec::new();
    for run in 0..runs {
        let decoded = decode_with(device, case, x, run)?;
        let mut total = 0.0;
        for ((sum, d), v) in sums.iter_mut().zip(&decoded).zip(x) {
            let error = f64::from(*d) - f64::from(*v);
            *sum += error;
            total += error * error;
        }
        squares.push(total);
    }
    let count = runs as f64;
    // Element by element: the mean of `runs` values in an interval of one step leaves it by more than t with
    // probability 2 exp(-2 runs t^2), and there are as many chances as elements.
    let reach = ((2.0 * x.len() as f64 / FALSE_ALARM).ln() / (2.0 * count)).sqrt() + DRAW_BIAS;
    for (i, (sum, (step, place))) in sums.iter().zip(&places).enumerate() {
        let bias = sum / count / step;
        if bias.abs() > reach + place * ROUNDING {
            return Err(format!(
                "{label}: element {i} = {:e} is off by {bias:.5} levels on average over {runs} runs, and {reach:.5} is the limit",
                x[i]
            ));
        }
    }
    // All together: in levels, the sum of errors has variance sum r(1 - r).
    let spread: f64 = places.iter().map(|(_, a)| a.fract() * (1.0 - a.fract())).sum::<f64>() * count;
    let signed: f64 = sums.iter().zip(&places).map(|(s, (step, _))| s / step).sum();
    let slack = count * places.iter().map(|(_, a)| DRAW_BIAS + a * ROUNDING).sum::<f64>();
    if signed.abs() > Z * spread.sqrt() + slack {
        return Err(format!(
            "{label}: errors sum to {signed:.1} levels, and {:.1} is the limit",
            Z * spread.sqrt() + slack
        ));
    }
    // The variance: |decode - x|^2 has this mean; each run's total is a sum of independent terms of at most step^2.
    let exact: f64 = places.iter().map(|(step, a)| step * step * a.fract() * (1.0 - a.fract())).sum();
    let per_term: f64 = places
        .iter()
        .map(|(step, a)| {
            let r = a.fract();
            step.powi(4) * (r * (1.0 - r).powi(4) + (1.0 - r) * r.powi(4) - (r * (1.0 - r)).powi(2))
        })
        .sum();
    let mean = squares.iter().sum::<f64>() / count;
    let rounding: f64 = places.iter().map(|(step, a)| step * step * (DRAW_BIAS + a * ROUNDING)).sum();
    let allowed = Z * (per_term / count).sqrt() + rounding;
    if (mean - exact).abs() > allowed {
        return Err(format!("{label}: variance {mean:e}, expected {exact:e} within {allowed:e}"));
    }
    let bound = case.omega(x.len()) * square(x);
    if mean > bound + allowed {
        return Err(format!("{label}: variance {mean:e} passes the theorem's bound {bound:e}"));
    }
    Ok(runs)
}

/// P3: E|Q|_0 <= s (s + sqrt n), for the L2 norm.
pub fn sparsity(device: &Device, case: &Case, x: &[f32], runs: u64) -> Outcome {
    let size = case.bucket.unwrap_or(x.len());
    let s = f64::from(case.levels);
    let buckets = x.chunks(size).map(|b| s * (s + (b.len() as f64).sqrt()));
    let bound: f64 = buckets.sum();
    let mut total = 0usize;
    for run in 0..runs {
        total += decode_with(device, case, x, run)?.iter().filter(|v| **v != 0.0).count();
    }
    let mean = total as f64 / runs as f64;
    let allowed = bound + Z * (x.len() as f64 / 4.0 / runs as f64).sqrt();
    if mean > allowed {
        return Err(format!(
            "{}: {mean:.1} elements are not zero, and {bound:.1} is the theorem's bound",
            case.label()
        ));
    }
    Ok(runs)
}

/// P6: no element moves by more than a level (half a level to nearest), and signs are kept.
pub fn bounded(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let decoded = decode_with(device, case, x, 11)?;
    let levels = if case.kind.formula().is_nearest() { 0.5 } else { 1.0 };
    for (i, ((d, v), (step, place))) in decoded.iter().zip(x).zip(positions(case, x)).enumerate() {
        let moved = (f64::from(*d) - f64::from(*v)).abs();
        // Decoding rounds to f32, so a value with a large offset keeps that value's own last place.
        let last_place = f64::from(d.abs().max(v.abs())) * 2f64.powi(-22);
        if moved > step * (levels + DRAW_BIAS + place * ROUNDING) + last_place {
            return Err(format!("{}: element {i} moved from {v:e} to {d:e}, and a level is {step:e}", case.label()));
        }
        if case.kind.formula().page().sign_bits > 0 && d.is_sign_negative() != v.is_sign_negative() {
            return Err(format!("{}: element {i} changed sign: {v:e} to {d:e}", case.label()));
        }
    }
    Ok(decoded.len() as u64)
}

/// P5: values that are levels stay as they are, whatever the draws.
pub fn exact_on_levels(device: &Device, case: &Case) -> Outcome {
    let levels = case.levels as i64;
    let size = case.bucket.unwrap_or(512);
    let mut random = cases::Random(21);
    let mut x: Vec<f32> = (0..size * 3)
        .map(|i| {
            let level = (random.bits() % (levels as u64 + 1)) as i64;
            let level = if i % size == 0 {
                levels
            } else if i % size == 1 {
                0
            } else {
                level
            };
            let signed = case.kind.formula().page().sign_bits > 0;
            let sign = if signed && random.bits() & 1 == 1 { -1 } else { 1 };
            sign as f32 * case.kind.formula().level(level as u32, case.levels)
        })
        .collect();
    if case.bucket.is_none() {
        x.truncate(size);
    }
    for run in 0..20 {
        let decoded = decode_with(device, case, &x, run)?;
        if let Some(i) = (0..x.len()).find(|i| decoded[*i] != x[*i]) {
            return Err(format!("{}: level {:e} became {:e} in run {run}", case.label(), x[i], decoded[i]));
        }
    }
    Ok(20)
}

/// Nothing that order should not matter to depends on it: a bucket's scalars are the same for any order of its
/// elements.
pub fn permutation(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    let scalars = |x: &[f32]| -> Result<Vec<u8>, String> {
        let payload = device.encode(&case.codec(), x, cases::seed()).map_err(failed(&case.label()))?;
        let bytes = payload.header().scalar_bytes() as usize;
        Ok(payload.as_bytes()[gradwire::wire::HEADER_BYTES..][..bytes].to_vec())
    };
    let mut shuffled = x.to_vec();
    let mut random = cases::Random(5);
    let size = case.bucket.unwrap_or(x.len());
    for bucket in shuffled.chunks_mut(size) {
        for i in (1..bucket.len()).rev() {
            bucket.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
    }
    // Whole tensors align each span of 8192 by itself, so there the last place may move; buckets may not.
    if case.bucket.is_some() && scalars(x)? != scalars(&shuffled)? {
        return Err(format!("{}: the scalars depend on the order of the elements", case.label()));
    }
    Ok(1)
}

/// Error feedback: residual' = g + e - decode to the bit at every step; what was sent plus what is left is what came
/// in, to the rounding of the sums; and the residual stays below the lemma's bound, 4 (1 - delta)/delta^2 |g|^2 with
/// delta = 1/(1 + omega) (Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes",
/// ICML 2019, lemma 3).
pub fn feedback(device: &Device, case: &Case, x: &[f32], steps: u64) -> Outcome {
    let label = case.label();
    let (mut residual, mut sent, mut given, mut rounding) =
        (vec![0.0f32; x.len()], vec![0.0f64; x.len()], vec![0.0f64; x.len()], vec![0.0f64; x.len()]);
    let delta = case.delta(x.len());
    let bound = 4.0 * (1.0 - delta) / (delta * delta) * square(x);
    let mut energy = 0.0;
    for step in 0..steps {
        let before = residual.clone();
        let payload = device
            .encode_with_feedback(&case.codec(), x, &mut residual, Seed::new(77).step(step))
            .map_err(failed(&label))?;
        let decoded = device.decode(&payload).map_err(failed(&label))?;
        for i in 0..x.len() {
            let total = x[i] + before[i];
            let expected = total - decoded[i];
            if expected.to_bits() != residual[i].to_bits() && expected != residual[i] {
                return Err(format!(
                    "{label}: step {step}, element {i}: residual {:e}, expected {expected:e}",
                    residual[i]
                ));
            }
            sent[i] += f64::from(decoded[i]);
            given[i] += f64::from(x[i]);
            rounding[i] += (f64::from(total.abs()) + f64::from(expected.abs())) * 2f64.powi(-24);
        }
        energy += square(&residual);
    }
    for i in 0..x.len() {
        let lost = (sent[i] + f64::from(residual[i]) - given[i]).abs();
        if lost > rounding[i] {
            return Err(format!(
                "{label}: element {i} lost {lost:e} over {steps} steps, and rounding explains {:e}",
                rounding[i]
            ));
        }
    }
    // The lemma bounds the expectation; the mean over steps is below it with room to spare.
    if energy / steps as f64 > bound {
        return Err(format!(
            "{label}: the residual's energy {:e} passes the lemma's bound {bound:e}",
            energy / steps as f64
        ));
    }
    Ok(steps)
}

/// P8: the payload is within one percent of n bits/8 plus the scalars, from 2^16 elements on.
pub fn size(device: &Device, case: &Case) -> Outcome {
    let mut compared = 0;
    for n in [1usize << 16, (1 << 16) + 1, 100_003] {
        let payload = device.encode(&case.codec(), &vec![1.0f32; n], cases::seed()).map_err(failed(&case.label()))?;
        let per_bucket = (4 * case.kind.codec().scalars(case.bits)) as f64;
        let buckets = n.div_ceil(case.bucket.unwrap_or(n)) as f64;
        let theory = n as f64 * f64::from(case.bits) / 8.0 + per_bucket * buckets;
        let got = payload.as_bytes().len() as f64;
        if got > theory * 1.01 {
            return Err(format!("{}: n = {n} takes {got} bytes, and theory {theory}", case.label()));
        }
        compared += 1;
    }
    Ok(compared)
}
