//! Compute pipelines, made when first used.

use std::sync::{Arc, PoisonError};

use gradwire_shaders::shader;

use super::fail::failed;
use super::pipelines::Pipeline;
use super::shared::Shared;
use crate::error::Error;
use crate::plan::Kernel;

impl Shared {
    /// The pipeline of a kernel.
    pub(super) fn pipeline(&self, kernel: Kernel) -> Result<Arc<Pipeline>, Error> {
        // A thread that panicked while it held the lock left a map that is still whole.
        let mut ready = self.pipelines.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = ready.get(&kernel) {
            return Ok(pipeline.clone());
        }
        let pipeline = Arc::new(self.build(kernel)?);
        ready.insert(kernel, pipeline.clone());
        Ok(pipeline)
    }

    fn build(&self, kernel: Kernel) -> Result<Pipeline, Error> {
        let name = kernel.name();
        let Some(shader) = shader(name) else {
            return Err(failed(format!(
                "no shader is named {name}; the crates gradwire and gradwire-shaders do not match"
            )));
        };
        let buffer = |binding, ty| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform)];
        for (index, binding) in shader.bindings.iter().enumerate() {
            entries.push(buffer(index as u32 + 1, wgpu::BufferBindingType::Storage { read_only: !binding.writable }));
        }
        self.scoped(name, || {
            let layout = self
                .device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(name),
                source: wgpu::ShaderSource::Wgsl(shader.source.into()),
            });
            let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(name),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(name),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: self.cache.as_ref(),
            });
            Pipeline { shader, layout, pipeline }
        })
    }
}
