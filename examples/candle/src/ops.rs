//! Gradwire's encode and decode as custom ops of candle, on the CPU and on CUDA.
//!
//! What travels between workers is a tensor of bytes, the body of a payload as it lies in device memory. So the bodies
//! of all workers are one tensor after an all-gather, and none of them leaves its device.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape};
use gradwire::{DecodeMode, DecodePlan, Device, EncodePlan, Gradient, Seed};

/// Encodes a gradient, f32, into the body of a payload, u8, with error feedback.
///
/// It keeps the residual of one parameter of one worker from step to step.
pub struct Encode {
    plan: EncodePlan,
    state: Mutex<State>,
}

/// What changes from step to step.
struct State {
    seed: Seed,
    residual: Residual,
}

/// Where the gradient is, there is the residual.
enum Residual {
    /// Nothing was encoded yet.
    None,
    Cpu(Vec<f32>),
    #[cfg(feature = "cuda")]
    Cuda(candle_core::cuda_backend::cudarc::driver::CudaSlice<f32>),
}

impl Encode {
    /// An op for a plan with feedback.
    pub fn new(plan: EncodePlan) -> Self {
        Self { plan, state: Mutex::new(State { seed: Seed::new(0), residual: Residual::None }) }
    }

    /// Sets the draws of the next call: each step, and each parameter, has its own.
    pub fn seed(&self, seed: Seed) -> Result<()> {
        self.state.lock().map_err(|_| Error::msg("another thread panicked while it encoded"))?.seed = seed;
        Ok(())
    }

    /// The contiguous range of a gradient of the plan's length.
    fn range(&self, layout: &Layout) -> Result<(usize, usize)> {
        let n = self.plan.header().elements();
        match layout.contiguous_offsets() {
            Some((start, end)) if (end - start) as u64 == n => Ok((start, end)),
            Some((start, end)) => Err(Error::msg(format!("the gradient has {} elements, the plan {n}", end - start))),
            None => Err(Error::msg("the gradient is not contiguous; call .contiguous() first")),
        }
    }

    fn body_shape(&self) -> Shape {
        Shape::from(self.plan.header().body_bytes() as usize)
    }
}

impl CustomOp1 for Encode {
    fn name(&self) -> &'static str {
        "gradwire-encode"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = self.range(layout)?;
        let gradient = Gradient::from(&storage.as_slice::<f32>()?[start..end]);
        let mut state = self.state.lock().map_err(|_| Error::msg("another thread panicked while it encoded"))?;
        let State { seed, residual } = &mut *state;
        if !matches!(residual, Residual::Cpu(_)) {
            *residual = Residual::Cpu(vec![0.0; end - start]);
        }
        let Residual::Cpu(residual) = residual else { return Err(Error::msg("the residual is elsewhere")) };
        let payload = Device::cpu().encode_plan(&self.plan, gradient, residual, *seed).map_err(Error::wrap)?;
        let mut body = vec![0; self.plan.header().body_bytes() as usize];
        payload.write_body(&mut body).map_err(Error::wrap)?;
        Ok((CpuStorage::U8(body), self.body_shape()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage as _;
        use gradwire::backend::cuda::View;
        use gradwire::embed::EncodeBuffers;
        let (start, end) = self.range(layout)?;
        let device = storage.device();
        let gradient = storage.as_cuda_slice::<f32>()?.slice(start..end);
        let mut state = self.state.lock().map_err(|_| Error::msg("another thread panicked while it encoded"))?;
        let State { seed, residual } = &mut *state;
        if !matches!(residual, Residual::Cuda(_)) {
            *residual = Residual::Cuda(device.alloc_zeros(end - start)?);
        }
        let Residual::Cuda(residual) = residual else { return Err(Error::msg("the residual is elsewhere")) };
        let mut body = device.alloc_zeros::<u8>(self.plan.header().body_bytes() as usize)?;
        let mut workspace = device.alloc_zeros::<u8>(self.plan.workspace_bytes() as usize)?;
        // Queued on candle's own stream; the kernels are loaded once a context.
        gradwire::backend::cuda::Cuda::on(&device.cuda_stream())
            .and_then(|cuda| {
                let buffers = EncodeBuffers {
                    gradient: View::read(&gradient),
                    residual: Some(View::write(residual)),
                    body: View::write(&mut body),
                    workspace: Some(View::write(&mut workspace)),
                };
                cuda.queue_views(gradwire::embed::Encode { plan: &self.plan, seed: *seed }, buffers)
            })
            .map_err(Error::wrap)?;
        Ok((candle_core::CudaStorage::wrap_cuda_slice(body, device.clone()), self.body_shape()))
    }
}

/// Decodes the bodies of all workers, one after another, into their mean.
pub struct DecodeMean {
    plan: DecodePlan,
}

impl DecodeMean {
    /// An op for the bodies that `workers` made by a plan.
    pub fn new(plan: &EncodePlan, workers: u32) -> Self {
        Self { plan: DecodePlan::new(*plan.header(), workers) }
    }

    fn mode(&self) -> DecodeMode {
        DecodeMode::Sum(1.0 / self.plan.payloads() as f32)
    }

    /// The contiguous range of as many bodies as there are workers.
    fn range(&self, layout: &Layout) -> Result<(usize, usize)> {
        let expected = u64::from(self.plan.payloads()) * self.plan.header().body_bytes();
        match layout.contiguous_offsets() {
            Some((start, end)) if (end - start) as u64 == expected => Ok((start, end)),
            _ => Err(Error::msg(format!("{expected} contiguous bytes are what the workers' bodies take"))),
        }
    }

    fn output_shape(&self) -> Shape {
        Shape::from(self.plan.header().elements() as usize)
    }
}

impl CustomOp1 for DecodeMean {
    fn name(&self) -> &'static str {
        "gradwire-decode-mean"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = self.range(layout)?;
        let header = self.plan.header();
        let bodies = storage.as_slice::<u8>()?[start..end].chunks(header.body_bytes() as usize);
        let payloads = bodies.map(|body| header.seal(body)).collect::<std::result::Result<Vec<_>, _>>();
        let payloads = payloads.map_err(Error::wrap)?;
        let DecodeMode::Sum(weight) = self.mode() else { return Err(Error::msg("a mean is a sum")) };
        let mut mean = vec![0.0; header.elements() as usize];
        Device::cpu().decode_sum(&payloads, weight, &mut mean).map_err(Error::wrap)?;
        Ok((CpuStorage::F32(mean), self.output_shape()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage as _;
        use gradwire::backend::cuda::View;
        use gradwire::embed::DecodeBuffers;
        let (start, end) = self.range(layout)?;
        let device = storage.device();
        let bodies = storage.as_cuda_slice::<u8>()?.slice(start..end);
        let mut mean = device.alloc_zeros::<f32>(self.plan.header().elements() as usize)?;
        gradwire::backend::cuda::Cuda::on(&device.cuda_stream())
            .and_then(|cuda| {
                let buffers = DecodeBuffers { bodies: View::read(&bodies), output: View::write(&mut mean) };
                cuda.queue_views(gradwire::embed::Decode { plan: &self.plan, mode: self.mode() }, buffers)
            })
            .map_err(Error::wrap)?;
        Ok((candle_core::CudaStorage::wrap_cuda_slice(mean, device.clone()), self.output_shape()))
    }
}
