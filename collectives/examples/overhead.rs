//! What an exchange of a compressor costs beside the codec's own calls: `cargo run --release --example overhead`.
//!
//! One rank, a gradient of 2^22 elements, the CPU. Each pair is timed one after the other, 41 times, and the median of
//! the ratios is shown with its quartiles. Both sides encode, hand the bytes to the group, check them and decode.

use std::time::Instant;

use gradwire::{
    Codec, Compressor, Device, Dtype, Error, Gradient, OneBit, PayloadView, Qsgd, Seed, SparsePayload, TopK, Uniform,
};
use gradwire_collectives::{Collective, Threads};

const SIDE: usize = 2048;
const PAIRS: u64 = 41;

/// The codec's own calls, for one step.
type Calls<'c> = Box<dyn FnMut(&mut Threads, &mut [f32], u64) -> Result<(), Error> + 'c>;

fn main() -> Result<(), Error> {
    let device = Device::cpu();
    println!("{device}\n\n{:26} {:>12} {:>12}   ratio (quartiles)", "recipe", "codec", "exchange");
    let quantizers: [(&str, Box<dyn Codec>, bool); 5] = [
        ("qsgd:bits=4,bucket=64", Box::new(Qsgd::bits(4).bucket(64)), false),
        ("uniform:bits=8", Box::new(Uniform::bits(8)), false),
        ("onebit+noef", Box::new(OneBit::new().without_feedback()), false),
        ("qsgd:bits=4,bucket=64+ef", Box::new(Qsgd::bits(4).bucket(64)), true),
        ("onebit", Box::new(OneBit::new()), true),
    ];
    for (text, codec, feedback) in &quantizers {
        compare(&device, text, quantizer(&device, &**codec, *feedback)?)?;
    }
    for (text, feedback) in [("topk:0.01", false), ("topk:0.01+ef", true)] {
        compare(&device, text, selection(&device, feedback))?;
    }
    // With finite, heads are gathered, and the sums are noted for the next step's heads.
    for text in ["none", "none+finite"] {
        compare(&device, text, Box::new(|group, gradient, _| Ok(group.all_reduce_sum(gradient)?)))?;
    }
    Ok(())
}

fn quantizer<'c>(device: &'c Device, codec: &dyn Codec, feedback: bool) -> Result<Calls<'c>, Error> {
    let plan = codec.plan(SIDE * SIDE, Dtype::F32)?;
    let plan = if feedback { plan.with_feedback()? } else { plan };
    let mut residual = vec![0.0; if feedback { SIDE * SIDE } else { 0 }];
    let (mut bytes, mut all) = (vec![0; plan.payload_bytes()], Vec::new());
    Ok(Box::new(move |group, gradient, step| {
        let seed = Seed::new(1).step(step);
        device.encode_plan_into(&plan, Gradient::from(&*gradient), &mut residual, seed, &mut bytes)?;
        group.all_gather(&bytes, &mut all)?;
        let views = all.iter().map(|bytes| PayloadView::from_bytes(bytes)).collect::<Result<Vec<_>, _>>()?;
        device.decode_sum(&views, 1.0, gradient)
    }))
}

fn selection(device: &Device, feedback: bool) -> Calls<'_> {
    let (codec, mut residual, mut all) = (TopK::fraction(0.01), vec![0.0; SIDE * SIDE], Vec::new());
    Box::new(move |group, gradient, step| {
        let seed = Seed::new(1).step(step);
        let sent = if feedback {
            device.encode_sparse_with_feedback(&codec, &*gradient, &mut residual, seed)?
        } else {
            device.encode_sparse(&codec, &*gradient, seed)?
        };
        group.all_gather(sent.as_bytes(), &mut all)?;
        let payloads = all.iter().map(|bytes| SparsePayload::from_bytes(bytes)).collect::<Result<Vec<_>, _>>()?;
        device.decode_sparse_sum(&payloads, 1.0, gradient)
    })
}

fn compare(device: &Device, text: &str, mut calls: Calls<'_>) -> Result<(), Error> {
    let given: Vec<f32> = (0..SIDE * SIDE).map(|i| (i as f32 * 0.7).sin() * (i as f32 * 0.013).cos()).collect();
    let mut compressor = Compressor::new(text, [[SIDE as u64; 2]], 1)?;
    let mut group = Threads::group(1)?.remove(0);
    let mut gradient = given.clone();
    let mut times = Vec::new();
    for step in 0..PAIRS {
        gradient.copy_from_slice(&given);
        let start = Instant::now();
        calls(&mut group, &mut gradient, step)?;
        let codec = start.elapsed().as_secs_f64();
        gradient.copy_from_slice(&given);
        let start = Instant::now();
        compressor.exchange(device, &mut group, &mut gradient)?;
        times.push((codec, start.elapsed().as_secs_f64()));
    }
    let quartile = |mut values: Vec<f64>, part: usize| {
        values.sort_by(f64::total_cmp);
        values[part * (values.len() - 1) / 4]
    };
    let [codec, exchange] = [times.iter().map(|t| t.0).collect(), times.iter().map(|t| t.1).collect()];
    let ratio = |part| quartile(times.iter().map(|(codec, exchange)| exchange / codec).collect(), part);
    let (codec, exchange) = (1e3 * quartile(codec, 2), 1e3 * quartile(exchange, 2));
    println!("{text:26} {codec:9.3} ms {exchange:9.3} ms   {:.3} ({:.3} to {:.3})", ratio(2), ratio(1), ratio(3));
    Ok(())
}
