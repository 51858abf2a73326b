//! Workers that draw for themselves: the rounding errors of a mean are independent of one another, and average out.

use gradwire::{Device, Seed};

use crate::cases::Case;
use crate::conformance::Outcome;
use crate::properties::{DRAW_BIAS, FALSE_ALARM, ROUNDING, positions};

/// The error of the mean of `workers` that all encode `x`, with the seed that each is given, is that of independent
/// rounding.
///
/// In levels, an element whose place between two levels is `r` is off by a mean of independent errors: its square has
/// expectation `r (1 - r) / workers`, and is at most 1. Elements are independent of one another too, so Bernstein's
/// inequality bounds how far the sum of squares is from its expectation: by `t` or more with probability 2 exp(-t^2/2 /
/// (V + t/3)), where V is the sum of variances, and that is [`FALSE_ALARM`]. With one seed for all, the sum is
/// `workers` times as large.
pub fn independent(device: &Device, case: &Case, x: &[f32], workers: u32, seed: impl Fn(u32) -> Seed) -> Outcome {
    let label = format!("{}, {workers} workers", case.label());
    let mut errors = vec![0.0f64; x.len()];
    for rank in 0..workers {
        let payload = device.encode(&case.codec(), x, seed(rank)).map_err(|e| format!("{label}: {e}"))?;
        let decoded = device.decode(&payload).map_err(|e| format!("{label}: {e}"))?;
        errors.iter_mut().zip(decoded).zip(x).for_each(|((e, d), v)| *e += f64::from(d) - f64::from(*v));
    }
    let count = f64::from(workers);
    let (mut sum, mut expected, mut variance, mut slack) = (0.0, 0.0, 0.0, 0.0);
    for (error, (step, place)) in errors.iter().zip(positions(case, x)) {
        let mean = error / count / step;
        let spread = place.fract() * (1.0 - place.fract());
        sum += mean * mean;
        expected += spread / count;
        // The fourth moment of a mean of independent errors of at most 1.
        variance += 3.0 * (spread / count).powi(2) + spread / count.powi(3);
        // What draws and binary32 leave of bias moves a mean below 1 by that, and its square by at most three times as
        // much.
        slack += 3.0 * (DRAW_BIAS + place * ROUNDING);
    }
    let tail = (2.0 / FALSE_ALARM).ln();
    let allowed = tail / 3.0 + (tail * tail / 9.0 + 2.0 * tail * variance).sqrt() + slack;
    if (sum - expected).abs() > allowed {
        return Err(format!(
            "{label}: the squared error of the mean is {sum:.2} levels, that of independent rounding {expected:.2}, within {allowed:.2}"
        ));
    }
    Ok(workers.into())
}
