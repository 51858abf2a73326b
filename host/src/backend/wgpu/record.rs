//! Passes made into commands: pipelines, parameters, bind groups, dispatches.

use std::sync::Arc;

use super::fail::failed;
use super::pipelines::Pipeline;
use super::shared::Shared;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Kernel, Limits, Pass, ROLES, Role};

/// Distance of one pass's parameters from the next one's: the alignment that every device accepts.
const PARAMS_STRIDE: u64 = 256;

/// Where a role's bytes begin.
#[derive(Clone, Copy)]
pub(super) struct Bound<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    pub(super) offset: u64,
}

/// A pass that is ready to be recorded.
pub(super) struct Ready {
    pass: Pass,
    work: Option<(Arc<Pipeline>, wgpu::BindGroup)>,
}

fn role_of(role: gradwire_shaders::Role) -> Role {
    match role {
        gradwire_shaders::Role::Input => Role::Input,
        gradwire_shaders::Role::Residual => Role::Residual,
        gradwire_shaders::Role::Scalars => Role::Scalars,
        gradwire_shaders::Role::Codes => Role::Codes,
        gradwire_shaders::Role::Workspace => Role::Workspace,
        gradwire_shaders::Role::Status => Role::Status,
        gradwire_shaders::Role::Output => Role::Output,
        gradwire_shaders::Role::Indices => Role::Indices,
        gradwire_shaders::Role::Values => Role::Values,
    }
}

/// The pipelines of passes; none if a pass clears.
pub(super) fn pipelines(shared: &Shared, passes: &[Pass]) -> Result<Vec<Option<Arc<Pipeline>>>, Error> {
    // Said as it is, before a shader is missed.
    Limits { shares_factors: false, ..Limits::NONE }.check_kernels(passes, BackendKind::Wgpu)?;
    let of = |pass: &Pass| if pass.kernel == Kernel::Clear { Ok(None) } else { shared.pipeline(pass.kernel).map(Some) };
    passes.iter().map(of).collect()
}

/// A buffer with the parameters of passes. They are in it from the start, so that whatever is submitted before or after
/// finds them.
pub(super) fn parameters(shared: &Shared, passes: &[Pass]) -> Result<wgpu::Buffer, Error> {
    shared.scoped("creating parameters", || {
        let buffer = shared.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("gradwire parameters"),
            size: PARAMS_STRIDE * passes.len().max(1) as u64,
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        let mut view = buffer.get_mapped_range_mut(..).map_err(|e| failed(format!("mapping parameters: {e}")))?;
        for (index, pass) in passes.iter().enumerate() {
            let (at, bytes) = (PARAMS_STRIDE as usize * index, pass.params.as_bytes());
            view.slice(at..at + bytes.len()).copy_from_slice(bytes);
        }
        drop(view);
        buffer.unmap();
        Ok(buffer)
    })?
}

/// Binds what passes work on. A validation error is the caller's to catch.
pub(super) fn bind(
    shared: &Shared,
    passes: &[Pass],
    pipelines: Vec<Option<Arc<Pipeline>>>,
    params: &wgpu::Buffer,
    bound: &[Option<Bound<'_>>; ROLES],
) -> Vec<Ready> {
    let group = |index: usize, pass: &Pass, pipeline: Arc<Pipeline>| {
        let group = bind_one(shared, &pipeline, pass, params, PARAMS_STRIDE * index as u64, bound);
        (pipeline, group)
    };
    let with_pipelines = passes.iter().zip(pipelines).enumerate();
    with_pipelines.map(|(index, (pass, p))| Ready { pass: *pass, work: p.map(|p| group(index, pass, p)) }).collect()
}

fn bind_one(
    shared: &Shared,
    pipeline: &Pipeline,
    pass: &Pass,
    params: &wgpu::Buffer,
    at: u64,
    bound: &[Option<Bound<'_>>; ROLES],
) -> wgpu::BindGroup {
    let part = |buffer, offset, bytes: u64| {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: std::num::NonZeroU64::new(bytes) })
    };
    let size = pass.params.as_bytes().len() as u64;
    let mut entries = vec![wgpu::BindGroupEntry { binding: 0, resource: part(params, at, size) }];
    for (index, binding) in pipeline.shader.bindings.iter().enumerate() {
        let role = role_of(binding.role);
        let span = pass.bindings.of(role);
        let resource = match bound[role as usize].filter(|_| span.bytes > 0) {
            Some(Bound { buffer, offset }) => part(buffer, offset + span.offset, span.bytes.next_multiple_of(4)),
            None => part(&shared.unused[role as usize], 0, 16),
        };
        entries.push(wgpu::BindGroupEntry { binding: index as u32 + 1, resource });
    }
    shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(pipeline.shader.name),
        layout: &pipeline.layout,
        entries: &entries,
    })
}

/// Records passes.
pub(super) fn record(encoder: &mut wgpu::CommandEncoder, ready: &[Ready], bound: &[Option<Bound<'_>>; ROLES]) {
    for Ready { pass, work } in ready {
        let Some((pipeline, group)) = work else {
            for role in [Role::Status, Role::Workspace, Role::Output] {
                let span = pass.bindings.of(role);
                if let Some(Bound { buffer, offset }) = bound[role as usize].filter(|_| span.bytes > 0) {
                    encoder.clear_buffer(buffer, offset + span.offset, Some(span.bytes));
                }
            }
            continue;
        };
        let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        compute.set_pipeline(&pipeline.pipeline);
        compute.set_bind_group(0, group, &[]);
        compute.dispatch_workgroups(pass.groups, 1, 1);
    }
}
