//! What a recipe promises, from what its stages promise.

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
    /// The messages of several workers can be summed on the way.
    pub linear: bool,
    /// No random draw: every seed gives the same payload.
    pub deterministic: bool,
}

impl Promise {
    /// Sent as it is.
    pub(super) const WHOLE: Self =
        Self { unbiased: true, omega: Some(0.0), delta: Some(1.0), linear: true, deterministic: true };

    /// Of a quantizer.
    pub(super) fn of(plan: &EncodePlan) -> Self {
        let (omega, scaled) = (plan.omega(), plan.header().is_scaled());
        let deterministic = plan.nearest;
        let omega = match (scaled, deterministic) {
            (false, _) => omega,
            (true, false) => omega / (1.0 + omega),
            // The error is a part of C(x) - x and a part of x, which may point the same way.
            (true, true) => ((omega.sqrt() + omega) / (1.0 + omega)).powi(2),
        };
        // Without a bound, large values are cut off.
        let (unbiased, delta) = (!scaled && !deterministic && omega.is_finite(), above_0(1.0 - omega));
        Self { unbiased, omega: Some(omega).filter(|omega| omega.is_finite()), delta, linear: false, deterministic }
    }

    /// Of a quantizer after a selection that keeps the part delta of |x|^2 at least.
    ///
    /// What the selection drops and what the quantizer takes from the rest have no element in common. So with K the
    /// part kept,
    /// |C(x) - x|^2 = |x|^2 - |K|^2 + |Q(K) - K|^2 <= |x|^2 - delta_Q |K|^2 <= (1 - delta_Q delta) |x|^2 where the
    /// quantizer has a delta_Q, and |x|^2 - |K|^2 + omega |K|^2 <= max(1, omega) |x|^2 in any case. This is lemma 1 of
    /// Basu, Data, Karakus and Diggavi, "Qsparse-local-SGD", NeurIPS 2019, for any contraction in place of their
    /// quantizer.
    pub(super) fn behind(self, delta: Option<f64>, keeps_all: bool) -> Self {
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

pub(super) fn above_0(delta: f64) -> Option<f64> {
    (delta > 0.0).then_some(delta)
}
