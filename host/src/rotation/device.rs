//! Rotating slices on any device.

use super::Rotation;
use crate::device::Device;
use crate::error::Error;
use crate::seed::Seed;

impl Device {
    /// The blocks of `values`, rotated: [`Rotation::rotated_len`] values. See [`Rotation`] for what it is and gives.
    ///
    /// # Errors
    /// [`Error::Setting`] for a block that is no power of two from 32 to 8192; [`Error::TooLong`] for more than 2^31
    /// values; [`Error::Limit`] where the device's limits are too small for any part; [`Error::Backend`] where it
    /// fails, or the memory cannot be had.
    pub fn rotate(&self, rotation: Rotation, values: &[f32], seed: Seed) -> Result<Vec<f32>, Error> {
        let params = rotation.params(values.len() as u64, false, seed)?;
        let mut output = zeros(rotation.rotated_len(values.len() as u64), "rotated values")?;
        self.engine().rotate(&params, values, &mut output)?;
        Ok(output)
    }

    /// The `n` values that were rotated by this rotation and seed, but for rounding.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Rotation::rotated_len`] rotated values; as [`Device::rotate`].
    pub fn unrotate(&self, rotation: Rotation, rotated: &[f32], n: usize, seed: Seed) -> Result<Vec<f32>, Error> {
        let params = rotation.params(n as u64, true, seed)?;
        Error::expect_len("rotated gradient", "elements", rotated.len(), rotation.rotated_len(n as u64))?;
        let mut output = zeros(n as u64, "values")?;
        self.engine().rotate(&params, rotated, &mut output)?;
        Ok(output)
    }
}

/// So many zeros, which are to be `what`.
pub(super) fn zeros(n: u64, what: &'static str) -> Result<Vec<f32>, Error> {
    let none = || Error::no_memory(what, 4 * n);
    let length = usize::try_from(n).map_err(|_| none())?;
    let mut room = Vec::new();
    room.try_reserve_exact(length).map_err(|_| none())?;
    room.resize(length, 0.0);
    Ok(room)
}
