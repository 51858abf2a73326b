//! The statistics that a search starts from: those that codecs make of a tensor that is one bucket, a sum of
//! integers for each span of it.

use gradwire_kernels::arith::float::INF_BITS;
use gradwire_kernels::arith::fold::join;
use gradwire_kernels::arith::norm::alignment;

use super::Search;
use super::numbers::power_of_2;
use super::per_sign::{PerSign, Sides};
use super::search::{About, Known};
use crate::codec::estimate::Estimate;
use crate::codec::topk::Sought;
use crate::codec::{Codec, OneBit, Qsgd, Sign};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::EncodePlan;

/// The plans whose statistics are taken.
///
/// # Errors
/// [`Error::TooLong`] for more elements than a plan has.
pub(crate) fn plans(sought: Sought, n: usize, dtype: Dtype, feedback: bool) -> Result<Vec<EncodePlan>, Error> {
    let plans = match sought {
        Sought::PerSign(_) => vec![OneBit::new().whole_tensor().plan(n, dtype)?],
        Sought::About { by: Estimate::Gaussian, .. } => {
            vec![OneBit::new().whole_tensor().plan(n, dtype)?, Qsgd::bits(8).l2().whole_tensor().plan(n, dtype)?]
        }
        Sought::About { by: Estimate::Sidco, .. } => vec![Sign::new().whole_tensor().plan(n, dtype)?],
    };
    Ok(plans.into_iter().map(|plan| EncodePlan { feedback, ..plan }).collect())
}

/// The search among `n` elements, from the partial statistics of [`plans`], a list for each. A part of each sign is
/// searched without any too: then its first step takes every entry.
pub(crate) fn search(sought: Sought, n: u64, partials: &[Vec<u32>]) -> Search {
    let _environment = FloatEnvironment::standard();
    match sought {
        Sought::About { k, by } => Search::About(About::new(by, k, n, known(n as f64, partials))),
        Sought::PerSign(part) => Search::PerSign(PerSign::new(part, partials.first().and_then(|spans| sides(spans)))),
    }
}

/// What 1-bit's statistics tell of both sides of zero; nothing if they are not finite.
fn sides(means: &[u32]) -> Option<Sides> {
    let mut sides = Sides { below: 0, sums: [0.0; 2] };
    for [top, bottom, a, b, c, d, _, below] in chunks::<8>(means) {
        if top.max(bottom) >= INF_BITS {
            return None;
        }
        sides.below += u64::from(below);
        sides.sums[0] += sum([a, b]) * unit(top);
        sides.sums[1] += sum([c, d]) * unit(bottom);
    }
    Some(sides)
}

/// A magnitude's unit in the integers of a span whose largest has these bits.
fn unit(largest: u32) -> f64 {
    power_of_2(alignment(largest) as i32 - 158)
}

fn sum(words: [u32; 2]) -> f64 {
    join(words) as f64
}

fn known(n: f64, partials: &[Vec<u32>]) -> Known {
    // The unit of a square.
    let square = |largest: u32| power_of_2(2 * (alignment(largest) as i32 - 150));
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
