//! The oracle's estimates of a threshold, from the documentation of `Estimate`: every threshold looks at all elements.

/// How a threshold is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// GaussianK.
    Gaussian,
    /// SIDCo.
    Sidco,
}

/// A threshold that about `k` of the elements reach.
pub fn threshold(x: &[f32], k: usize, by: Estimate) -> f32 {
    if k >= x.len() {
        return 0.0;
    }
    if !x.iter().all(|v| v.is_finite()) {
        return f32::INFINITY;
    }
    match by {
        Estimate::Gaussian => gaussian(x, k),
        Estimate::Sidco => sidco(x, k),
    }
}

fn gaussian(x: &[f32], k: usize) -> f32 {
    let n = x.len() as f64;
    let signed = |span: &[f32]| {
        let side = |positive: bool| {
            let side: Vec<f32> = span.iter().copied().filter(|v| (*v >= 0.0) == positive).collect();
            in_units(&side, 31, 1)
        };
        side(true) - side(false)
    };
    let mean = total(x, signed) / n;
    let square = total(x, |span| in_units(span, 23, 2)) / n;
    let deviation = (square - mean * mean).max(0.0).sqrt();
    let mut t = down(normal(k as f64 / n / 2.0) * deviation + mean.abs());
    let (mut best, mut few, mut many) = (t, None, None);
    for corrections in 0..=10 {
        let count = reach(x, t);
        if distance(count, k) < distance(reach(x, best), k) {
            best = t;
        }
        if corrections == 10 || 3 * count >= 2 * k && 3 * count <= 4 * k {
            break;
        }
        *if count < k { &mut few } else { &mut many } = Some(f64::from(t));
        t = match (few, many) {
            (Some(few), Some(many)) => down((few + many) / 2.0),
            (Some(few), None) => down(few / 2.0),
            (None, many) => down(many.unwrap_or(0.0) * 1.5),
        };
    }
    best
}

fn sidco(x: &[f32], k: usize) -> f32 {
    let mean = total(x, |span| in_units(span, 31, 1)) / x.len() as f64;
    let log = -(k as f64 / x.len() as f64).ln();
    let mut best: Option<f32> = None;
    // The first of several stages is for a quarter, which is not refined where no fewer are wanted.
    let (quarter, most) = (4f64.ln(), (log / 2f64.ln()).ceil() as u32);
    for stages in 1..=if log > quarter { most } else { 1 } {
        let each = if stages == 1 { 0.0 } else { (log - quarter) / f64::from(stages - 1) };
        let mut t = down(mean * if stages == 1 { log } else { quarter });
        for _ in 1..stages {
            let above: Vec<f64> =
                x.iter().filter(|v| v.abs() >= t).map(|v| f64::from(v.abs()) - f64::from(t)).collect();
            if !above.is_empty() {
                t = down(f64::from(t) + above.iter().fold(0.0, |sum, v| sum + v) / above.len() as f64 * each);
            }
        }
        if best.is_none_or(|best| distance(reach(x, t), k) < distance(reach(x, best), k)) {
            best = Some(t);
        }
        if 10 * reach(x, t) >= 8 * k && 10 * reach(x, t) <= 12 * k {
            break;
        }
    }
    let best = best.unwrap_or(0.0);
    if reach(x, best) > 0 { best } else { down(mean) }
}

/// How many reach a threshold.
pub fn reach(x: &[f32], t: f32) -> usize {
    x.iter().filter(|v| v.abs() >= t).count()
}

/// How many times too many or too few.
fn distance(count: usize, k: usize) -> f64 {
    count.max(k) as f64 / count.min(k) as f64
}

fn total(x: &[f32], of: impl Fn(&[f32]) -> f64) -> f64 {
    x.chunks(8192).fold(0.0, |sum, span| sum + of(span))
}

/// The sum of powers of magnitudes, each cut to a multiple of 2^-bits of the binade of the largest.
fn in_units(span: &[f32], bits: i32, power: u32) -> f64 {
    let largest = span.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    let unit = 2f64.powi(((largest.to_bits() >> 23) as i32 - 127).max(-126) - bits);
    let sum: u64 = span.iter().map(|v| ((f64::from(v.abs()) / unit) as u64).pow(power)).sum();
    sum as f64 * unit.powi(power as i32)
}

/// The largest number of binary32 that is not above, and above zero.
fn down(v: f64) -> f32 {
    let near = v as f32;
    let below = if f64::from(near) > v { near.next_down() } else { near };
    below.max(f32::from_bits(1)).min(f32::MAX)
}

/// PPND7 of Wichura 1988, for a probability above.
fn normal(p: f64) -> f64 {
    let (q, tail) = (0.5 - p, (-p.ln()).sqrt());
    if q <= 0.425 {
        let r = 0.180625 - q * q;
        let a = ((59.10937472 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
        let b = ((67.1875636 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
        q * a / b
    } else if tail <= 5.0 {
        let r = tail - 1.6;
        (((0.17023821103 * r + 1.3067284816) * r + 2.75681539) * r + 1.4234372777)
            / ((0.12021132975 * r + 0.7370016425) * r + 1.0)
    } else {
        let r = tail - 5.0;
        (((0.017337203997 * r + 0.42868294337) * r + 3.081226386) * r + 6.657905115)
            / ((0.012258202635 * r + 0.24197894225) * r + 1.0)
    }
}
