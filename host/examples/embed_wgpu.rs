//! Inside somebody's wgpu program: their device as it is, their buffers, their encoder; they submit:
//! `cargo run --release --example embed_wgpu`.

use std::error::Error;

use gradwire::backend::wgpu::Wgpu;
use gradwire::embed::{Decode, DecodeBuffers, Encode, EncodeBuffers};
use gradwire::wgpu::{self, BufferUsages};
use gradwire::{Codec, DecodeMode, DecodePlan, Device, Dtype, Qsgd, Seed};
use pollster::block_on;

const N: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    // The program's own device, with the default limits and no feature.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let adapter =
        adapters.into_iter().next().ok_or("there is no adapter: install a GPU's driver, or mesa-vulkan-drivers")?;
    let (device, queue) = block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))?;
    let buffer = |bytes: u64| {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false })
    };

    let gradwire = Wgpu::on(&device, &queue)?;
    println!("{}", gradwire.name());
    for advice in gradwire.advice() {
        println!("  it would be faster with {advice}");
    }
    let codec = Qsgd::bits(4);
    let plan = codec.plan(N, Dtype::F32)?;
    let header = *plan.header();

    // The gradient comes from the program's own shaders; here it is written.
    let x: Vec<f32> = (0..N).map(|i| (i as f32 * 0.37).sin()).collect();
    let (gradient, body, sum) = (buffer(4 * N as u64), buffer(header.body_bytes()), buffer(4 * N as u64));
    let staging = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: header.body_bytes(),
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    queue.write_buffer(&gradient, 0, bytemuck::cast_slice(&x));

    // Compression is a few more commands in the program's encoder.
    let seed = Seed::new(42).step(1);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    gradwire.record(Encode { plan: &plan, seed }, &mut encoder, buffers)?;
    let to = DecodeBuffers { bodies: body.slice(..), output: sum.slice(..) };
    gradwire.record(Decode { plan: &DecodePlan::new(header, 1), mode: DecodeMode::Add(0.5) }, &mut encoder, to)?;
    encoder.copy_buffer_to_buffer(&body, 0, &staging, 0, header.body_bytes());
    queue.submit([encoder.finish()]);

    // What goes on the wire.
    staging.map_async(wgpu::MapMode::Read, .., |result| result.expect("the buffer can be mapped"));
    device.poll(wgpu::PollType::wait_indefinitely())?;
    let payload = header.seal(&staging.get_mapped_range(..)?)?;
    assert_eq!(payload, Device::cpu().encode(&codec, &x, seed)?, "the payload is the CPU's");
    println!("{} bytes of gradient in {} bytes", 4 * N, payload.as_bytes().len());
    Ok(())
}
