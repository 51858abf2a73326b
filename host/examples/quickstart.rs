//! The README's sixty seconds: `cargo run --release --example quickstart`.

use gradwire::{Device, Payload, Qsgd, Seed};

fn main() -> Result<(), gradwire::Error> {
    let (workers, rank, run, step, layer) = (2.0, 0, 42, 1, 0);
    let gradient: Vec<f32> = (0..10_000).map(|i| (i as f32 * 0.01).sin()).collect();
    let mut sum = vec![0.0f32; gradient.len()];

    // Once: opening takes as long as thousands of steps.
    let device = Device::open()?;
    println!("{device}");
    for passed_over in device.why() {
        println!("  passed over: {passed_over}");
    }
    let codec = Qsgd::bits(4).bucket(512);
    // Its own draws on each worker, so that rounding errors average out.
    let seed = Seed::new(run).step(step).tensor(layer).worker(rank);

    let payload = device.encode(&codec, &gradient, seed)?;
    println!("{} bytes of gradient in {} bytes", gradient.len() * 4, payload.as_bytes().len());
    let received = Payload::from_bytes(payload.as_bytes())?;
    device.decode_add(&received, 1.0 / workers, &mut sum)?;
    println!("element 100 is {}, and half of what was decoded is {}", gradient[100], sum[100]);
    Ok(())
}
