//! Compute pipelines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gradwire_shaders::Shader;

use crate::plan::Kernel;

/// A kernel that is ready to run.
pub(super) struct Pipeline {
    pub(super) shader: &'static Shader,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) pipeline: wgpu::ComputePipeline,
}

/// The kernels that were made ready.
#[derive(Default)]
pub(super) struct Pipelines {
    pub(super) ready: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
}
