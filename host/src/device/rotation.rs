//! Rotating slices, and transforming them by cosines.

use crate::backend::cpu::CpuWork;
use crate::device::Device;
use crate::embed::{Checked, Cosine, HostSlice, Turn, TurnBuffers, Work};
use crate::error::{Error, RecipeError};
use crate::float_environment::FloatEnvironment;
use crate::rotation::{Dct, Rotation};
use crate::seed::Seed;
use crate::words::zeros;

impl Device {
    /// The blocks of `values`, rotated: [`Rotation::rotated_len`] values. See [`Rotation`] for what it is and gives.
    ///
    /// # Errors
    /// [`Error::Setting`] for a block that is no power of two from 32 to 8192; [`Error::TooLong`] for more than 2^31
    /// values; [`Error::Limit`] if the device's limits are too small for any part; [`Error::Backend`] if it
    /// fails, or the memory cannot be had.
    pub fn rotate(&self, rotation: Rotation, values: &[f32], seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let elements = values.len() as u64;
        rotation.params(elements, false, seed)?;
        self.turn(Turn { rotation, elements, back: false, seed }, values, rotation.rotated_len(elements))
    }

    /// The `n` values that were rotated by this rotation and seed, but for rounding.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Rotation::rotated_len`] rotated values; as [`Device::rotate`].
    pub fn unrotate(&self, rotation: Rotation, rotated: &[f32], n: usize, seed: Seed) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        rotation.params(n as u64, true, seed)?;
        Error::expect_len("rotated gradient", "elements", rotated.len(), rotation.rotated_len(n as u64))?;
        self.turn(Turn { rotation, elements: n as u64, back: true, seed }, rotated, n as u64)
    }

    /// The coefficients of blocks of `values`: as many as there are values. See [`Dct`] for what they are.
    ///
    /// # Errors
    /// [`Error::Setting`] for a block whose side is no power of two from 2 to 64; [`Error::TooLong`] for more than 2^31
    /// values; [`Error::Limit`] if the device's limits are too small for any part; [`Error::Backend`] if it
    /// fails, or the memory cannot be had; [`RecipeError::Stages`] for [`Dct::tiles`].
    pub fn dct(&self, dct: Dct, values: &[f32]) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        self.transform(dct, values, false)
    }

    /// The values that have these coefficients, but for rounding.
    ///
    /// # Errors
    /// As [`Device::dct`].
    pub fn inverse_dct(&self, dct: Dct, coefficients: &[f32]) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        self.transform(dct, coefficients, true)
    }

    fn transform(&self, dct: Dct, input: &[f32], inverse: bool) -> Result<Vec<f32>, Error> {
        if dct.is_tiled() {
            let what = "tiles are of the rows and columns of a matrix, and a slice has none";
            let remedy = "leave out Dct::tiles, or use Compressor::exchange with a recipe of dct:tiles";
            return Err(RecipeError::Stages { what, remedy }.into());
        }
        let elements = input.len() as u64;
        dct.params(elements, inverse)?;
        self.turn(Cosine { dct, elements, back: inverse }, input, elements)
    }

    /// The `others` values that some work makes of `values`.
    fn turn<W>(&self, work: W, values: &[f32], others: u64) -> Result<Vec<f32>, Error>
    where
        W: CpuWork + Checked + for<'h> Work<Buffers<HostSlice<'h>> = TurnBuffers<HostSlice<'h>>>,
    {
        let mut output = zeros(others, "transformed values")?;
        let buffers = TurnBuffers { input: HostSlice::floats(values), output: HostSlice::floats_out(&mut output) };
        self.run(work, buffers)?;
        Ok(output)
    }
}
