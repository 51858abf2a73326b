//! Entries that a seed draws.

use gradwire_kernels::arith::memory::rest;
use gradwire_kernels::params::RandomParams;

use crate::backend::cpu::Cpu;
use crate::error::Error;
use crate::random::Random;

impl Random for Cpu {
    fn gather(&self, params: &RandomParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.random_gather(params, input, output);
        Ok(())
    }

    fn take(&self, params: &RandomParams, sums: &mut [f32], output: &mut [f32]) -> Result<(), Error> {
        self.random_gather(params, sums, output);
        let factor = f32::from_bits(params.factor);
        self.random_scatter(params, output, sums, |place, sent| *place = rest(*place, sent, factor))
    }

    fn spread(&self, params: &RandomParams, values: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.random_spread(params, values, output)
    }
}
