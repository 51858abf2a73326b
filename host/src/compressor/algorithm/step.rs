//! Gradient, state and messages of a part in a step.

use crate::compressor::frame;
use crate::compressor::part::Part;
use crate::compressor::planes::{Held, InStep};
use crate::device::Device;
use crate::error::{Error, ExchangeError};
use crate::plan::NonFinite;
use crate::seed::Seed;

/// Gradient and state in the host's memory.
pub(in crate::compressor) struct Place<'a, 's> {
    pub(in crate::compressor) device: &'a Device,
    pub(in crate::compressor) gradient: &'a mut [f32],
    pub(in crate::compressor) planes: &'a mut InStep<'s>,
}

impl Place<'_, '_> {
    /// What a part takes its payloads of.
    pub(super) fn input(&self, part: &Part) -> &[f32] {
        if part.recipe.memory().sends_momentum() { self.planes.behind(Held::Momentum) } else { self.gradient }
    }
}

/// What is the same for all messages of a part in a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::compressor) struct Step {
    /// Its number.
    pub(in crate::compressor) step: u64,
    /// The checksum of the model.
    pub(in crate::compressor) model: u32,
    /// The seed of the step, of worker 0.
    pub(in crate::compressor) seed: Seed,
    /// Whether values that are not finite fail the step, or skip it.
    pub(in crate::compressor) policy: NonFinite,
}

impl Step {
    /// A message of these payloads, or of the refusal. If there is no memory for the message, that is the refusal.
    pub(super) fn message(self, rank: u32, payloads: &mut Result<Vec<Vec<u8>>, Error>) -> Vec<u8> {
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
    pub(super) fn written(self, payloads: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
        let mut message = Vec::new();
        let mut writer = frame::Writer::new(&mut message, self.step, self.model);
        payloads.iter().try_for_each(|payload| writer.append(payload))?;
        writer.finish();
        Ok(message)
    }

    /// A message that says why there are none.
    pub(super) fn refusal(self, rank: u32, error: &Error) -> Vec<u8> {
        let mut message = Vec::new();
        frame::Writer::new(&mut message, self.step, self.model).fail(error, rank);
        message
    }

    /// The payloads of a message, `expected` of them.
    pub(super) fn read(self, message: &[u8], rank: u32, expected: usize) -> Result<Vec<&[u8]>, Error> {
        let payloads = frame::read(message, rank, self.step, self.model)?;
        let (found, expected) = (payloads.len() as u64, expected as u64);
        if found == expected { Ok(payloads) } else { Err(ExchangeError::Payloads { rank, found, expected }.into()) }
    }
}
