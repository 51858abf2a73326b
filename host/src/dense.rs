//! A tensor in the host's memory, encoded and decoded by a quantizer.

use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, Role, STATUS_BYTES, body_range, refuse_not_finite};
use crate::seed::Seed;
use crate::session::Sessions;
use crate::view::PayloadView;
use crate::wire::Payload;
use crate::words::zeros;

/// What a backend does with a tensor.
pub(crate) trait Dense {
    /// Whether it works where the memory lies, so that nothing fails once something is written. Elsewhere a device may
    /// fail while results are read.
    fn in_place(&self) -> bool;

    /// Encodes into the body of a payload: scalars and codes, without the header. Gradient and residual are of the
    /// plan's length and type.
    fn encode(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        body: &mut [u8],
        seed: Seed,
    ) -> Result<(), Error> {
        self.encode_apart(plan, gradient, residual, &mut [], body, seed)
    }

    /// As [`Dense::encode`], but the residual stays as it is, and `next`, of its length, becomes the new one; unless
    /// that is empty.
    fn encode_apart(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        next: &mut [f32],
        body: &mut [u8],
        seed: Seed,
    ) -> Result<(), Error>;

    /// Decodes payloads of one kind, as many as the plan has, over or onto an output of the plan's length.
    fn decode(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        payloads: &[PayloadView<'_>],
        output: &mut [f32],
    ) -> Result<(), Error>;
}

/// Encodes into a payload of its own.
pub(crate) fn encode(
    engine: &(impl Dense + ?Sized),
    plan: &EncodePlan,
    gradient: Gradient<'_>,
    residual: &mut [f32],
    seed: Seed,
) -> Result<Payload, Error> {
    let needed = plan.header().payload_bytes();
    let mut bytes = zeros(needed, "a payload")?;
    engine.encode(plan, gradient, residual, &mut bytes[body_range(plan)], seed)?;
    Ok(Payload::seal(*plan.header(), bytes))
}

impl<T: Sessions> Dense for T {
    fn in_place(&self) -> bool {
        false
    }

    fn encode_apart(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        next: &mut [f32],
        body: &mut [u8],
        seed: Seed,
    ) -> Result<(), Error> {
        let passes = plan.passes(seed, &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut session = self.session(plan.sizes())?;
        session.write(Role::Input, 0, gradient.as_bytes())?;
        if plan.feedback() {
            session.write(Role::Residual, 0, bytemuck::cast_slice(residual))?;
        }
        // SAFETY: all passes of the plan, in order, in a session of their own.
        unsafe { session.run_trusted(&passes)? };
        // Only a guarded plan clears the status and writes it; else it holds whatever the device's memory held.
        if plan.is_guarded() {
            let mut status = [0u32; STATUS_BYTES as usize / 4];
            session.read(Role::Status, 0, bytemuck::cast_slice_mut(&mut status))?;
            refuse_not_finite(status[0])?;
        }
        let (scalars, codes) = body.split_at_mut(plan.header().scalar_bytes() as usize);
        session.read(Role::Scalars, 0, scalars)?;
        session.read(Role::Codes, 0, codes)?;
        if plan.feedback() {
            let to = if next.is_empty() { residual } else { next };
            session.read(Role::Residual, 0, bytemuck::cast_slice_mut(to))?;
        }
        Ok(())
    }

    fn decode(
        &self,
        plan: &DecodePlan,
        mode: DecodeMode,
        payloads: &[PayloadView<'_>],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let passes = plan.passes(mode, &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut session = self.session(plan.sizes())?;
        for (k, payload) in payloads.iter().enumerate() {
            session.write(Role::Scalars, k as u64 * plan.scalar_stride(), payload.scalars())?;
            session.write(Role::Codes, k as u64 * plan.code_stride(), payload.codes())?;
        }
        if let DecodeMode::Add(_) = mode {
            session.write(Role::Output, 0, bytemuck::cast_slice(output))?;
        }
        session.run(&passes)?;
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(output))
    }
}
