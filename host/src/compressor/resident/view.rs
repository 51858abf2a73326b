//! An exchange of a gradient that is a slice or a view of cudarc's.

use super::compressor::ResidentCompressor;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::cudarc::LendMut;
use crate::collective::Collective;
use crate::error::Error;
use crate::gradient::Dtype;

impl ResidentCompressor<Cuda> {
    /// A step, as [`ResidentCompressor::exchange`], of a slice or a view of f32 of cudarc's. It is on the stream that
    /// the [`Cuda`] was made of; cudarc orders the work of its other streams.
    ///
    /// ```no_run
    /// # fn run(group: &mut impl gradwire::Collective) -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use gradwire::Compressor;
    /// use gradwire::backend::cuda::Cuda;
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let mut compressor = Compressor::new("qsgd:bits=4+ef", [[1024, 1024]], 42)?.resident(&Cuda::on(&stream)?)?;
    /// let mut gradient = stream.alloc_zeros::<f32>(compressor.elements())?;
    /// compressor.exchange_view(group, &mut gradient)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`ResidentCompressor::exchange`]; [`Error::Dtype`] for elements of another type; [`Error::Stream`] if the
    /// [`Cuda`] was not made by [`Cuda::on`], or while the stream is being captured.
    pub fn exchange_view(
        &mut self,
        group: &mut (impl Collective + ?Sized),
        gradient: &mut impl LendMut,
    ) -> Result<(), Error> {
        let cuda = self.memory().clone();
        cuda.refuse_capture("an exchange waits for other ranks, which no graph can")?;
        let stream = cuda.of_cudarc("hand over a DeviceSlice")?;
        let ty = gradient.ty();
        if ty.dtype != Some(Dtype::F32) {
            return Err(Error::Dtype { expected: Dtype::F32.name(), found: ty.name });
        }
        let (slice, _guard) = gradient.lend_mut(stream);
        // SAFETY: cudarc frees memory, and orders other streams, after the work that was queued while the guard is
        // held; no graph records it.
        unsafe { self.exchange(group, slice) }
    }
}
