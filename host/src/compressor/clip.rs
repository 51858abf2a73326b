//! Gradients that are clipped before anything is added to them: [`Recipe::clip`](crate::Recipe::clip).

use std::ops::Range;

use super::planes::TAKEN;
use crate::backend::cpu::{Cpu, EncodeMemory};
use crate::codec::{Codec, Qsgd};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::{Kernel, Limits, Pass};
use crate::seed::Seed;
use crate::threads;

/// The codec that has a tensor's L2 norm as its scalar.
pub(super) const NORM: Qsgd = Qsgd::bits(2).whole_tensor().l2();

/// Whether a pass of [`NORM`] takes part in finding norms: the others write codes.
pub(super) fn measures(pass: &Pass) -> bool {
    let kernel = pass.kernel;
    matches!(kernel, Kernel::Stats(_) | Kernel::Combine(_) | Kernel::StatsSegments(_) | Kernel::CombineSegments(_))
}

/// What a gradient of tensors with these norms is multiplied by, to be at most as long as the limit. `None` if it is,
/// or if a norm is NaN, as that of a tensor with a NaN or an infinity is.
pub(super) fn gain(norms: impl Iterator<Item = f32>, limit: f64) -> Option<f32> {
    let norm = norms.map(|norm| f64::from(norm) * f64::from(norm)).sum::<f64>().sqrt();
    (norm > limit).then(|| (limit / norm) as f32)
}

/// Clips the tensors in these ranges of a gradient, together, in the host's memory.
pub(super) fn clip(
    ranges: impl Iterator<Item = Range<usize>> + Clone,
    limit: f64,
    gradient: &mut [f32],
) -> Result<(), Error> {
    let norms = ranges.clone().map(|range| norm(&gradient[range])).collect::<Result<Vec<_>, _>>()?;
    let Some(gain) = gain(norms.into_iter(), limit) else { return Ok(()) };
    for range in ranges {
        let pieces = threads::chunks_mut(&mut gradient[range], TAKEN);
        pieces.for_each(|values| values.iter_mut().for_each(|value| *value *= gain));
    }
    Ok(())
}

/// The L2 norm of a tensor, by sums of integers, as every backend has it.
pub(super) fn norm(values: &[f32]) -> Result<f32, Error> {
    let plan = NORM.plan(values.len(), Dtype::F32)?;
    let (mut scalars, mut workspace) = ([0; 4], vec![0; plan.scratch_bytes() / 4]);
    let mut memory = EncodeMemory {
        input: Gradient::F32(values),
        residual: None,
        scalars: &mut scalars,
        codes: &mut [],
        workspace: &mut workspace,
        status: &mut [],
    };
    let cpu = Cpu::default();
    let passes = plan.passes(Seed::new(0), &Limits::NONE)?;
    passes.iter().filter(|pass| measures(pass)).for_each(|pass| cpu.run_encode(pass, &mut memory));
    Ok(f32::from_le_bytes(scalars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_the_elements() {
        assert_eq!(norm(&[]).expect("nothing"), 0.0);
        assert_eq!(norm(&[3.0, -4.0]).expect("two"), 5.0);
        assert!(norm(&[3.0, f32::INFINITY]).expect("two").is_nan());
        // Many spans: 2^20 elements of 2^-3, whose squares sum to 2^14.
        assert_eq!(norm(&[0.125; 1 << 20]).expect("many"), 128.0);
        assert_eq!(norm(&[f32::MAX; 9]).expect("too long"), f32::MAX);
    }

    #[test]
    fn what_is_within_the_limit_keeps_its_bits_and_what_is_not_finite_is_left() {
        let all = |n: usize| std::iter::once(0..n);
        for (values, limit) in
            [([3.0, 4.0], 5.0), ([f32::NAN, 9.0], 1.0), ([f32::INFINITY, 9.0], 1.0), ([-0.0, 0.0], 1.0)]
        {
            let mut clipped = values;
            clip(all(2), limit, &mut clipped).expect("valid");
            assert_eq!(clipped.map(f32::to_bits), values.map(f32::to_bits));
        }
        let mut clipped = [3.0, 4.0];
        clip(all(2), 2.5, &mut clipped).expect("valid");
        assert_eq!(clipped, [1.5, 2.0]);
        // Two tensors together are 13 long, and what lies between them is not theirs.
        let mut clipped = [3.0, 4.0, 100.0, 12.0];
        clip([0..2, 3..4].into_iter(), 6.5, &mut clipped).expect("valid");
        assert_eq!(clipped, [1.5, 2.0, 100.0, 6.0]);
    }
}
