//! A vote.

use crate::backend::cpu::Cpu;
use crate::error::Error;
use crate::vote::Vote;

impl Vote for Cpu {
    fn vote(&self, codes: &[&[u8]], output: &mut [f32]) -> Result<(), Error> {
        self.vote_units(codes, output);
        Ok(())
    }
}
