//! Two workers, each with half of the data, that train one small network.

use candle_core::{Device, Result, Tensor, Var};
use gradwire::{Codec, Dtype, Qsgd, Seed};

use crate::ops::{DecodeMean, Encode};

const WORKERS: usize = 2;
const SAMPLES: usize = 128;
const HIDDEN: usize = 256;
const STEPS: u64 = 1000;
const RATE: f64 = 0.004;

/// How workers tell each other their gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// As they are, 32 bits per element.
    Plain,
    /// QSGD with error feedback, 4 bits per element and a norm for every 128.
    Compressed,
}

/// What training came to.
pub struct Outcome {
    /// The mean squared error before the first step.
    pub first: f32,
    /// The same after the last one.
    pub last: f32,
    /// Bytes that a worker sent in a step.
    pub sent: usize,
}

/// Numbers in -1 .. 1 that every run draws alike.
fn numbers(count: usize, salt: u32) -> Vec<f32> {
    let mixed = |i: u32| {
        let a = (i ^ (salt << 16)).wrapping_mul(0x9E37_79B9);
        let b = (a ^ (a >> 15)).wrapping_mul(0x85EB_CA6B);
        (b ^ (b >> 13)) >> 8
    };
    (0..count as u32).map(|i| mixed(i) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

/// Learns a sine, and says how well.
pub fn train(exchange: Exchange, device: &Device) -> Result<Outcome> {
    let var = |shape: (usize, usize), scale: f64, salt| {
        Var::from_tensor(&(Tensor::from_vec(numbers(shape.0 * shape.1, salt), shape, device)? * scale)?)
    };
    let parameters =
        [var((1, HIDDEN), 3.0, 1)?, var((1, HIDDEN), 2.0, 2)?, var((HIDDEN, 1), 0.05, 3)?, var((1, 1), 0.1, 4)?];
    let data = (0..WORKERS).map(|worker| {
        let x = Tensor::from_vec(numbers(SAMPLES, 100 + worker as u32), (SAMPLES, 1), device)?;
        let y = (&x * 3.0)?.sin()?;
        Ok((x, y))
    });
    let data = data.collect::<Result<Vec<_>>>()?;
    let loss = |(x, y): &(Tensor, Tensor)| {
        let [w1, b1, w2, b2] = &parameters;
        let hidden = x.matmul(w1)?.broadcast_add(b1)?.tanh()?;
        (hidden.matmul(w2)?.broadcast_add(b2)? - y)?.sqr()?.mean_all()
    };
    let mean_loss = || -> Result<f32> {
        let losses = data.iter().map(|half| loss(half)?.to_scalar::<f32>());
        Ok(losses.sum::<Result<f32>>()? / WORKERS as f32)
    };

    // An op for each parameter of each worker, since each has a residual of its own.
    let plans = parameters.iter().map(|parameter| {
        let codec = Qsgd::bits(4).bucket(128).contractive();
        codec.plan(parameter.elem_count(), Dtype::F32).and_then(|plan| plan.with_feedback())
    });
    let plans = plans.collect::<std::result::Result<Vec<_>, _>>().map_err(candle_core::Error::wrap)?;
    let encoders: Vec<Vec<Encode>> =
        (0..WORKERS).map(|_| plans.iter().map(|plan| Encode::new(plan.clone())).collect()).collect();

    let first = mean_loss()?;
    let mut sent = 0;
    for step in 0..STEPS {
        let gradients = data.iter().map(|half| loss(half)?.backward()).collect::<Result<Vec<_>>>()?;
        sent = 0;
        for (index, (parameter, plan)) in parameters.iter().zip(&plans).enumerate() {
            let of = |worker: usize| {
                let gradient = gradients[worker].get(parameter);
                gradient.ok_or_else(|| candle_core::Error::msg("a parameter has no gradient"))
            };
            let mean = if exchange == Exchange::Plain {
                sent += 4 * parameter.elem_count();
                let gathered = (0..WORKERS).map(of).collect::<Result<Vec<_>>>()?;
                Tensor::stack(&gathered, 0)?.mean(0)?
            } else {
                let encode = |worker: usize| {
                    let encoder = &encoders[worker][index];
                    // Workers draw apart, so that their errors average out.
                    encoder.seed(Seed::new(42).step(step).tensor(index as u32).worker(worker as u32))?;
                    of(worker)?.flatten_all()?.apply_op1_no_bwd(encoder)
                };
                let bodies = (0..WORKERS).map(encode).collect::<Result<Vec<_>>>()?;
                sent += plan.payload_bytes();
                // The all-gather of a real run.
                let gathered = Tensor::cat(&bodies, 0)?;
                gathered.apply_op1_no_bwd(&DecodeMean::new(plan, WORKERS as u32))?.reshape(parameter.shape())?
            };
            parameter.set(&(parameter.as_tensor() - (mean * RATE)?)?)?;
        }
    }
    Ok(Outcome { first, last: mean_loss()?, sent })
}
