//! Exchanges other than an all-gather of payloads: the tree of gTop-k, two phases, and factors.

mod factors;
mod pieces;
mod traffic;
mod tree;
mod two_phase;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(super) use self::factors::Factor;
pub(super) use self::factors::{Means, OnHost, tell};
use super::failure::Failure;
use super::frame;
use super::part::{Method, Part};
use super::planes::{Held, InStep};
use super::witness::Witness;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::{Error, ExchangeError};
use crate::plan::NonFinite;
use crate::seed::Seed;

/// Gradient and state in the host's memory.
pub(super) struct Place<'a, 's> {
    pub(super) device: &'a Device,
    pub(super) gradient: &'a mut [f32],
    pub(super) planes: &'a mut InStep<'s>,
}

impl Place<'_, '_> {
    /// What a part takes its payloads of.
    fn input(&self, part: &Part) -> &[f32] {
        if part.recipe.memory().sends_momentum() { self.planes.behind(Held::Momentum) } else { self.gradient }
    }
}

/// What is the same for all messages of a part in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Its number.
    pub(super) step: u64,
    /// The checksum of the model.
    pub(super) model: u32,
    /// The seed of the step, of worker 0.
    pub(super) seed: Seed,
    /// Whether values that are not finite fail the step, or skip it.
    pub(super) policy: NonFinite,
}

impl Step {
    /// A message of these payloads, or of the refusal. Where there is no memory for the message, that is the refusal.
    fn message(self, rank: u32, payloads: &mut Result<Vec<Vec<u8>>, Error>) -> Vec<u8> {
        let written = match payloads {
            Ok(payloads) => self.written(payloads),
            Err(error) => return self.refusal(rank, error),
        };
        written.unwrap_or_else(|error| {
            let message = self.refusal(rank, &error);
            *payloads = Err(error);
            message
        })
    }

    /// A message of these payloads.
    fn written(self, payloads: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
        let mut message = Vec::new();
        let mut writer = frame::Writer::new(&mut message, self.step, self.model);
        payloads.iter().try_for_each(|payload| writer.append(payload))?;
        writer.finish();
        Ok(message)
    }

    /// A message that says why there are none.
    fn refusal(self, rank: u32, error: &Error) -> Vec<u8> {
        let mut message = Vec::new();
        frame::Writer::new(&mut message, self.step, self.model).fail(error, rank);
        message
    }

    /// The payloads of a message, so many.
    fn read(self, message: &[u8], rank: u32, expected: usize) -> Result<Vec<&[u8]>, Error> {
        let payloads = frame::read(message, rank, self.step, self.model)?;
        let (found, expected) = (payloads.len() as u64, expected as u64);
        if found == expected { Ok(payloads) } else { Err(ExchangeError::Payloads { rank, found, expected }.into()) }
    }
}

/// The exchange of a part by its algorithm; bytes that were handed over. The gradient becomes the mean.
pub(super) fn run(
    host: &mut Place<'_, '_>,
    part: &mut Part,
    step: Step,
    group: &mut Witness<'_, impl Collective + ?Sized>,
    weight: f32,
) -> Result<u64, Failure> {
    match &part.method {
        Method::Sparse { .. } => tree::run(host, part, step, group, weight),
        _ => two_phase::run(host, part, step, group),
    }
}
