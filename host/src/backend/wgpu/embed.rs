//! Encoding and decoding recorded into a caller's encoder, in a caller's buffers.

use std::sync::Arc;

use super::device::Wgpu;
use super::record::{Bound, bind, parameters, pipelines, record};
use super::shared::Shared;
use crate::embed::{Access, Piece, Work, by_role, sealed, used};
use crate::error::Error;
use crate::plan::Pass;
use crate::wire::MAX_ELEMENTS;

impl Wgpu {
    /// Records work into the caller's encoder, in the caller's buffers. Nothing is submitted, and no feature or limit
    /// is asked for that the device does not have; a tensor that is larger than a binding or a dispatch may be takes
    /// several dispatches.
    ///
    /// Every buffer needs the usage `STORAGE`, and what is scratch (a workspace, a state, an output over zeros)
    /// `COPY_DST` as well. Slices begin at multiples of the device's `min_storage_buffer_offset_alignment`, which is at
    /// most 256. What is read alone and what is scratch share a buffer with no other piece, because a dispatch reads
    /// them while it writes others.
    ///
    /// ```no_run
    /// # fn run(device: wgpu::Device, queue: wgpu::Queue, gradient: wgpu::Buffer, body: wgpu::Buffer) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::embed::{Encode, EncodeBuffers};
    /// use gradwire::{Codec, Dtype, Qsgd, Seed, wgpu};
    /// let gradwire = Wgpu::on(&device, &queue)?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    /// gradwire.record(Encode { plan: &plan, seed: Seed::new(42).step(1) }, &mut encoder, buffers)?;
    /// queue.submit([encoder.finish()]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Before anything is recorded: [`Error::Length`] for a slice that is too short or left out, [`Error::Memory`] for
    /// one without the usage, misaligned, or in a buffer that it cannot share; [`Error::Limit`] if a limit is too
    /// small for any part of the work, or if it was planned for a device of larger limits; those of the work.
    /// [`Error::Backend`] for what the device refuses.
    pub fn record<W: Work>(
        &self,
        work: W,
        encoder: &mut wgpu::CommandEncoder,
        buffers: W::Buffers<wgpu::BufferSlice<'_>>,
    ) -> Result<(), Error> {
        let passes = work.passes(&self.limits())?;
        self.record_checked(&passes, encoder, &work.pieces(buffers)?)?;
        drop(passes);
        work.queued(sealed::Surface(()));
        Ok(())
    }

    pub(crate) fn record_checked(
        &self,
        passes: &[Pass],
        encoder: &mut wgpu::CommandEncoder,
        pieces: &[Piece<wgpu::BufferSlice<'_>>],
    ) -> Result<(), Error> {
        if passes.is_empty() {
            return Ok(());
        }
        let pieces = &used(pieces);
        pieces.iter().try_for_each(|piece| self.check(piece))?;
        check_sharing(pieces)?;
        let bound = by_role(pieces, None, |piece, offset| {
            Some(Bound { buffer: piece.buffer.buffer(), offset: piece.buffer.offset() + offset })
        });
        let shared = &self.shared;
        let pipelines = pipelines(shared, passes)?;
        let params = parameters(shared, passes)?;
        shared.scoped("recording passes", || {
            let ready = bind(shared, passes, pipelines, &params, &bound);
            record(encoder, &ready, &bound);
        })
    }

    fn check(&self, piece: &Piece<wgpu::BufferSlice<'_>>) -> Result<(), Error> {
        let (what, slice) = (piece.what, piece.buffer);
        let refuse = |problem: String| Err(Error::Memory { what, address: slice.offset(), problem });
        // Kernels read whole words.
        let expected = piece.needed.next_multiple_of(4);
        if slice.size() < expected {
            return Err(Error::Length { what, found: slice.size(), expected, unit: "bytes" });
        }
        let needed = match piece.access {
            Access::Scratch => wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            Access::Read | Access::Write => wgpu::BufferUsages::STORAGE,
        };
        let usage = slice.buffer().usage();
        if !usage.contains(needed) {
            return refuse(format!("is in a buffer of usage {usage:?}: create it with {needed:?} as well"));
        }
        let alignment = self.shared.device.limits().min_storage_buffer_offset_alignment;
        if !slice.offset().is_multiple_of(alignment.into()) {
            return refuse(format!("is not aligned: a slice has to begin at a multiple of {alignment} bytes"));
        }
        Ok(())
    }

    /// The same device, with pipelines built through a cache of the caller's. Worth it where the driver keeps none
    /// itself, as on Android. Pipelines that were built before are kept as they are.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device has no memory left.
    pub fn with_pipeline_cache(&self, cache: &wgpu::PipelineCache) -> Result<Self, Error> {
        let shared = &self.shared;
        let shared = Shared::new(&shared.device, &shared.queue, shared.loss.clone(), Some(cache.clone()))?;
        Ok(Self { shared: Arc::new(shared), limits: self.limits })
    }

    /// What of the device's features and limits would make work faster if it were requested, in sentences; nothing
    /// where nothing would.
    pub fn advice(&self) -> Vec<String> {
        let (limits, features) = (self.shared.device.limits(), self.shared.device.features());
        let mut advice = Vec::new();
        let whole = MAX_ELEMENTS * 4;
        let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        if largest < whole {
            advice.push(format!(
                "max_storage_buffer_binding_size and max_buffer_size: the lesser is {largest}, so that a tensor of more \
                 than {} elements takes several dispatches; request the adapter's own",
                largest / 4
            ));
        }
        let groups = u64::from(limits.max_compute_workgroups_per_dimension) * 2048;
        if groups < largest / 4 {
            advice.push(format!(
                "max_compute_workgroups_per_dimension: it is {}, so that a decode of more than {groups} elements takes \
                 several dispatches; request the adapter's own",
                limits.max_compute_workgroups_per_dimension
            ));
        }
        if !features.contains(wgpu::Features::PIPELINE_CACHE) {
            advice.push(
                "PIPELINE_CACHE: without it, every start of the program compiles the shaders anew where the driver keeps no \
                 cache itself"
                    .to_owned(),
            );
        }
        advice
    }
}

/// Checks that no buffer is read and written by the same dispatch, and that what is written lies apart.
fn check_sharing(pieces: &[Piece<wgpu::BufferSlice<'_>>]) -> Result<(), Error> {
    for (index, a) in pieces.iter().enumerate() {
        for b in pieces[..index].iter().filter(|b| b.buffer.buffer() == a.buffer.buffer()) {
            let (from, to) = (a.buffer.offset(), b.buffer.offset());
            let refuse = |problem: String| Err(Error::Memory { what: a.what, address: from, problem });
            if !(a.access == Access::Write && b.access == Access::Write) {
                return refuse(format!(
                    "is in one buffer with the {}, and a dispatch may not read and write one buffer: give it its own",
                    b.what
                ));
            }
            if from < to + b.needed && to < from + a.needed {
                return refuse(format!("overlaps the {}: give each its own part of the buffer", b.what));
            }
        }
    }
    Ok(())
}
