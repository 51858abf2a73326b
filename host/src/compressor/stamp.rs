//! The messages of a step.

use crate::compressor::frame;
use crate::error::{Error, ExchangeError};
use crate::plan::NonFinite;
use crate::seed::Seed;

/// The settings that all messages of a group in a step have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The number of the step.
    pub(crate) step: u64,
    /// The checksum of the model.
    pub(crate) model: u32,
    /// The seed of worker 0: of the step, or of a group's draws in it.
    pub(crate) seed: Seed,
    /// Whether non-finite values fail the step, or skip it.
    pub(crate) policy: NonFinite,
}

impl Stamp {
    /// A message of these payloads, or of the refusal. If there is no memory for the message, that is the refusal.
    pub(crate) fn message(self, rank: u32, payloads: &mut Result<Vec<Vec<u8>>, Error>) -> Vec<u8> {
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
    pub(crate) fn written(self, payloads: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
        let mut message = Vec::new();
        let mut writer = frame::Writer::new(&mut message, self.step, self.model);
        payloads.iter().try_for_each(|payload| writer.append(payload))?;
        writer.finish();
        Ok(message)
    }

    /// A message that says why there are none.
    pub(crate) fn refusal(self, rank: u32, error: &Error) -> Vec<u8> {
        let mut message = Vec::new();
        frame::Writer::new(&mut message, self.step, self.model).fail(error, rank);
        message
    }

    /// The payloads of a message, `expected` of them.
    pub(crate) fn read(self, message: &[u8], rank: u32, expected: usize) -> Result<Vec<&[u8]>, Error> {
        let payloads = frame::read(message, rank, self.step, self.model)?;
        let (found, expected) = (payloads.len() as u64, expected as u64);
        if found == expected { Ok(payloads) } else { Err(ExchangeError::Payloads { rank, found, expected }.into()) }
    }
}
