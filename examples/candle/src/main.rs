//! Gradient compression in candle: `cargo run --manifest-path examples/candle/Cargo.toml`.

mod ops;
mod train;

use candle_core::Device;
use train::{Exchange, train};

fn main() -> candle_core::Result<()> {
    // The CPU, unless the feature `cuda` is on and there is a GPU.
    let device = Device::cuda_if_available(0)?;
    for (name, exchange) in [("plain", Exchange::Plain), ("compressed", Exchange::Compressed)] {
        let outcome = train(exchange, &device)?;
        println!(
            "{name}: the loss went from {:.7} to {:.7}; a worker sent {} bytes a step",
            outcome.first, outcome.last, outcome.sent
        );
    }
    Ok(())
}
