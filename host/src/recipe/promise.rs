//! What a recipe promises, from what its stages promise.

use super::{Quantize, Recipe};
use crate::codec::topk::{Select, Sought};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;
use crate::plan::EncodePlan;

/// What holds of C(x), the gradient that is decoded, for every gradient x of a length with magnitudes up to 2^127, but
/// for the rounding of binary32 and the resolution of the draws. Of one step: memory and clipping are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Promise {
    /// E C(x) = x.
    pub unbiased: bool,
    /// E|C(x) - x|^2 <= omega |x|^2, where a bound is known.
    pub omega: Option<f64>,
    /// E|C(x) - x|^2 <= (1 - delta) |x|^2, with delta above 0: what error feedback needs to converge (Karimireddy,
    /// Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019,
    /// assumption A).
    pub delta: Option<f64>,
    /// What is sent by several workers can be summed on the way.
    pub linear: bool,
    /// No random draw: every seed gives the same payload.
    pub deterministic: bool,
}

impl Promise {
    /// Sent as it is.
    const WHOLE: Self = Self { unbiased: true, omega: Some(0.0), delta: Some(1.0), linear: true, deterministic: true };

    /// Of a quantizer.
    fn of(plan: &EncodePlan) -> Self {
        let (omega, scaled) = (plan.omega(), plan.header().is_scaled());
        let deterministic = plan.nearest;
        let omega = match (scaled, deterministic) {
            (false, _) => omega,
            (true, false) => omega / (1.0 + omega),
            // The error is a part of C(x) - x and a part of x, which may point the same way.
            (true, true) => ((omega.sqrt() + omega) / (1.0 + omega)).powi(2),
        };
        // Without a bound, what is large is cut off.
        let (unbiased, delta) = (!scaled && !deterministic && omega.is_finite(), above_0(1.0 - omega));
        Self { unbiased, omega: Some(omega).filter(|omega| omega.is_finite()), delta, linear: false, deterministic }
    }

    /// Of a quantizer behind a selection that keeps the part delta of |x|^2 at least.
    ///
    /// What the selection drops and what the quantizer takes from the rest have no element in common. So with K the
    /// part kept,
    /// |C(x) - x|^2 = |x|^2 - |K|^2 + |Q(K) - K|^2 <= |x|^2 - delta_Q |K|^2 <= (1 - delta_Q delta) |x|^2 where the
    /// quantizer has a delta_Q, and |x|^2 - |K|^2 + omega |K|^2 <= max(1, omega) |x|^2 in any case. This is lemma 1 of
    /// Basu, Data, Karakus and Diggavi, "Qsparse-local-SGD", NeurIPS 2019, for any contraction in the place of their
    /// quantizer.
    fn behind(self, delta: Option<f64>, keeps_all: bool) -> Self {
        if keeps_all {
            return Self { linear: false, ..self };
        }
        Self {
            unbiased: false,
            omega: self.omega.map(|omega| match (delta, self.delta) {
                (Some(kept), Some(of_quantizer)) => 1.0 - kept * of_quantizer,
                _ => omega.max(1.0),
            }),
            delta: delta.zip(self.delta).map(|(kept, of_quantizer)| kept * of_quantizer),
            linear: false,
            deterministic: self.deterministic,
        }
    }
}

fn above_0(delta: f64) -> Option<f64> {
    (delta > 0.0).then_some(delta)
}

impl Recipe {
    /// What the recipe promises of a tensor of `n` elements.
    ///
    /// ```
    /// use gradwire::{OneBit, Recipe};
    /// let one_bit = Recipe::from(OneBit::new()).promise(1000)?;
    /// assert!(one_bit.deterministic && one_bit.delta == Some(1.0 / 64.0));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recipe::check`]; what a stage's codec refuses at this length.
    pub fn promise(&self, n: usize) -> Result<Promise, Error> {
        let _environment = FloatEnvironment::standard();
        self.check()?;
        let alone = self.clone().without_feedback();
        if let Some(dense) = alone.dense() {
            let Some(rotation) = self.rotation() else { return Ok(Promise::of(&dense.plan(n)?)) };
            // It is orthogonal, so that the error is the quantizer's. The signs are drawn.
            let plan = dense.plan(rotation.rotated_len(n as u64) as usize)?;
            return Ok(Promise { deterministic: false, ..Promise::of(&plan) });
        }
        if let Some(codec) = self.random {
            let (n, k) = (n as f64, codec.entries(n as u64)? as f64);
            let left = if n == 0.0 { 0.0 } else { 1.0 - k / n };
            let omega = if codec.is_unbiased() && k > 0.0 { n / k - 1.0 } else { left };
            let (unbiased, delta) = (codec.is_unbiased(), above_0(1.0 - omega));
            return Ok(Promise { unbiased, omega: Some(omega), delta, linear: true, deterministic: false });
        }
        if self.factors.is_some() {
            // The projection onto r directions never enlarges. Which directions they are depends on the steps before,
            // and in the first on the seed. A quantizer of the factor Q = M^T P takes from what was projected, and
            // |C(M) - M|^2 = |M|^2 - |Q|^2 + |C(Q) - Q|^2, since P is orthonormal: <= max(1, omega) |M|^2. No factor is
            // longer than its matrix.
            let linear = self.is_linear();
            let omega = match self.of_factors() {
                None => Some(1.0),
                Some(quantizer) => Promise::of(&quantizer.plan(n)?).omega.map(|omega| omega.max(1.0)),
            };
            return Ok(Promise { unbiased: false, omega, delta: None, linear, deterministic: false });
        }
        let Some(select) = self.sparse() else { return Ok(Promise::WHOLE) };
        let plan = select.plan(n, Dtype::F32, false)?;
        let part = |k: u64, elements: u64| if elements == 0 { 1.0 } else { k.min(elements) as f64 / elements as f64 };
        let delta = match (&plan.select, plan.sought) {
            (_, Some(Sought::PerSign(part))) => Some(part),
            // One is kept at the least, the largest.
            (_, Some(Sought::About { .. })) => Some(part(1, plan.n)),
            (Select::Largest(k), _) => Some(part(*k, plan.n)),
            // A last block that is shorter keeps as many of fewer.
            (Select::Blocks { elements, k }, _) => Some(part(*k, (*elements).min(plan.n))),
            (Select::Segments(segments), _) => segments.iter().map(|s| part(s.k, s.elements)).reduce(f64::min),
            // All may lie below the threshold.
            (Select::Above(threshold), _) => (*threshold == 0.0).then_some(1.0),
        };
        let delta = delta.and_then(above_0);
        let values = match (self.quantize, plan.quantizer(plan.most() as usize, false)?) {
            (_, Some(quantizer)) => Promise::of(&quantizer),
            // A value too small or too large for the type is rounded by as much as itself.
            (Quantize::Round(dtype), None) if dtype != Dtype::F32 => {
                Promise { unbiased: false, omega: Some(1.0), delta: None, ..Promise::WHOLE }
            }
            _ => Promise::WHOLE,
        };
        Ok(values.behind(delta, delta == Some(1.0)))
    }
}
