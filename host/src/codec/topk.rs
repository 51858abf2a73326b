//! Top-k sparsification, as a user sets it up.

use std::sync::Arc;

use super::Codec;
use super::estimate::Estimate;
use crate::codec::quantizer::Quantizer;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::{EncodePlan, NonFinite};
use crate::wire::{MAX_ELEMENTS, SparseHeader, ValueFormat};

/// Neighbouring elements of a gradient, as a layer of a model, and how many of them to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Its elements.
    pub elements: u64,
    /// How many are kept.
    pub k: u64,
}

/// Which entries are kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Keep {
    /// This many of the largest.
    Count(u64),
    /// This part of all, rounded up.
    Fraction(f64),
    /// This many of every block of that many elements.
    Blocks { elements: u64, k: u64 },
    /// As many of each segment as it says.
    Segments(Arc<[Segment]>),
    /// Every entry of at least this magnitude.
    Above(f32),
    /// Every entry of at least a magnitude that about this part of all reach.
    Estimate { part: f64, by: Estimate },
    /// This part of the elements above zero, and this part of those below, each rounded up.
    PerSign(f64),
}

/// How values are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Values {
    /// In the gradient's own type, or f32 where the residual is added.
    Exact,
    /// Rounded to this type.
    As(Dtype),
    /// Quantized.
    By(Quantizer),
}

/// Keep the entries of largest magnitude, exactly.
///
/// Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; the contraction
/// |x - C(x)|^2 <= (1 - k/n) |x|^2 in Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
///
/// * **Shape**: any 1-D gradient of up to 2^31 elements, f32, f16 or bf16; decoding gives f32.
/// * **Kept**: exactly k entries, the largest by magnitude; of equal ones, those of lower index. NaN counts as larger
///   than infinity, all NaN as equal. Values are bit-exact, unless they are asked to be smaller.
/// * **Size**: k values, the indices in the smallest of three formats (8.6 bits each at one in a hundred), 32 bytes of
///   header.
/// * **Biased**, and a contraction: use it with error feedback.
/// * **Seeds**: they matter where values are quantized alone; there each worker needs its own, by
///   [`crate::Seed::worker`].
/// * **Determinism**: backend to backend.
///
/// ```
/// use gradwire::{Device, Seed, TopK};
/// let device = Device::cpu();
/// let gradient: Vec<f32> = (0..1000).map(|i| i as f32).collect();
/// let mut residual = vec![0.0; 1000];
/// let sent = device.encode_sparse_with_feedback(&TopK::fraction(0.01), &gradient, &mut residual, Seed::new(1))?;
/// assert_eq!(sent.indices(), [990, 991, 992, 993, 994, 995, 996, 997, 998, 999]);
/// assert_eq!((residual[989], residual[990]), (989.0, 0.0)); // values that were not sent wait for the next step
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    keep: Keep,
    clamped: bool,
    values: Values,
    non_finite: NonFinite,
}

impl TopK {
    fn new(keep: Keep) -> Self {
        Self { keep, clamped: false, values: Values::Exact, non_finite: NonFinite::Propagate }
    }

    /// Keep `k` entries.
    pub fn count(k: u64) -> Self {
        Self::new(Keep::Count(k))
    }

    /// Keep this part of the entries, from 0 to 1, rounded up to a whole number.
    pub fn fraction(part: f64) -> Self {
        Self::new(Keep::Fraction(part))
    }

    /// Keep `k` of every block of `elements`; of a last block that is shorter, at most all.
    pub fn blocks(elements: u64, k: u64) -> Self {
        Self::new(Keep::Blocks { elements, k })
    }

    /// Keep a number of each segment: of a model's gradients in one buffer, some of each layer. Together the segments
    /// are the whole gradient.
    pub fn segments(segments: &[Segment]) -> Self {
        Self::new(Keep::Segments(segments.into()))
    }

    /// Keep every entry whose magnitude is at least `threshold`, however many. Where their indices and values would
    /// take more than the values of all, all are sent; quantized values are not compared.
    pub fn above(threshold: f32) -> Self {
        Self::new(Keep::Above(threshold))
    }

    /// Keep about this part of the entries, above 0 and up to 1: those of at least a magnitude that is estimated from
    /// statistics of the gradient, with feedback of gradient + residual. The payload is that of [`TopK::above`] with
    /// the threshold, and has as many entries as reach it; [`Estimate`] says how many that may be. Of a part that is
    /// rounded up to all entries, all are kept.
    ///
    /// ```
    /// use gradwire::{Device, Estimate, Seed, TopK};
    /// // Magnitudes that fall off as an exponential density has them.
    /// let gradient: Vec<f32> = (0..10_000).map(|i| -((i as f32 + 0.5) / 10_000.0).ln()).collect();
    /// let codec = TopK::estimate(0.01, Estimate::Sidco);
    /// let payload = Device::cpu().encode_sparse(&codec, &gradient, Seed::new(1))?;
    /// assert!((95..105).contains(&payload.indices().len()));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn estimate(part: f64, by: Estimate) -> Self {
        Self::new(Keep::Estimate { part, by })
    }

    /// Keep this part of the elements above zero, and this part of those below, above 0 and up to 1, each rounded up:
    /// the largest of either sign. With feedback, signs are those of gradient + residual.
    ///
    /// Source: Dryden, Moon, Jacobs and Van Essen, "Communication quantization for data-parallel training of deep
    /// neural networks", MLHPC 2016, whose thresholds are of a sample; here the selection is exact.
    ///
    /// * **Kept**: with p elements above zero and m below, as many as [`TopK::fraction`] keeps of p, and of m. Of equal
    ///   ones, those of lower index. The payload is that of a threshold.
    /// * **Zeros** have no sign, and are never kept. A gradient of zeros has an empty payload.
    /// * **NaN and infinity** are the largest of their sign, NaN by its sign bit; with feedback every NaN is the one
    ///   NaN, above zero.
    /// * **Contraction**: |x - C(x)|^2 <= (1 - part) |x|^2. Of either sign, the mean square of what is kept is no less
    ///   than that of all, and the part is kept at least.
    /// * **Reads** of the gradient: one for both sides' sums, one to count, and one for each threshold that is tried, 5
    ///   at most. What reaches the last one is copied to the host, which keeps the largest. The CPU reads it once.
    ///
    /// ```
    /// use gradwire::{Device, Seed, TopK};
    /// let gradient = [0.0f32, 1.0, -1.0, 0.5, -3.0, 2.0, 0.25];
    /// let payload = Device::cpu().encode_sparse(&TopK::per_sign(0.5), &gradient, Seed::new(1))?;
    /// assert_eq!(payload.indices(), [1, 4, 5]); // two of the four above zero, one of the two below
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn per_sign(part: f64) -> Self {
        Self::new(Keep::PerSign(part))
    }

    /// Keep all entries if there are fewer than asked for, instead of failing.
    pub fn clamped(mut self) -> Self {
        self.clamped = true;
        self
    }

    /// Send values rounded to this type, a finite one beyond its range as the largest that it has. With feedback, what
    /// that took stays in the residual.
    pub fn values(mut self, dtype: Dtype) -> Self {
        self.values = Values::As(dtype);
        self
    }

    /// Send values quantized. With feedback, which is the selection's, it has to be a codec that feedback admits.
    ///
    /// ```
    /// use gradwire::{Device, OneBit, Seed, TopK};
    /// // The largest of each sign, as two means: what Dryden et al. send.
    /// let codec = TopK::per_sign(0.5).then(OneBit::new().whole_tensor());
    /// let device = Device::cpu();
    /// let payload = device.encode_sparse(&codec, &[0.5f32, 3.0, -2.0, 1.0, 0.1], Seed::new(1))?;
    /// assert_eq!(device.decode_sparse(&payload)?, [0.0, 2.0, -2.0, 2.0, 0.0]);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn then(mut self, codec: impl Into<Quantizer>) -> Self {
        self.values = Values::By(codec.into());
        self
    }

    /// What to do with NaN and infinity. Under [`NonFinite::Propagate`] they are the largest entries, and are sent.
    pub fn non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// As a stage of its own, without the quantizer and the policy for NaN.
    pub(crate) fn keeping(keep: Keep, clamped: bool) -> Self {
        Self { clamped, ..Self::new(keep) }
    }

    /// The selection alone, how its values are sent, and the policy for NaN.
    pub(crate) fn into_stages(self) -> (Self, Values, NonFinite) {
        let (values, policy) = (self.values, self.non_finite);
        (Self::keeping(self.keep, self.clamped), values, policy)
    }

    /// The same, with a number for each segment instead of its selection.
    pub(crate) fn keep_of_each(&self, segments: &[Segment]) -> Self {
        Self { keep: Keep::Segments(segments.into()), ..self.clone() }
    }

    pub(crate) fn keep(&self) -> &Keep {
        &self.keep
    }

    pub(crate) fn is_clamped(&self) -> bool {
        self.clamped
    }

    /// Whether no gradient has an entry that is kept.
    pub(crate) fn keeps_nothing(&self) -> bool {
        match &self.keep {
            Keep::Count(k) | Keep::Blocks { k, .. } => *k == 0,
            Keep::Fraction(part) | Keep::Estimate { part, .. } | Keep::PerSign(part) => *part == 0.0,
            Keep::Segments(segments) => segments.iter().all(|s| s.k == 0),
            Keep::Above(threshold) => *threshold == f32::INFINITY,
        }
    }

    /// Checks what does not depend on a gradient's length.
    pub(crate) fn check_settings(self) -> Result<(), Error> {
        let n = match &self.keep {
            Keep::Segments(segments) => segments.iter().fold(0u64, |sum, s| sum.saturating_add(s.elements)),
            _ => return self.clamped().plan(0, Dtype::F32, false).map(drop),
        };
        self.plan(usize::try_from(n).unwrap_or(usize::MAX), Dtype::F32, false).map(drop)
    }

    /// Checks the setting for a gradient of `n` elements.
    pub(crate) fn plan(&self, n: usize, dtype: Dtype, feedback: bool) -> Result<SparsePlan, Error> {
        let _environment = FloatEnvironment::standard();
        let n = n as u64;
        if n > MAX_ELEMENTS {
            return Err(Error::TooLong { got: n });
        }
        let mut sought = None;
        let select = match &self.keep {
            Keep::Count(k) => Select::Largest(self.at_most(*k, n)?),
            Keep::Fraction(part) if (0.0..=1.0).contains(part) => Select::Largest(rounded_up(*part, n)),
            Keep::Estimate { part, by } if 0.0 < *part && *part <= 1.0 => {
                let k = rounded_up(*part, n).max(1);
                if k < n {
                    sought = Some(Sought::About { k, by: *by });
                }
                // In the place of a threshold that is found later stands one that no number reaches.
                Select::Above(if k < n { f32::INFINITY } else { 0.0 })
            }
            Keep::PerSign(part) if 0.0 < *part && *part <= 1.0 => {
                sought = (n > 0).then_some(Sought::PerSign(*part));
                Select::Above(if n > 0 { f32::INFINITY } else { 0.0 })
            }
            Keep::PerSign(part) => {
                let what = "a part of the entries of each sign";
                return Err(Error::Keep { what, got: *part, allowed: "above 0 and up to 1" });
            }
            Keep::Estimate { part, .. } => {
                let what = "a part of the entries whose threshold is estimated";
                return Err(Error::Keep { what, got: *part, allowed: "above 0 and up to 1" });
            }
            Keep::Fraction(part) => {
                return Err(Error::Keep { what: "a part of the entries", got: *part, allowed: "0 to 1" });
            }
            Keep::Blocks { elements: 0, .. } => {
                return Err(Error::Keep { what: "elements of a block", got: 0.0, allowed: "1 or more" });
            }
            Keep::Blocks { elements, k } => Select::Blocks { elements: *elements, k: self.at_most(*k, *elements)? },
            Keep::Segments(segments) => {
                let total = segments.iter().fold(0u64, |sum, s| sum.saturating_add(s.elements));
                if total != n {
                    let what = "list of segments";
                    return Err(Error::Length { what, found: total, expected: n, unit: "elements" });
                }
                let checked = |s: &Segment| self.at_most(s.k, s.elements).map(|k| Segment { k, ..*s });
                Select::Segments(segments.iter().map(checked).collect::<Result<_, _>>()?)
            }
            Keep::Above(threshold) if *threshold >= 0.0 => Select::Above(*threshold),
            Keep::Above(threshold) => {
                return Err(Error::Keep { what: "a threshold", got: (*threshold).into(), allowed: "0 or more" });
            }
        };
        let plain = if feedback { Dtype::F32 } else { dtype };
        let values = match self.values {
            Values::Exact => ValueFormat::Plain(plain),
            Values::As(dtype) => ValueFormat::Plain(dtype),
            Values::By(_) => ValueFormat::Payload,
        };
        let guarded = self.non_finite == NonFinite::Error;
        let plan = SparsePlan { select, sought, values, dtype, n, inner: self.values, guarded };
        // A quantizer that cannot be used shows before anything is read. Whether feedback admits it depends on how many
        // values it gets.
        if let Some(inner) = plan.quantizer(0, false)? {
            return Ok(SparsePlan { guarded: plan.guarded || inner.is_guarded(), ..plan });
        }
        Ok(plan)
    }

    fn at_most(&self, k: u64, n: u64) -> Result<u64, Error> {
        if k <= n || self.clamped {
            return Ok(k.min(n));
        }
        Err(Error::TooFew { asked: k, found: n })
    }
}

/// How many entries are this part of `n`, rounded up. The part and the product are each rounded, by half an epsilon:
/// what lies no further above a whole number is that number.
pub(crate) fn rounded_up(part: f64, n: u64) -> u64 {
    FloatEnvironment::within(|| {
        let exact = part * n as f64;
        let k = if exact - exact.floor() <= 2.0 * f64::EPSILON * exact { exact.floor() } else { exact.ceil() };
        (k as u64).min(n)
    })
}

/// What a search on the host looks for, by thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sought {
    /// About `k` entries, fewer than there are, of at least a magnitude that is estimated.
    About { k: u64, by: Estimate },
    /// This part of the elements of each sign, the largest.
    PerSign(f64),
}

/// A selection whose numbers have been checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Select {
    Largest(u64),
    Blocks { elements: u64, k: u64 },
    Segments(Arc<[Segment]>),
    Above(f32),
}

impl Select {
    /// Whether an element that is not finite, and so larger than all that are, is among what is kept, or another such
    /// one.
    pub(crate) fn keeps_some_of_all(&self) -> bool {
        match self {
            Self::Largest(k) | Self::Blocks { k, .. } => *k > 0,
            Self::Segments(segments) => segments.iter().all(|s| s.k > 0 || s.elements == 0),
            Self::Above(_) => true,
        }
    }
}

/// A checked setting, for a gradient of one length and type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SparsePlan {
    pub(crate) select: Select,
    /// The goal of the search, if a threshold takes the place of the one in `select`: [`SparsePlan::above`].
    pub(crate) sought: Option<Sought>,
    pub(crate) values: ValueFormat,
    pub(crate) dtype: Dtype,
    pub(crate) n: u64,
    inner: Values,
    /// Whether NaN and infinity are refused.
    pub(crate) guarded: bool,
}

impl SparsePlan {
    /// The same with a threshold in place of one that is searched for.
    pub(crate) fn above(&self, threshold: f32) -> Self {
        Self { select: Select::Above(threshold), sought: None, ..self.clone() }
    }

    /// Refuses a search, where nothing asks the gradient for statistics: `what` says where an estimate stands, and
    /// where a part of each sign does.
    pub(crate) fn refuse_search(&self, what: [&'static str; 2], allowed: &'static str) -> Result<(), Error> {
        let [estimate, per_sign] = what;
        match self.sought {
            Some(Sought::About { k, .. }) => {
                Err(Error::Keep { what: estimate, got: k as f64 / self.n as f64, allowed })
            }
            Some(Sought::PerSign(part)) => Err(Error::Keep { what: per_sign, got: part, allowed }),
            None => Ok(()),
        }
    }

    /// Whether values are sent as they are.
    pub(crate) fn is_exact(&self) -> bool {
        self.values == ValueFormat::Plain(Dtype::F32)
    }

    /// The plan that quantizes `count` values, where values are quantized.
    pub(crate) fn quantizer(&self, count: usize, feedback: bool) -> Result<Option<EncodePlan>, Error> {
        let Values::By(codec) = self.inner else { return Ok(None) };
        // The values are those of the residual's sum, so their quantizer has to contract; it adds no residual itself.
        let plan = EncodePlan { feedback: false, ..codec.plan(count, Dtype::F32)? };
        if feedback {
            plan.with_feedback()?;
        }
        Ok(Some(plan))
    }

    /// The most entries that are kept.
    pub(crate) fn most(&self) -> u64 {
        let most = match (&self.select, self.sought) {
            // Of either sign the number is rounded on its own.
            (_, Some(Sought::PerSign(part))) => rounded_up(part, self.n) + 2,
            (Select::Largest(k), _) => *k,
            (Select::Segments(segments), _) => segments.iter().map(|s| s.k).sum(),
            (Select::Blocks { elements, k }, _) => self.n.div_ceil(*elements).saturating_mul(*k),
            (Select::Above(_), _) => self.n,
        };
        most.min(self.n)
    }

    /// Entries that are kept, where their number does not depend on the gradient.
    pub(crate) fn kept(&self) -> Option<u64> {
        match (&self.select, self.sought) {
            (_, Some(_)) | (Select::Above(_), _) => None,
            (Select::Largest(k), _) => Some(*k.min(&self.n)),
            (Select::Segments(segments), _) => Some(segments.iter().map(|s| s.k.min(s.elements)).sum()),
            (Select::Blocks { elements, k }, _) => {
                let elements = (*elements).clamp(1, self.n.max(1));
                Some(self.n / elements * k.min(&elements) + (self.n % elements).min(*k))
            }
        }
    }

    /// The same selection from some of the elements alone, all others being zero: zeros would fill up what these lack,
    /// and need not be sent.
    pub(crate) fn of_union(&self, indices: &[u32]) -> Self {
        let n = indices.len() as u64;
        let select = match &self.select {
            Select::Largest(k) => Select::Largest(n.min(*k)),
            Select::Above(threshold) => Select::Above(*threshold),
            Select::Segments(segments) => {
                let (mut end, mut before) = (0, 0);
                let part = |s: &Segment| {
                    end += s.elements;
                    let behind = indices.partition_point(|i| u64::from(*i) < end);
                    let elements = (behind - std::mem::replace(&mut before, behind)) as u64;
                    Segment { elements, k: s.k.min(elements) }
                };
                Select::Segments(segments.iter().map(part).collect())
            }
            Select::Blocks { elements, k } => {
                let blocks = indices.chunk_by(|a, b| u64::from(*a) / elements == u64::from(*b) / elements);
                let part = |block: &[u32]| Segment { elements: block.len() as u64, k: (*k).min(block.len() as u64) };
                Select::Segments(blocks.map(part).collect())
            }
        };
        Self { select, n, dtype: Dtype::F32, values: ValueFormat::Plain(Dtype::F32), guarded: false, ..self.clone() }
    }

    /// The header of a payload with `count` entries.
    pub(crate) fn header(&self, count: usize) -> SparseHeader {
        SparseHeader { n: self.n, count: count as u64, values: self.values, dtype: self.dtype }
    }
}
