//! A rotation, and a cosine transform, on each backend.

use bytemuck::{cast_slice, cast_slice_mut};
use gradwire_kernels::params::{DctParams, RotateParams};

use super::{dct, passes};
use crate::error::Error;
use crate::plan::{Pass, Role, Sizes};
use crate::session::Sessions;

/// What a backend does with a tensor that is rotated.
pub(crate) trait Rotate {
    /// Rotates the input into the output, both of the lengths that the parameters say.
    fn rotate(&self, params: &RotateParams, input: &[f32], output: &mut [f32]) -> Result<(), Error>;

    /// Transforms the input into the output, which is as long, by cosines.
    fn dct(&self, params: &DctParams, input: &[f32], output: &mut [f32]) -> Result<(), Error>;
}

impl<T: Sessions> Rotate for T {
    fn rotate(&self, params: &RotateParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        run(self, &passes(params, &self.limits())?, input, output)
    }

    fn dct(&self, params: &DctParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        run(self, &dct::passes(params, &self.limits())?, input, output)
    }
}

/// Runs passes from the input into the output.
fn run(on: &impl Sessions, passes: &[Pass], input: &[f32], output: &mut [f32]) -> Result<(), Error> {
    if passes.is_empty() {
        return Ok(());
    }
    let mut sizes = Sizes::default();
    sizes.0[Role::Input as usize] = size_of_val(input) as u64;
    sizes.0[Role::Output as usize] = size_of_val(output) as u64;
    let mut session = on.session(sizes)?;
    session.write(Role::Input, 0, cast_slice(input))?;
    session.run(passes)?;
    session.read(Role::Output, 0, cast_slice_mut(output))
}
