//! What a recipe promises of a length.

use super::promise::{Promise, above_0};
use super::quantize::Quantize;
use super::stages::Recipe;
use crate::codec::topk::{Select, Sought};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Dtype;

impl Recipe {
    /// The promises of the recipe for a tensor of `n` elements.
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
