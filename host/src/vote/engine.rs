//! A vote on each backend.

use bytemuck::cast_slice_mut;

use super::{UNIT, UNIT_BYTES, passes};
use crate::error::Error;
use crate::plan::{Role, Sizes};
use crate::session::Sessions;

/// What a backend does with the codes of payloads of signs.
pub(crate) trait Vote {
    /// Writes the majority of the codes of at least one payload, all of the output's length.
    fn vote(&self, codes: &[&[u8]], output: &mut [f32]) -> Result<(), Error>;
}

impl<T: Sessions> Vote for T {
    fn vote(&self, codes: &[&[u8]], output: &mut [f32]) -> Result<(), Error> {
        let passes = passes(output.len() as u64, codes.len() as u32, &self.limits())?;
        if passes.is_empty() {
            return Ok(());
        }
        let mut sizes = Sizes::default();
        sizes.0[Role::Input as usize] = codes.iter().map(|codes| codes.len() as u64).sum();
        sizes.0[Role::Output as usize] = size_of_val(output) as u64;
        let mut session = self.session(sizes)?;
        for pass in &passes {
            let (input, output) = (pass.bindings.input, pass.bindings.output);
            let (each, from) = (input.bytes / codes.len() as u64, output.offset / 4 / UNIT * UNIT_BYTES);
            for (codes, place) in codes.iter().zip(0..) {
                let part = &codes[from as usize..(from + each) as usize];
                session.write(Role::Input, input.offset + place * each, part)?;
            }
        }
        session.run(&passes)?;
        session.read(Role::Output, 0, cast_slice_mut(output))
    }
}
