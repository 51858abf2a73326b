//! An entry of the list as the results say it.

use gradwire::wire::HEADER_BYTES;
use gradwire::{Codec, Dtype, Entropy, Error, IndexFormat, PowerSgd, Seed};

use super::schema::{Parameters, Settings};
use crate::jobs::list::{Entry, Setting, matrix};
use crate::jobs::{Feedback, feedback_plan, packed};

/// A setting, as the report says it.
pub(crate) fn describe(entry: &Entry, dtype: Dtype) -> Settings {
    let of = match entry.setting {
        Setting::Buckets(case) | Setting::Packed(case, _) => {
            let [norm, rounding] = case.kind.formula().terms().map(str::to_owned);
            let entropy = match entry.setting {
                Setting::Packed(_, entropy) => entropy,
                _ => Entropy::None,
            };
            let packing = entropy.name().to_owned();
            Parameters::Buckets { bits: case.bits, levels: case.levels, bucket: case.bucket, norm, rounding, packing }
        }
        Setting::TopK(part) => Parameters::TopK { part },
        Setting::PowerSgd(rank) => Parameters::PowerSgd { rank },
    };
    Settings { label: entry.label(), dtype: dtype.name().to_owned(), recipe: Some(entry.recipe()), of }
}

/// What the arithmetic of a codec promises of `n` elements.
pub(crate) struct Promise {
    /// Bytes of the gradient over bytes sent.
    pub(crate) ratio: f64,
    /// The bound on |decoded - gradient|^2 / |gradient|^2 in the mean, if there is one.
    pub(crate) omega: Option<f64>,
    pub(crate) feedback: Option<Feedback>,
}

/// What an entry promises.
///
/// # Errors
/// Where the library refuses the setting.
pub(crate) fn promise(entry: &Entry, n: usize, dtype: Dtype) -> Result<Promise, Error> {
    let (bytes, plain) = ((n * dtype.bytes()) as f64, Some(Feedback::Plain));
    Ok(match entry.setting {
        Setting::Buckets(case) => {
            let plan = case.codec().plan(n, dtype)?;
            let feedback = feedback_plan(&case, n, dtype)?.map(|(_, form)| form);
            Promise { ratio: bytes / plan.payload_bytes() as f64, omega: Some(plan.omega()), feedback }
        }
        Setting::Packed(case, entropy) => {
            let plan = packed::plan(&case, entropy, n, dtype)?;
            let feedback = feedback_plan(&case, n, dtype)?.map(|(_, form)| form);
            // The most bytes that there may be: how many there are depends on the gradient.
            Promise { ratio: bytes / plan.payload_bytes() as f64, omega: Some(plan.omega()), feedback }
        }
        Setting::TopK(part) => {
            let k = (part * n as f64).ceil() as u64;
            let sent =
                HEADER_BYTES as u64 + IndexFormat::choose(n as u64, k).bytes(n as u64, k) + dtype.bytes() as u64 * k;
            Promise { ratio: bytes / sent as f64, omega: Some(1.0 - k as f64 / n as f64), feedback: plain }
        }
        Setting::PowerSgd(rank) => {
            let state = PowerSgd::rank(rank).state(&[matrix(n)], Seed::new(1))?;
            Promise { ratio: bytes / state.step_bytes() as f64, omega: None, feedback: plain }
        }
    })
}
