//! The bound on the error of uniform quantization, with binary32's own rounding in it, on ranges where that weighs
//! most.

use gradwire::Device;

use crate::cases::{self, Case, Random};
use crate::conformance::Outcome;
use crate::oracle::Kind;

/// Elements of each range.
const EACH: usize = 32;

/// What `docs/wire.md` states under Error: the codec's own part, and binary32's.
fn bound(low: f64, high: f64, levels: u32, nearest: bool) -> [f64; 2] {
    let own = (high - low) / f64::from(levels) * if nearest { 0.5 } else { 1.0 };
    let largest = low.abs().max(high.abs());
    [own, (high - low) * 2f64.powi(-21) + largest * 2f64.powi(-24) + 2f64.powi(-150)]
}

/// Every element of a uniform payload is as near as the bound says; the worst error as a multiple of the codec's own
/// part.
///
/// # Errors
/// The element that is further off.
pub fn uniform(device: &Device, case: &Case, x: &[f32]) -> Result<f64, String> {
    let label = case.label();
    let payload = device.encode(&case.codec(), x, cases::seed()).map_err(|e| format!("{label}: {e}"))?;
    let decoded = device.decode(&payload).map_err(|e| format!("{label}: {e}"))?;
    let size = case.bucket.unwrap_or(x.len().max(1));
    let mut worst = 0.0f64;
    for (x, y) in x.chunks(size).zip(decoded.chunks(size)) {
        // All are exact in binary64, and so is a difference of binary32 numbers but for what is below any bound here.
        let wide = || x.iter().map(|v| f64::from(*v));
        let (low, high) = (wide().fold(f64::INFINITY, f64::min), wide().fold(f64::NEG_INFINITY, f64::max));
        let [own, rounding] = bound(low, high, case.levels, case.kind == Kind::UniformNearest);
        for (x, y) in wide().zip(y) {
            let error = (x - f64::from(*y)).abs();
            if error > own + rounding {
                return Err(format!(
                    "{label}: {x:e} between {low:e} and {high:e} became {y:e}, off by {:.3} of the bound",
                    error / (own + rounding)
                ));
            }
            if own > 0.0 {
                worst = worst.max(error / own);
            }
        }
    }
    Ok(worst)
}

/// As [`uniform`], for the suite.
pub fn holds(device: &Device, case: &Case, x: &[f32]) -> Outcome {
    uniform(device, case, x).map(|_| x.len() as u64)
}

/// Ranges of every kind, `EACH` elements of each: the ends, and what lies between.
pub fn ranges(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut out = Vec::new();
    for i in 0..count {
        let (low, high) = ends(&mut random, i);
        out.extend([low, high]);
        out.extend((2..EACH).map(|_| {
            // The weights add up to one, so nothing overflows.
            let t = random.unit();
            ((f64::from(low) * (1.0 - t) + f64::from(high) * t) as f32).clamp(low, high)
        }));
    }
    out
}

/// A number of any binade from 2^`least` to 2^`most`, of either sign.
fn number(random: &mut Random, least: i32, most: i32) -> f32 {
    let exponent = least + (random.bits() % (most - least) as u64) as i32;
    let magnitude = ((1.0 + random.unit()) * 2f64.powi(exponent)).min(f64::from(f32::MAX)) as f32;
    if random.bits() & 1 == 0 { magnitude } else { -magnitude }
}

fn ends(random: &mut Random, kind: usize) -> (f32, f32) {
    let (a, b) = match kind % 8 {
        // A few last places apart, in any binade.
        0 | 1 => {
            let a = number(random, -130, 128).abs();
            let b = f32::from_bits(a.to_bits().saturating_sub(1 + (random.bits() % 40) as u32));
            if random.bits() & 1 == 0 { (a, b) } else { (-a, -b) }
        }
        // Subnormal numbers.
        2 => {
            [0; 2].map(|_| f32::from_bits((random.bits() as u32 & 0x8000_0000) | (random.bits() % 5000) as u32)).into()
        }
        // About the smallest normal number, and about the lift.
        3 => [0; 2].map(|_| number(random, -130, -120)).into(),
        4 => [0; 2].map(|_| number(random, -63, -57)).into(),
        // Ranges that overflow, or nearly.
        5 => [0; 2].map(|_| number(random, 124, 128)).into(),
        // An offset that is far larger than the range.
        6 => {
            let a = number(random, -20, 20);
            (a, a + a.abs() * number(random, -20, -2))
        }
        _ => (number(random, -10, 3), number(random, -10, 3)),
    };
    if a <= b { (a, b) } else { (b, a) }
}
