//! Buffers in this machine's memory.

use std::time::Instant;

use half::{bf16, f16};

use super::dense::{EncodeMemory, whole_bodies};
use super::device::Cpu;
use super::filter::Sums;
use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Gradient;
use crate::kind::BackendKind;
use crate::plan::{Kernel, Params, Pass, ROLES, Role, Sizes};
use crate::session::{Session, check_copy, check_range, check_spans};
use crate::threads;

/// A [`Session`] in this machine's memory.
pub struct CpuSession {
    cpu: Cpu,
    sizes: Sizes,
    /// Words, so that every view a kernel takes is aligned.
    buffers: [Vec<u32>; ROLES],
}

impl Cpu {
    /// Buffers of these sizes.
    ///
    /// # Errors
    /// [`Error::Backend`] if the memory cannot be had.
    pub fn session(&self, sizes: Sizes) -> Result<CpuSession, Error> {
        let mut buffers: [Vec<u32>; ROLES] = Default::default();
        for (buffer, bytes) in buffers.iter_mut().zip(sizes.0) {
            // More than this machine can count is more than it has.
            let words = usize::try_from(bytes.div_ceil(4)).unwrap_or(usize::MAX);
            buffer.try_reserve_exact(words).map_err(|e| Error::Backend {
                backend: BackendKind::Cpu,
                reason: format!("{bytes} bytes of memory could not be had ({e}); encode the tensor in parts"),
            })?;
            buffer.resize(words, 0);
        }
        Ok(CpuSession { cpu: *self, sizes, buffers })
    }
}

impl CpuSession {
    fn run_pass(&mut self, pass: &Pass) {
        let [input, residual, scalars, codes, workspace, status, output, ..] = &mut self.buffers;
        match &pass.params {
            Params::Encode(p) => {
                let input = match p.dtype {
                    0 => Gradient::F32(bytemuck::cast_slice(input)),
                    1 => Gradient::F16(bytemuck::cast_slice::<u32, f16>(input)),
                    _ => Gradient::Bf16(bytemuck::cast_slice::<u32, bf16>(input)),
                };
                let mut buffers = EncodeMemory {
                    input,
                    residual: Some(Sums::over(bytemuck::cast_slice_mut(residual))),
                    scalars: bytemuck::cast_slice_mut(scalars),
                    codes: bytemuck::cast_slice_mut(codes),
                    workspace,
                    status,
                };
                self.cpu.run_encode(pass, &mut buffers);
            }
            Params::Decode(p) => {
                // A pass over part of a tensor names its codes by offset; this backend counts from the payload's start.
                let bits = u64::from(p.bits);
                let first = pass.bindings.output.offset / 4;
                let codes_at = (pass.bindings.codes.offset - first / 256 * 32 * bits) as usize;
                let Kernel::Decode(codec) = pass.kernel else { return };
                let per_bucket = 4 * codec.scalars(p.bits) as u64;
                let scalars_at = (pass.bindings.scalars.offset - (first >> p.bucket_log2) * per_bucket) as usize;
                let scalars: &[u8] = bytemuck::cast_slice(scalars);
                let codes: &[u8] = bytemuck::cast_slice(codes);
                let bodies = whole_bodies(p, &scalars[scalars_at..], &codes[codes_at..]);
                self.cpu.run_decode(pass, &bodies, bytemuck::cast_slice_mut(output));
            }
            // Refused by `run_trusted`.
            Params::Select(_)
            | Params::Scatter(_)
            | Params::Momentum(_)
            | Params::Restore(_)
            | Params::Rotate(_)
            | Params::Dct(_)
            | Params::Tiles(_)
            | Params::Vote(_)
            | Params::Gather(_)
            | Params::Spread(_)
            | Params::LowRank(_)
            | Params::Entropy(_) => {}
        }
    }
}

impl Session for CpuSession {
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, bytes.len())?;
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffers[role as usize]);
        buffer[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        check_range(role, &self.sizes, offset, out.len())?;
        let buffer: &[u8] = bytemuck::cast_slice(&self.buffers[role as usize]);
        out.copy_from_slice(&buffer[offset as usize..offset as usize + out.len()]);
        Ok(())
    }

    unsafe fn run_trusted(&mut self, passes: &[Pass]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        check_spans(&self.sizes, passes)?;
        let foreign = |p: &&Pass| {
            matches!(
                p.params,
                Params::Select(_)
                    | Params::Scatter(_)
                    | Params::Momentum(_)
                    | Params::Restore(_)
                    | Params::Rotate(_)
                    | Params::Dct(_)
                    | Params::Tiles(_)
                    | Params::Vote(_)
                    | Params::Gather(_)
                    | Params::Spread(_)
                    | Params::LowRank(_)
                    | Params::Entropy(_)
            ) || matches!(
                p.kernel,
                Kernel::FiniteScanSegments
                    | Kernel::EncodeSegments(_)
                    | Kernel::DecodeSegments(_)
                    | Kernel::StatsSegments(_)
                    | Kernel::CombineSegments(_)
                    | Kernel::EncodeTensors(_)
            )
        };
        if let Some(pass) = passes.iter().find(foreign) {
            return Err(Error::Unavailable {
                backend: BackendKind::Cpu,
                reason: format!(
                    "it selects, draws entries, rotates, transforms, votes, does PowerSGD and takes many tensors without passes, and has no {}; \
                     Device::encode_sparse, Device::encode_random, Device::rotate, Device::dct, Device::vote, Device::low_rank_step and Device::encode_model have it",
                    pass.kernel.name()
                ),
            });
        }
        if let Some(pass) = passes.iter().find(|pass| pass.bindings.moved) {
            return Err(Error::Unavailable {
                backend: BackendKind::Cpu,
                reason: format!("its sessions hold one tensor, and {} was moved to another", pass.kernel.name()),
            });
        }
        passes.iter().for_each(|pass| self.run_pass(pass));
        Ok(())
    }

    unsafe fn time_trusted(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        let start = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the caller answers for what the passes take on trust, each time they run.
            unsafe { self.run_trusted(passes)? };
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error> {
        check_copy(from, to)?;
        let words = self.buffers[from as usize].len().min(self.buffers[to as usize].len());
        let source = std::mem::take(&mut self.buffers[from as usize]);
        let target = &mut self.buffers[to as usize][..words];
        // Pieces of 256 KiB were the fastest of 64 KiB to 32 MiB: large enough to stream, small enough to share out.
        const PIECE: usize = 1 << 16;
        let start = Instant::now();
        for _ in 0..repeats {
            let pieces = threads::chunks_mut(target, PIECE).zip(threads::chunks(&source[..words], PIECE));
            pieces.for_each(|(t, s)| t.copy_from_slice(s));
            std::hint::black_box(&target);
        }
        let seconds = start.elapsed().as_secs_f64();
        self.buffers[from as usize] = source;
        Ok((seconds, words as u64 * 4))
    }
}
