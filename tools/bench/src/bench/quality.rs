//! What compression costs in accuracy and saves in bytes, and whether what was decoded can be what was encoded.

use gradwire::{Device, Error, PowerSgd, Seed, TopK};
use gradwire_tests::cases::Case;
use gradwire_tests::low_rank::alone;
use gradwire_tests::oracle::Kind;

use super::source::{Source, Typed};
use crate::jobs::list::{Entry, Setting};
use crate::jobs::packed;

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

    /// |y - x|, as a part of the norm of another slice.
    pub(crate) fn apart(&self, of: &[f32]) -> f64 {
        (self.ee / Self::of(of, of).xx).sqrt()
    }

    /// |y - x| / |x|; 0 where both are zero.
    pub(crate) fn relative_error(&self) -> f64 {
        if self.ee == 0.0 { 0.0 } else { (self.ee / self.xx).sqrt() }
    }

    /// The cosine of the angle between x and y; 1 if they are equal, 0 if one of them is zero.
    pub(crate) fn cosine(&self) -> f64 {
        match self.xx * self.yy {
            _ if self.ee == 0.0 => 1.0,
            0.0 => 0.0,
            product => self.xy / product.sqrt(),
        }
    }
}

/// What was lost and what was saved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// What a gradient was decoded to, and the bytes between.
type Compressed = Result<(Vec<f32>, usize), Error>;

/// Accuracy over a whole gradient, as a training step compresses it: each tensor by itself, or by PowerSGD all that a
/// step has, of which this is the first.
pub(crate) fn of_tensors(device: &Device, entry: &Entry, source: &Source) -> Result<Accuracy, String> {
    let mut total = Accuracy::default();
    let mut add = |values: &[f32], name: &str, compress: &dyn Fn(&Typed<'_>) -> Compressed| {
        let failed = |e: String| format!("{} {}, {name}: {e}", entry.series(), entry.label());
        let typed = Typed::new(values, source.dtype);
        let (decoded, payload) = compress(&typed).map_err(|e| failed(e.to_string()))?;
        total.sums.add(compare(entry, values, &decoded).map_err(failed)?);
        total.gradient += typed.gradient().as_bytes().len() as u64;
        total.payload += payload as u64;
        Ok::<_, String>(())
    };
    let tensors = || {
        let of = |(index, tensor)| (Seed::new(1).tensor(index as u32), tensor);
        source
            .tensors
            .iter()
            .enumerate()
            .map(of)
            .map(|(seed, tensor)| (seed, format!("tensor {}", tensor.name), &tensor.values))
    };
    match entry.setting {
        Setting::Buckets(case) => tensors().try_for_each(|(seed, name, values)| {
            add(values, &name, &|typed| {
                let payload = device.encode(&case.codec(), typed.gradient(), seed)?;
                Ok((device.decode(&payload)?, payload.as_bytes().len()))
            })
        })?,
        Setting::Packed(case, entropy) => tensors().try_for_each(|(seed, name, values)| {
            add(values, &name, &|typed| {
                let plan = packed::plan(&case, entropy, typed.gradient().len(), typed.gradient().dtype())?;
                let payload = device.encode_plan(&plan, typed.gradient(), &mut [], seed)?;
                Ok((device.decode(&payload)?, payload.as_bytes().len()))
            })
        })?,
        Setting::TopK(part) => tensors().try_for_each(|(seed, name, values)| {
            add(values, &name, &|typed| {
                let payload = device.encode_sparse(&TopK::fraction(part), typed.gradient(), seed)?;
                Ok((device.decode_sparse(&payload)?, payload.as_bytes().len()))
            })
        })?,
        Setting::PowerSgd(rank) => source.steps().iter().try_for_each(|step| {
            let matrices = step.matrices();
            let values = step.repeated(matrices.iter().map(|matrix| matrix.elements() as usize).sum());
            add(&values, &step.label, &|typed| {
                let mut state = PowerSgd::rank(rank).without_feedback().state(&matrices, Seed::new(1))?;
                let mut output = vec![0.0; values.len()];
                device.low_rank_step(&mut state, typed.gradient(), &mut output, alone)?;
                Ok((output, state.step_bytes()))
            })
        })?,
    }
    Ok(total)
}

/// Sums over two slices, after a check that no element is further from its original than the codec may move it.
pub(crate) fn compare(entry: &Entry, x: &[f32], y: &[f32]) -> Result<Sums, String> {
    match entry.setting {
        Setting::Buckets(case) | Setting::Packed(case, _) => levels(&case, x, y),
        Setting::TopK(_) => match x.iter().zip(y).position(|(x, y)| *y != 0.0 && y.to_bits() != x.to_bits()) {
            None => Ok(Sums::of(x, y)),
            Some(at) => Err(format!("element {at} is {}, and {} was kept: do not use this build", x[at], y[at])),
        },
        // What is lost of an element depends on all of its matrix.
        Setting::PowerSgd(_) => Ok(Sums::of(x, y)),
    }
}

/// Elements that a thread compares at a time: every bucket divides it.
const SPAN: usize = 8192;

/// As [`compare`], of a quantizer.
fn levels(case: &Case, x: &[f32], y: &[f32]) -> Result<Sums, String> {
    let whole = if case.bucket.is_none() { spread(case.kind, x) } else { 0.0 };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = share(x.len(), threads);
    if x.len() <= share {
        // A thread costs more than a small tensor, and a model may have thousands of them.
        return compare_part(case, whole, x, y).map_err(|(at, found)| too_far(x, at, found));
    }
    std::thread::scope(|scope| {
        let parts = x.chunks(share).zip(y.chunks(share));
        let running: Vec<_> = parts.map(|(x, y)| scope.spawn(move || compare_part(case, whole, x, y))).collect();
        let mut sums = Sums::default();
        for (part, thread) in running.into_iter().enumerate() {
            let result = thread.join().map_err(|_| "the comparison did not finish".to_owned())?;
            sums.add(result.map_err(|(at, found)| too_far(x, part * share + at, found))?);
        }
        Ok(sums)
    })
}

/// Elements that each of so many threads compares, of as many as it takes.
fn share(elements: usize, threads: usize) -> usize {
    elements.div_ceil(threads).next_multiple_of(SPAN).max(SPAN)
}

fn too_far(x: &[f32], at: usize, found: f32) -> String {
    format!("element {at} is {} and decodes to {found}, further than one level away: do not use this build", x[at])
}

/// Fails with the index and the value of an element that is too far away.
fn compare_part(case: &Case, whole: f64, x: &[f32], y: &[f32]) -> Result<Sums, (usize, f32)> {
    let mut sums = Sums::default();
    let size = case.bucket.unwrap_or(SPAN);
    for (bucket, (x, y)) in x.chunks(size).zip(y.chunks(size)).enumerate() {
        let spread = if case.bucket.is_none() { whole } else { spread(case.kind, x) };
        let level =
            case.kind.formula().widest(spread, case.levels) * if case.kind.formula().is_nearest() { 0.5 } else { 1.0 };
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
    let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    kind.formula().span(&wide).0
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
        let sums = levels(&case, &[3.0, 4.0], &[3.0, 0.0]).unwrap();
        assert_eq!((sums.relative_error(), sums.cosine()), (0.8, 0.6));
        let zeros = levels(&case, &[0.0; 40], &[0.0; 40]).unwrap();
        assert_eq!((zeros.relative_error(), zeros.cosine()), (0.0, 1.0));
    }

    #[test]
    fn an_element_beyond_its_level_is_found_wherever_it_is() {
        for kind in [Kind::QsgdMax, Kind::QsgdL2, Kind::Uniform, Kind::UniformNearest] {
            for bucket in [Some(32), None] {
                let x: Vec<f32> = (0..40_000).map(|i| (i % 32) as f32).collect();
                let case = Case::new(kind, 8, bucket);
                assert!(levels(&case, &x, &x).is_ok());
                for (at, value) in [(0, 99_999.0), (17_000, f32::NAN), (20_000, f32::INFINITY), (39_999, -1e9)] {
                    let mut y = x.clone();
                    y[at] = value;
                    let error = levels(&case, &x, &y).unwrap_err();
                    assert!(error.starts_with(&format!("element {at} ")), "{error}");
                }
            }
        }
    }

    #[test]
    fn real_gradients_pass_through_every_setting() {
        let source = super::super::source::load(None, None, gradwire::Dtype::F32).unwrap();
        for entry in crate::jobs::list::all() {
            let accuracy = of_tensors(&Device::cpu(), &entry, &source).unwrap();
            assert!(accuracy.sums.cosine() > 0.0 && accuracy.ratio() > 1.5, "{}: {accuracy:?}", entry.label());
        }
    }

    #[test]
    fn tensors_without_elements_stand_among_others() {
        let mut source = super::super::source::load(None, None, gradwire::Dtype::F32).unwrap();
        for (at, shape) in [(0, vec![0]), (3, vec![7, 0]), (source.tensors.len(), vec![0, 3, 3])] {
            let empty = gradwire_tests::data::Tensor { shape, values: Vec::new(), ..source.tensors[1].clone() };
            source.tensors.insert(at, empty);
        }
        for entry in crate::jobs::list::all() {
            let accuracy = of_tensors(&Device::cpu(), &entry, &source).unwrap();
            assert!(accuracy.sums.cosine() > 0.0 && accuracy.ratio() > 1.5, "{}: {accuracy:?}", entry.label());
        }
        assert!(!super::super::trade::measure(&source, &indicatif::ProgressBar::hidden()).unwrap().is_empty());
    }

    #[test]
    fn small_tensors_take_no_thread_each() {
        assert_eq!([0, 1, SPAN].map(|elements| share(elements, 8)), [SPAN; 3]);
        assert_eq!(share(SPAN + 1, 8), SPAN);
        assert_eq!(share(100 * SPAN, 8), 13 * SPAN);
    }

    #[test]
    fn an_entry_that_was_changed_is_found() {
        let entry = Entry { setting: Setting::TopK(0.5), reported: false };
        assert_eq!(compare(&entry, &[1.0, 2.0], &[0.0, 2.0]).unwrap().relative_error(), 0.2f64.sqrt());
        for wrong in [2.5, f32::NAN, f32::INFINITY] {
            assert!(compare(&entry, &[1.0, 2.0], &[0.0, wrong]).unwrap_err().starts_with("element 1 "));
        }
    }

    #[test]
    fn feedback_that_loses_something_is_found() {
        assert!(check_feedback(&[1.0, 2.0], &[1.5, 0.0], &[-0.5, 2.0]).is_ok());
        assert!(check_feedback(&[1.0, 2.0], &[1.5, 0.0], &[-0.5, 1.0]).unwrap_err().starts_with("element 1 "));
        assert!(check_feedback(&[1.0], &[f32::NAN], &[0.0]).is_err());
    }
}
