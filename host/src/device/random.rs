//! Random-k on any device.

use crate::backend::cpu::Cpu;
use crate::device::Device;
use crate::embed::{DecodeRandom, DecodeRandomBuffers, EncodeRandom, EncodeRandomBuffers, HostSlice};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Gradient;
use crate::random::RandomK;
use crate::seed::Seed;
use crate::sparse::Source;
use crate::words::zeros;

/// What memory is for.
const VALUES: &str = "values of random-k";

impl Device {
    /// The values of the entries that the seed draws, in the order of the draw: [`RandomK::entries`] of them. See
    /// [`RandomK`] for what they are.
    ///
    /// # Errors
    /// As [`RandomK::entries`]; [`Error::Limit`] if the gradient does not fit one binding of the device;
    /// [`Error::Backend`] if it fails, or the memory cannot be had.
    pub fn encode_random(&self, codec: &RandomK, gradient: &[f32], seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let elements = gradient.len() as u64;
        let mut values = zeros(codec.entries(elements)?, VALUES)?;
        let buffers = EncodeRandomBuffers {
            gradient: HostSlice::floats(gradient),
            residual: None,
            values: HostSlice::floats_out(&mut values),
        };
        self.run(EncodeRandom { codec: *codec, elements, feedback: false, seed }, buffers)?;
        Ok(values)
    }

    /// The same of gradient + residual, which becomes what is not sent. If an element of the sum is NaN or infinite,
    /// the residual stays as it was.
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

    /// The values of gradient + residual, the rest of that, and whether all of it was finite.
    pub(crate) fn take_random(
        &self,
        codec: &RandomK,
        gradient: &[f32],
        residual: &[f32],
        seed: Seed,
    ) -> Result<(Vec<f32>, Vec<f32>, bool), Error> {
        let _environment = FloatEnvironment::standard();
        let elements = gradient.len() as u64;
        let entries = codec.entries(elements)?;
        Error::expect_len("residual", "elements", residual.len(), elements)?;
        codec.check_feedback(elements, entries)?;
        let (mut values, mut left) = (zeros(entries, VALUES)?, zeros(elements, VALUES)?);
        let sums = Source { gradient: Gradient::F32(gradient), residual: Some(residual) };
        let is_finite = Cpu::first_not_finite(sums).is_none();
        let buffers = EncodeRandomBuffers {
            gradient: HostSlice::floats(gradient),
            residual: Some(HostSlice::floats_apart(residual, [(0, &mut left[..])])),
            values: HostSlice::floats_out(&mut values),
        };
        self.run(EncodeRandom { codec: *codec, elements, feedback: true, seed }, buffers)?;
        Ok((values, left, is_finite))
    }

    /// The gradient of `n` elements that the values of [`Device::encode_random`], or sums of them, stand for: zeros
    /// where nothing was sent.
    ///
    /// # Errors
    /// As [`RandomK::entries`]; [`Error::Length`] for other than as many values; as [`Device::encode_random`] for the
    /// device.
    pub fn decode_random(&self, codec: &RandomK, values: &[f32], n: usize, seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        Error::expect_len("values of random-k", "entries", values.len(), codec.entries(n as u64)?)?;
        let mut output = zeros(n as u64, VALUES)?;
        self.spread(codec, values, None, HostSlice::floats_out(&mut output), seed)?;
        Ok(output)
    }

    /// Adds `weight` times the same to the output.
    ///
    /// # Errors
    /// As [`Device::decode_random`]. The output is then as it was.
    pub fn decode_random_add(
        &self,
        codec: &RandomK,
        values: &[f32],
        weight: f32,
        output: &mut [f32],
        seed: Seed,
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        self.spread(codec, values, Some(weight), output.into(), seed)
    }

    fn spread(
        &self,
        codec: &RandomK,
        values: &[f32],
        weight: Option<f32>,
        output: HostSlice<'_>,
        seed: Seed,
    ) -> Result<(), Error> {
        let elements = output.bytes() / 4;
        Error::expect_len("values of random-k", "entries", values.len(), codec.entries(elements)?)?;
        let buffers = DecodeRandomBuffers { values: HostSlice::floats(values), output };
        self.run(DecodeRandom { codec: *codec, elements, weight, seed }, buffers)
    }
}
