//! Gradient compression in burn: `cargo run --manifest-path examples/burn/Cargo.toml`.

mod exchange;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use exchange::Exchange;
use gradwire::Qsgd;

const WORKERS: usize = 2;
const SAMPLES: usize = 128;
const STEPS: usize = 1000;
const RATE: f64 = 0.004;

/// A network with one hidden layer.
#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let (hidden, output) = (LinearConfig::new(1, 256), LinearConfig::new(256, 1));
        Self { hidden: hidden.init(device), output: output.init(device) }
    }

    /// The mean squared error.
    fn loss(&self, (x, y): &(Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let error = self.output.forward(self.hidden.forward(x.clone()).tanh()) - y.clone();
        (error.clone() * error).mean()
    }
}

/// A sine, of which each worker has other places.
fn data(worker: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let mixed = |i: u32| {
        let a = (i ^ ((1 + worker as u32) << 16)).wrapping_mul(0x9E37_79B9);
        let b = (a ^ (a >> 15)).wrapping_mul(0x85EB_CA6B);
        (b ^ (b >> 13)) >> 8
    };
    let x: Vec<f32> = (0..SAMPLES as u32).map(|i| mixed(i) as f32 / (1u32 << 23) as f32 - 1.0).collect();
    let y: Vec<f32> = x.iter().map(|x| (3.0 * x).sin()).collect();
    let tensor = |values| Tensor::from_data(TensorData::new(values, [SAMPLES, 1]), device);
    (tensor(x), tensor(y))
}

fn train(exchange: Option<Exchange>) -> Result<(), gradwire::Error> {
    let device = Device::default().autodiff();
    device.seed(42);
    let (mut exchange, mut network, mut optimizer) = (exchange, Network::new(&device), SgdConfig::new().init());
    let data: Vec<_> = (0..WORKERS).map(|worker| data(worker, &device)).collect();
    let loss = |network: &Network| {
        let losses = data.iter().map(|half| network.loss(half).into_scalar::<f32>());
        losses.sum::<f32>() / WORKERS as f32
    };
    let before = loss(&network);
    for _ in 0..STEPS {
        let mean = match &mut exchange {
            Some(exchange) => {
                let of = |half| GradientsParams::from_grads(network.loss(half).backward(), &network);
                exchange.mean(&network, data.iter().map(of).collect())?
            }
            None => {
                let sum = data.iter().map(|half| network.loss(half)).reduce(|a, b| a + b);
                let Some(sum) = sum else { break };
                GradientsParams::from_grads((sum / WORKERS as f32).backward(), &network)
            }
        };
        network = optimizer.step(RATE, network, mean);
    }
    let sent = match &exchange {
        Some(exchange) => exchange.sent,
        None => 4 * network.num_params(),
    };
    let name = if exchange.is_some() { "compressed" } else { "plain" };
    println!("{name}: the loss went from {before:.7} to {:.7}; a worker sent {sent} bytes a step", loss(&network));
    Ok(())
}

fn main() -> Result<(), gradwire::Error> {
    train(None)?;
    train(Some(Exchange::new(gradwire::Device::cpu(), Qsgd::bits(4).bucket(128).contractive(), 42)))
}
