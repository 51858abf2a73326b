//! A stand-in: `none` sends f32, `qsgd:bits=B` sends QSGD of the whole gradient.

use gradwire::{Collective, Device, Error, Payload, Qsgd, Seed};

/// Exchanges gradients with the other ranks.
pub(crate) struct Compressor {
    bits: Option<u32>,
    run: u64,
    step: u64,
    bytes: u64,
}

impl Compressor {
    /// A codec by its text, the shapes of the tensors in a gradient, and the number of the run.
    pub(crate) fn new(codec: &str, _: &[Vec<u64>], run: u64) -> Result<Self, Error> {
        let bits = match codec.split_once("qsgd:bits=") {
            Some(("", bits)) => bits.parse().ok(),
            _ if codec == "none" => None,
            _ => {
                let reason = format!("it knows `none` and `qsgd:bits=4`; got `{codec}`");
                return Err(gradwire::CollectiveError::Engine { engine: "the stand-in", reason }.into());
            }
        };
        Ok(Self { bits, run, step: 0, bytes: 0 })
    }

    /// `gradient` becomes the mean over all ranks.
    pub(crate) fn exchange<C: Collective>(
        &mut self,
        device: &Device,
        group: &mut C,
        gradient: &mut [f32],
    ) -> Result<(), Error> {
        let weight = 1.0 / group.ranks() as f32;
        if let Some(bits) = self.bits {
            let seed = Seed::new(self.run).step(self.step).worker(group.rank());
            let payload = device.encode(&Qsgd::bits(bits).bucket(512), &*gradient, seed)?;
            let mut all = Vec::new();
            group.all_gather(payload.as_bytes(), &mut all)?;
            let all: Result<Vec<Payload>, _> = all.into_iter().map(|bytes| Payload::from_bytes(&bytes)).collect();
            device.decode_sum(&all?, weight, gradient)?;
            self.bytes = payload.as_bytes().len() as u64;
        } else {
            group.all_reduce_sum(gradient)?;
            gradient.iter_mut().for_each(|value| *value *= weight);
            self.bytes = size_of_val(gradient) as u64;
        }
        self.step += 1;
        Ok(())
    }

    /// Bytes that this rank sent in the last step.
    pub(crate) fn last_bytes(&self) -> u64 {
        self.bytes
    }
}
