//! The CPU, and the vectors that it works with.

use super::simd::Simd;
use crate::error::Error;

/// The CPU of this machine.
///
/// It works in the rayon pool that it is called from, and its calls return when the work is done. A process that was
/// forked after its parent's first call works in a pool of its own.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    simd: Simd,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { simd: Simd::detect() }
    }
}

impl Cpu {
    /// This machine's cores with a chosen vector width.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the machine does not have the instructions.
    pub fn with_simd(simd: Simd) -> Result<Self, Error> {
        simd.check()?;
        Ok(Self { simd })
    }

    /// The vector instructions that were chosen.
    pub fn simd(&self) -> Simd {
        self.simd
    }
}
