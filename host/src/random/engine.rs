//! Entries that a seed draws, on each backend.

use bytemuck::{cast_slice, cast_slice_mut};
use gradwire_kernels::params::{RandomParams, random_flags};

use super::passes;
use crate::error::Error;
use crate::plan::{Kernel, Role, Sizes};
use crate::session::Sessions;

/// What a backend does with entries that a seed draws.
pub(crate) trait Random {
    /// Takes the entries of the input.
    fn gather(&self, params: &RandomParams, input: &[f32], output: &mut [f32]) -> Result<(), Error>;

    /// Takes the entries of the sums, and leaves there what is not sent.
    fn take(&self, params: &RandomParams, sums: &mut [f32], output: &mut [f32]) -> Result<(), Error>;

    /// Puts values in the places of the entries.
    fn spread(&self, params: &RandomParams, values: &[f32], output: &mut [f32]) -> Result<(), Error>;
}

impl<T: Sessions> Random for T {
    fn gather(&self, params: &RandomParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let passes = passes(params, Kernel::RandomGather, &[Role::Input, Role::Output], &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut session = self.session(sizes(&[(Role::Input, input), (Role::Output, output)]))?;
        session.write(Role::Input, 0, cast_slice(input))?;
        session.run(&passes)?;
        session.read(Role::Output, 0, cast_slice_mut(output))
    }

    fn take(&self, params: &RandomParams, sums: &mut [f32], output: &mut [f32]) -> Result<(), Error> {
        let params = RandomParams { flags: random_flags::TAKE, ..*params };
        let passes = passes(&params, Kernel::RandomGather, &[Role::Residual, Role::Output], &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut session = self.session(sizes(&[(Role::Residual, sums), (Role::Output, output)]))?;
        session.write(Role::Residual, 0, cast_slice(sums))?;
        session.run(&passes)?;
        session.read(Role::Output, 0, cast_slice_mut(output))?;
        session.read(Role::Residual, 0, cast_slice_mut(sums))
    }

    fn spread(&self, params: &RandomParams, values: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let passes = passes(params, Kernel::RandomScatter, &[Role::Values, Role::Output], &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut session = self.session(sizes(&[(Role::Values, values), (Role::Output, output)]))?;
        session.write(Role::Values, 0, cast_slice(values))?;
        session.write(Role::Output, 0, cast_slice(output))?;
        session.run(&passes)?;
        session.read(Role::Output, 0, cast_slice_mut(output))
    }
}

/// Bytes of a session's buffers that hold these.
fn sizes(held: &[(Role, &[f32])]) -> Sizes {
    let mut sizes = Sizes::default();
    held.iter().for_each(|(role, values)| sizes.0[*role as usize] = size_of_val(*values) as u64);
    sizes
}
