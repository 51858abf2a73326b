//! A rotation, and a cosine transform.

use gradwire_kernels::params::{DctParams, RotateParams};

use crate::backend::cpu::Cpu;
use crate::error::Error;
use crate::rotation::Rotate;

impl Rotate for Cpu {
    fn rotate(&self, params: &RotateParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.rotate_rows(params, input, output);
        Ok(())
    }

    fn dct(&self, params: &DctParams, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.dct_blocks(params, input, output);
        Ok(())
    }
}
