//! A step in several messages, made as one.

use super::core::Compressor;
use super::planes::zeros;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::Error;

/// Why a step in several messages was not made.
#[derive(Debug, thiserror::Error)]
#[error("message {message} of the step failed, and so no message of it was kept: {source}")]
pub struct MessageError {
    /// Which message, from 0.
    pub message: usize,
    /// Why it failed.
    pub source: Error,
}

impl From<MessageError> for Error {
    fn from(error: MessageError) -> Self {
        error.source
    }
}

impl Compressor {
    /// A step in several messages, each with a compressor and a gradient of its own: all of them are exchanged, or no
    /// gradient and no state has changed.
    ///
    /// For the messages of a plan (`Message` of `gradwire-planner`), and for the buckets of a framework. Messages go
    /// one after another, in the order given, which is every rank's. Results are those of [`Compressor::exchange`]
    /// on each, bit for bit. Where one fails, those before it are taken back ([`Compressor::undo`]), and those after
    /// it are not begun. `Together` of `gradwire-collectives` is the same while backpropagation goes on.
    ///
    /// A copy of each gradient but the last takes 4 bytes per element while the step is made.
    ///
    /// Behind a message that one rank refuses, as for a NaN under `finite`, the step is taken back on every rank, and
    /// the group can be used again. Behind another failure, drop the group: some ranks may have exchanged all messages
    /// then. They are a step further, and a new group tells them so ([`Compressor::exchange`],
    /// [`ExchangeError::Step`](crate::ExchangeError::Step)).
    ///
    /// ```
    /// use gradwire::{Collective, Compressor, Device, Error};
    ///
    /// fn train(group: &mut impl Collective, gradients: &mut [Vec<f32>; 2]) -> Result<(), Error> {
    ///     // A run of its own for each message, so that they draw differently.
    ///     let mut messages = [Compressor::new("topk:0.01+ef", [[64, 64]], 1)?, Compressor::new("none", [[10]], 2)?];
    ///     for _step in 0..10 {
    ///         // ... the gradients of this rank's samples ...
    ///         let parts = gradients.iter_mut().map(Vec::as_mut_slice);
    ///         Compressor::exchange_all(&Device::cpu(), group, messages.iter_mut().zip(parts))?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Compressor::exchange`], with the number of the message. Behind a panic of the group, every compressor of a
    /// message that was begun refuses with [`ExchangeError::BrokenOff`](crate::ExchangeError::BrokenOff) until a saved
    /// state is restored.
    pub fn exchange_all<'c>(
        device: &Device,
        group: &mut (impl Collective + ?Sized),
        messages: impl IntoIterator<Item = (&'c mut Self, &'c mut [f32])>,
    ) -> Result<(), MessageError> {
        let _environment = crate::FloatEnvironment::standard();
        let mut messages: Vec<_> = messages.into_iter().collect();
        let failed = |message: usize| move |source: Error| MessageError { message, source };
        // Before anything is sent.
        for (number, (compressor, _)) in messages.iter().enumerate() {
            compressor.expect_whole().map_err(failed(number))?;
        }
        let mut before = Vec::with_capacity(messages.len());
        for (number, (_, gradient)) in messages.iter().enumerate().take(messages.len().saturating_sub(1)) {
            let mut copy = zeros(gradient.len()).map_err(failed(number))?;
            copy.copy_from_slice(gradient);
            before.push(copy);
        }
        let mut result = Ok(());
        let mut made = 0;
        for (number, (compressor, gradient)) in messages.iter_mut().enumerate() {
            if let Err(error) = compressor.exchange(device, group, gradient) {
                result = Err(failed(number)(error));
                break;
            }
            // Until all are exchanged: a panic of the group leaves it so.
            compressor.broken_off = true;
            made = number + 1;
        }
        messages.iter_mut().take(made).for_each(|(compressor, _)| compressor.broken_off = false);
        if result.is_err() {
            for ((number, (compressor, gradient)), copy) in messages.into_iter().enumerate().zip(before).take(made) {
                compressor.undo().map_err(failed(number))?;
                gradient.copy_from_slice(&copy);
            }
        }
        result
    }
}
