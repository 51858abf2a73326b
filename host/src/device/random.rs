//! Random-k on any device.

use gradwire_kernels::arith::float::accumulate;
use gradwire_kernels::params::{RandomParams, random_flags};

use crate::device::Device;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::random::RandomK;
use crate::seed::Seed;
use crate::view::are_finite;
use crate::words::zeros;

/// What memory is for.
const VALUES: &str = "values of random-k";

impl Device {
    /// The values of the entries that the seed draws, in the order of the draw: [`RandomK::entries`] of them. See
    /// [`RandomK`] for what they are.
    ///
    /// # Errors
    /// As [`RandomK::entries`]; [`Error::Limit`] where the gradient does not fit one binding of the device;
    /// [`Error::Backend`] where it fails, or the memory cannot be had.
    pub fn encode_random(&self, codec: &RandomK, gradient: &[f32], seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let params = codec.encode_params(gradient.len() as u64, seed)?;
        let mut values = zeros(params.entries.into(), VALUES)?;
        self.engine().gather(&params, gradient, &mut values)?;
        Ok(values)
    }

    /// The same of gradient + residual, which becomes what is not sent. If an element of the sum is NaN or infinite, the
    /// residual stays as it was.
    ///
    /// # Errors
    /// As [`Device::encode_random`]; [`Error::Length`] for a residual of another length; [`Error::FeedbackDiverges`]
    /// for [`RandomK::unbiased`] with k up to n/2. The residual is then as it was.
    pub fn encode_random_with_feedback(
        &self,
        codec: &RandomK,
        gradient: &[f32],
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let (values, left, is_finite) = self.take_random(codec, gradient, residual, seed)?;
        if is_finite {
            residual.copy_from_slice(&left);
        }
        Ok(values)
    }

    /// The values of gradient + residual, what is left of that, and whether all of it was finite.
    pub(crate) fn take_random(
        &self,
        codec: &RandomK,
        gradient: &[f32],
        residual: &[f32],
        seed: Seed,
    ) -> Result<(Vec<f32>, Vec<f32>, bool), Error> {
        let _environment = FloatEnvironment::standard();
        let params = codec.encode_params(gradient.len() as u64, seed)?;
        Error::expect_len("residual", "elements", residual.len(), params.n.into())?;
        codec.check_feedback(params.n.into(), params.entries.into())?;
        let mut values = zeros(params.entries.into(), VALUES)?;
        let mut sums = zeros(gradient.len() as u64, VALUES)?;
        let pairs = gradient.iter().zip(residual);
        sums.iter_mut().zip(pairs).for_each(|(sum, (gradient, residual))| *sum = accumulate(*residual, 1.0, *gradient));
        let is_finite = are_finite(bytemuck::cast_slice(&sums));
        self.engine().take(&params, &mut sums, &mut values)?;
        Ok((values, sums, is_finite))
    }

    /// The gradient of `n` elements that the values of [`Device::encode_random`], or sums of them, stand for: zeros
    /// where nothing was sent.
    ///
    /// # Errors
    /// As [`RandomK::entries`]; [`Error::Length`] for other than as many values; as [`Device::encode_random`] for the
    /// device.
    pub fn decode_random(&self, codec: &RandomK, values: &[f32], n: usize, seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let params = codec.params(n as u64, seed)?;
        Error::expect_len("values of random-k", "entries", values.len(), params.entries.into())?;
        let mut output = zeros(n as u64, VALUES)?;
        self.engine().spread(&params, values, &mut output)?;
        Ok(output)
    }

    /// Adds `weight` times the same to the output.
    ///
    /// # Errors
    /// As [`Device::decode_random`]. The output is then as it was, or not to be used where a device failed.
    pub fn decode_random_add(
        &self,
        codec: &RandomK,
        values: &[f32],
        weight: f32,
        output: &mut [f32],
        seed: Seed,
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let params = codec.params(output.len() as u64, seed)?;
        Error::expect_len("values of random-k", "entries", values.len(), params.entries.into())?;
        let params = RandomParams { flags: random_flags::ACCUMULATE, factor: weight.to_bits(), ..params };
        self.engine().spread(&params, values, output)
    }
}
