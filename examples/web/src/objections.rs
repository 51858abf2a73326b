//! What a device objects to, in a browser: its answers come when nobody waits for them, and have to be typed errors all
//! the same.

use std::fmt::Write as _;

use gradwire::backend::wgpu::Wgpu;
use gradwire::embed::{Encode, EncodeBuffers};
use gradwire::wgpu::{self, BufferUsages};
use gradwire::{Codec, Dtype, Error, Qsgd, Seed, TopK};
use wasm_bindgen::prelude::*;

/// Provokes objections, and says what became of them.
pub async fn provoked(gpu: &Wgpu, gradient: &[f32]) -> Result<String, JsError> {
    let mut said = String::new();
    let [(device, queue), (other, _)] = [own().await?, own().await?];
    let small = Wgpu::on(&device, &queue)?;

    // Known before the device is asked.
    let most = device.limits().max_buffer_size;
    let large = vec![0.0f32; most as usize / 4 + 1];
    let plan = Qsgd::bits(4).plan(large.len(), Dtype::F32)?;
    let refused = small.encode_async(&plan, (&large).into(), &mut [], Seed::new(1)).await.map(|_| ());
    match refused {
        Err(error @ Error::Limit { limit: "max_buffer_size", .. }) => writeln!(said, "too large a gradient: {error}")?,
        other => return Err(unexpected("too large a gradient", &other)),
    }
    drop(large);

    // Known to the device alone: a scope's answer.
    let plan = Qsgd::bits(4).plan(1000, Dtype::F32)?;
    let room = |device: &wgpu::Device| {
        let usage = BufferUsages::STORAGE;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 1 << 16, usage, mapped_at_creation: false })
    };
    for (owner, fits) in [(&device, true), (&other, false)] {
        let (from, body) = (room(owner), room(&device));
        let recorded = small
            .checked("recording", || {
                let mut encoder = device.create_command_encoder(&Default::default());
                let (gradient, body) = (from.slice(..), body.slice(..));
                let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
                small.record(Encode { plan: &plan, seed: Seed::new(1) }, &mut encoder, buffers)
            })
            .await;
        match (recorded, fits) {
            (Ok(()), true) => {}
            (Err(error @ Error::Backend { .. }), false) => writeln!(said, "another device's buffer: {error}")?,
            (other, _) => return Err(unexpected("recording", &other)),
        }
    }
    // It was no one else's.
    let plan = Qsgd::bits(4).plan(gradient.len(), Dtype::F32)?;
    for gpu in [gpu, &small] {
        gpu.encode_async(&plan, gradient.into(), &mut [], Seed::new(1)).await?;
    }

    device.destroy();
    let dense = small.encode_async(&plan, gradient.into(), &mut [], Seed::new(1)).await.map(|_| ());
    let sparse = small.encode_sparse_async(&TopK::count(9), gradient.into(), None, Seed::new(1)).await.map(|_| ());
    for lost in [dense, sparse] {
        match lost {
            Err(error @ Error::Backend { .. }) => writeln!(said, "a device that was lost: {error}")?,
            other => return Err(unexpected("a device that was lost", &other)),
        }
    }
    Ok(said)
}

fn unexpected(what: &str, outcome: &Result<(), Error>) -> JsError {
    JsError::new(&format!("{what} gave {outcome:?}"))
}

/// A device of the default limits.
async fn own() -> Result<(wgpu::Device, wgpu::Queue), JsError> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    let adapter = adapters.into_iter().next().ok_or_else(|| JsError::new("the adapter is gone"))?;
    Ok(adapter.request_device(&wgpu::DeviceDescriptor::default()).await?)
}
