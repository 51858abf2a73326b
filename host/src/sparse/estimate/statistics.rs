//! The statistics of which a threshold is estimated: those that codecs make of a tensor that is one bucket, a sum of
//! integers for each span of it.

use gradwire_kernels::arith::float::INF_BITS;
use gradwire_kernels::arith::fold::join;
use gradwire_kernels::arith::norm::alignment;

use super::numbers::power_of_2;
use super::search::{Known, Search};
use crate::codec::estimate::Estimate;
use crate::codec::{Codec, OneBit, Qsgd, Sign};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::EncodePlan;

/// The plans whose statistics are taken.
///
/// # Errors
/// [`Error::TooLong`] for more elements than a plan has.
pub(crate) fn plans(estimate: Estimate, n: usize, dtype: Dtype, feedback: bool) -> Result<Vec<EncodePlan>, Error> {
    let plans = match estimate {
        Estimate::Gaussian => {
            vec![OneBit::new().whole_tensor().plan(n, dtype)?, Qsgd::bits(8).l2().whole_tensor().plan(n, dtype)?]
        }
        Estimate::Sidco => vec![Sign::new().whole_tensor().plan(n, dtype)?],
    };
    Ok(plans.into_iter().map(|plan| EncodePlan { feedback, ..plan }).collect())
}

/// The search for a threshold that about `k` of `n` entries reach, from the partial statistics of [`plans`], a list for
/// each.
pub(crate) fn search(estimate: Estimate, k: u64, n: u64, partials: &[Vec<u32>]) -> Search {
    Search::new(estimate, k, n, known(n as f64, partials))
}

fn known(n: f64, partials: &[Vec<u32>]) -> Known {
    // Of a magnitude in the integers of a span, whose largest has these bits, and of its square.
    let unit = |largest: u32| power_of_2(alignment(largest) as i32 - 158);
    let square = |largest: u32| power_of_2(2 * (alignment(largest) as i32 - 150));
    let sum = |words: [u32; 2]| join(words) as f64;
    let is_finite = |spans: &[[u32; 8]]| spans.iter().all(|[a, b, ..]| *a < INF_BITS && *b < INF_BITS);
    match partials {
        [means, squares] => {
            let spans = chunks::<8>(means);
            if !is_finite(&spans) {
                return Known::NotFinite;
            }
            let of_span =
                |[top, bottom, a, b, c, d, ..]: &[u32; 8]| sum([*a, *b]) * unit(*top) - sum([*c, *d]) * unit(*bottom);
            let mean = spans.iter().map(of_span).fold(0.0, |all, span| all + span) / n;
            let of_span = |[largest, a, b, _]: &[u32; 4]| sum([*a, *b]) * square(*largest);
            let squares = chunks::<4>(squares).iter().map(of_span).fold(0.0, |all, span| all + span) / n;
            Known::Normal { mean, deviation: (squares - mean * mean).max(0.0).sqrt() }
        }
        [magnitudes] => {
            let spans: Vec<[u32; 8]> = chunks(magnitudes);
            if spans.iter().any(|[largest, ..]| *largest >= INF_BITS) {
                return Known::NotFinite;
            }
            let of_span = |[largest, a, b, ..]: &[u32; 8]| sum([*a, *b]) * unit(*largest);
            Known::Magnitude(spans.iter().map(of_span).fold(0.0, |all, span| all + span) / n)
        }
        // No estimate has other plans; of nothing known, nothing is kept.
        _ => Known::NotFinite,
    }
}

fn chunks<const N: usize>(words: &[u32]) -> Vec<[u32; N]> {
    words.as_chunks().0.to_vec()
}
