//! Work on memory of the host's.

use super::device::Cpu;
use crate::embed::{HostMemory, HostSlice, Work, sealed};
use crate::error::Error;
use crate::float_environment::FloatEnvironment;

/// Work that the CPU runs. It takes a work's parameters as they are, instead of its passes, which are a GPU's.
pub trait CpuWork: Work {
    /// Works in memory that was checked. What fails is known before anything of the caller's is written; memory that
    /// this crate throws away may hold anything then.
    #[doc(hidden)]
    fn on_cpu(&self, cpu: &Cpu, memory: HostMemory<'_>) -> Result<(), Error>;
}

impl Cpu {
    /// Runs work in memory of the host's, and returns when it is done.
    ///
    /// ```
    /// use gradwire::backend::cpu::Cpu;
    /// use gradwire::embed::{EncodeRandom, EncodeRandomBuffers, HostSlice};
    /// use gradwire::{Device, Gradient, RandomK, Seed};
    /// let (codec, gradient, seed) = (RandomK::count(10), [0.5f32; 1000], Seed::new(42));
    /// let mut values = [0.0f32; 10];
    /// let buffers = EncodeRandomBuffers {
    ///     gradient: HostSlice::from(Gradient::from(&gradient)),
    ///     residual: None,
    ///     values: HostSlice::Out(bytemuck::cast_slice_mut(&mut values)),
    /// };
    /// Cpu::default().run(EncodeRandom { codec, elements: 1000, feedback: false, seed }, buffers)?;
    /// assert_eq!(values[..], Device::cpu().encode_random(&codec, &gradient, seed)?);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the work; [`Error::Length`] for a slice that is too short or too long; [`Error::Memory`] for a piece
    /// that is written and was handed over to be read, or the other way round, and for one that is not aligned for its
    /// values; [`Error::Backend`] if there is no memory. The host's memory is as it was whenever this fails.
    pub fn run<W: CpuWork>(&self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        work.on_cpu(self, HostMemory::new(work.pieces(buffers)?)?)?;
        work.queued(sealed::Surface(()));
        Ok(())
    }
}
