//! Which jobs of the list a report times.

use gradwire::plan::Limits;
use gradwire::{Dtype, Error};

use crate::jobs::list::{self, Setting};
use crate::jobs::{Job, Op, of, read_only};

/// The jobs on gradients of `n` elements; without top-k and PowerSGD where a device `selects` without passes.
///
/// What a device's limits leave no room for, while there is room for the others, is told in `left_out`.
///
/// # Errors
/// Where a setting is refused, or the device's limits are too small.
pub(super) fn chosen(
    n: usize,
    dtype: Dtype,
    limits: &Limits,
    selects: bool,
    left_out: &mut Vec<String>,
) -> Result<Vec<Job>, Error> {
    let mut jobs = vec![read_only(n, dtype, limits)?];
    for entry in list::all().iter().filter(|entry| entry.reported) {
        let is_quantizer = entry.setting.is_passes_everywhere();
        // The CPU packs and selects without passes.
        if !is_quantizer && !selects {
            continue;
        }
        let times = |op| match op {
            // Decoding gives f32 from whatever was encoded, so one type stands for all.
            Op::Decode => dtype == Dtype::F32 && !matches!(entry.setting, Setting::TopK(_)),
            Op::DecodeAdd => dtype == Dtype::F32,
            _ => true,
        };
        match of(entry, n, dtype, limits) {
            Ok(all) => jobs.extend(all.into_iter().filter(|job| times(job.op))),
            // Factors are in one binding, and packed codes, which may be too small for them and not for the others'
            // parts.
            Err(error @ Error::Limit { .. }) if matches!(entry.setting, Setting::PowerSgd(_) | Setting::Packed(..)) => {
                left_out.push(format!("{}, {}: {error}", entry.codec(), entry.label()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_encoded_and_not_decoded_again() {
        let buckets = list::all().iter().filter(|entry| entry.reported && entry.setting.is_passes_everywhere()).count();
        let of = |dtype, selects| chosen(100_000, dtype, &Limits::NONE, selects, &mut vec![]).unwrap().len();
        // DRIVE and EDEN take no feedback.
        assert_eq!(of(Dtype::F32, true), 1 + buckets * 4 - 2 + 2 * 4 + 3 * 3 + 4);
        assert_eq!(of(Dtype::Bf16, true), 1 + buckets * 2 - 2 + 2 * 2 + 3 * 2 + 4);
        assert_eq!(of(Dtype::F32, false), 1 + buckets * 4 - 2);
    }
}
