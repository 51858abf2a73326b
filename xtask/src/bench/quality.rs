//! What compression costs in accuracy and saves in bytes, and whether what was decoded can be what was encoded.

use gradwire::{Device, Seed};
use gradwire_tests::cases::Case;
use gradwire_tests::oracle::Kind;

use super::settings::label;
use super::source::{Source, Typed};

/// Sums over the elements of the gradient x and of what was decoded, y.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    xx: f64,
    yy: f64,
    xy: f64,
    ee: f64,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.xx += other.xx;
        self.yy += other.yy;
        self.xy += other.xy;
        self.ee += other.ee;
    }

    /// Over all of two slices.
    pub(crate) fn of(x: &[f32], y: &[f32]) -> Self {
        let mut sums = Self::default();
        for (x, y) in x.iter().zip(y).map(|(x, y)| (f64::from(*x), f64::from(*y))) {
            sums.add(Self { xx: x * x, yy: y * y, xy: x * y, ee: (y - x) * (y - x) });
        }
        sums
    }

    /// |y - x| / |x|; 0 where both are zero.
    pub(crate) fn relative_error(&self) -> f64 {
        if self.ee == 0.0 { 0.0 } else { (self.ee / self.xx).sqrt() }
    }

    /// The cosine of the angle between x and y; 1 where they are equal, 0 where one of them is zero.
    pub(crate) fn cosine(&self) -> f64 {
        match self.xx * self.yy {
            _ if self.ee == 0.0 => 1.0,
            0.0 => 0.0,
            product => self.xy / product.sqrt(),
        }
    }
}

/// What was lost and what was saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Accuracy {
    pub(crate) sums: Sums,
    /// Bytes of the gradient.
    pub(crate) gradient: u64,
    /// Bytes of its payloads, headers included.
    pub(crate) payload: u64,
}

impl Accuracy {
    /// How many times smaller the payloads are.
    pub(crate) fn ratio(&self) -> f64 {
        self.gradient as f64 / self.payload as f64
    }
}

/// Accuracy over a whole gradient, each tensor compressed by itself as a training step does it.
pub(crate) fn of_tensors(device: &Device, case: &Case, source: &Source) -> Result<Accuracy, String> {
    let mut total = Accuracy { sums: Sums::default(), gradient: 0, payload: 0 };
    for (index, tensor) in source.tensors.iter().enumerate() {
        let failed = |e: gradwire::Error| format!("{}, tensor {}: {e}", label(case), tensor.name);
        let seed = Seed::new(1).tensor(index as u32);
        let typed = Typed::new(&tensor.values, source.dtype);
        let payload = device.encode(&case.codec(), typed.gradient(), seed).map_err(failed)?;
        let decoded = device.decode(&payload).map_err(failed)?;
        let checked = compare(case, &tensor.values, &decoded);
        total.sums.add(checked.map_err(|e| format!("{}, tensor {}: {e}", label(case), tensor.name))?);
        total.gradient += typed.gradient().as_bytes().len() as u64;
        total.payload += payload.as_bytes().len() as u64;
    }
    Ok(total)
}

/// Elements that a thread compares at a time: every bucket divides it.
const SPAN: usize = 8192;

/// Sums over two slices, after a check that no element is further from its original than the codec may move it.
pub(crate) fn compare(case: &Case, x: &[f32], y: &[f32]) -> Result<Sums, String> {
    let whole = if case.bucket.is_none() { spread(case.kind, x) } else { 0.0 };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = x.len().div_ceil(threads).next_multiple_of(SPAN);
    std::thread::scope(|scope| {
        let parts = x.chunks(share).zip(y.chunks(share));
        let running: Vec<_> = parts.map(|(x, y)| scope.spawn(move || compare_part(case, whole, x, y))).collect();
        let mut sums = Sums::default();
        for (part, thread) in running.into_iter().enumerate() {
            let result = thread.join().map_err(|_| "the comparison did not finish".to_owned())?;
            sums.add(result.map_err(|(at, found)| {
                let at = part * share + at;
                format!(
                    "element {at} is {} and decodes to {found}, further than one level away: do not use this build",
                    x[at]
                )
            })?);
        }
        Ok(sums)
    })
}

/// Fails with the index and the value of an element that is too far away.
fn compare_part(case: &Case, whole: f64, x: &[f32], y: &[f32]) -> Result<Sums, (usize, f32)> {
    let mut sums = Sums::default();
    let size = case.bucket.unwrap_or(SPAN);
    for (bucket, (x, y)) in x.chunks(size).zip(y.chunks(size)).enumerate() {
        let spread = if case.bucket.is_none() { whole } else { spread(case.kind, x) };
        let level = spread / f64::from(case.levels) * if case.kind == Kind::UniformNearest { 0.5 } else { 1.0 };
        for (i, (&found, (x, y))) in
            y.iter().zip(x.iter().zip(y).map(|(x, y)| (f64::from(*x), f64::from(*y)))).enumerate()
        {
            let error = y - x;
            // Beside the level there is the rounding of binary32 in the scale and in the product.
            let bound = level * 1.0001 + 1e-6 * (x.abs() + y.abs()) + f64::from(f32::MIN_POSITIVE);
            // The bound of an infinite value would be infinite too.
            if error.abs() > bound || !error.is_finite() {
                return Err((bucket * size + i, found));
            }
            sums.add(Sums { xx: x * x, yy: y * y, xy: x * y, ee: error * error });
        }
    }
    Ok(sums)
}

/// What a bucket's levels divide.
fn spread(kind: Kind, x: &[f32]) -> f64 {
    let values = || x.iter().map(|v| f64::from(*v));
    match kind {
        Kind::QsgdMax => values().fold(0.0, |m, v| m.max(v.abs())),
        Kind::QsgdL2 => values().map(|v| v * v).sum::<f64>().sqrt(),
        Kind::Uniform | Kind::UniformNearest | Kind::OneBit => {
            values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min)
        }
    }
}

/// Checks that what was decoded and the residual together are the gradient: error feedback loses nothing.
pub(crate) fn check_feedback(x: &[f32], decoded: &[f32], residual: &[f32]) -> Result<(), String> {
    for (at, (x, (y, r))) in x.iter().zip(decoded.iter().zip(residual)).enumerate() {
        let (x, y, r) = (f64::from(*x), f64::from(*y), f64::from(*r));
        let lost = (y + r - x).abs();
        if lost > 1e-6 * (y.abs() + r.abs()) + f64::from(f32::MIN_POSITIVE) || !lost.is_finite() {
            return Err(format!("element {at} is {x}, and feedback keeps {y} + {r}: do not use this build"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_give_error_and_cosine() {
        let case = Case::new(Kind::QsgdMax, 2, Some(128));
        let sums = compare(&case, &[3.0, 4.0], &[3.0, 0.0]).unwrap();
        assert_eq!((sums.relative_error(), sums.cosine()), (0.8, 0.6));
        let zeros = compare(&case, &[0.0; 40], &[0.0; 40]).unwrap();
        assert_eq!((zeros.relative_error(), zeros.cosine()), (0.0, 1.0));
    }

    #[test]
    fn an_element_beyond_its_level_is_found_wherever_it_is() {
        for kind in [Kind::QsgdMax, Kind::QsgdL2, Kind::Uniform, Kind::UniformNearest] {
            for bucket in [Some(32), None] {
                let x: Vec<f32> = (0..40_000).map(|i| (i % 32) as f32).collect();
                let case = Case::new(kind, 8, bucket);
                assert!(compare(&case, &x, &x).is_ok());
                for (at, value) in [(0, 99_999.0), (17_000, f32::NAN), (20_000, f32::INFINITY), (39_999, -1e9)] {
                    let mut y = x.clone();
                    y[at] = value;
                    let error = compare(&case, &x, &y).unwrap_err();
                    assert!(error.starts_with(&format!("element {at} ")), "{error}");
                }
            }
        }
    }

    #[test]
    fn real_gradients_pass_through_every_setting() {
        let source = super::super::source::load(None, None, gradwire::Dtype::F32).unwrap();
        for case in super::super::settings::cases(None) {
            let accuracy = of_tensors(&Device::cpu(), &case, &source).unwrap();
            assert!(accuracy.sums.cosine() > 0.0 && accuracy.ratio() > 1.5, "{}: {accuracy:?}", label(&case));
        }
    }

    #[test]
    fn feedback_that_loses_something_is_found() {
        assert!(check_feedback(&[1.0, 2.0], &[1.5, 0.0], &[-0.5, 2.0]).is_ok());
        assert!(check_feedback(&[1.0, 2.0], &[1.5, 0.0], &[-0.5, 1.0]).unwrap_err().starts_with("element 1 "));
        assert!(check_feedback(&[1.0], &[f32::NAN], &[0.0]).is_err());
    }
}
