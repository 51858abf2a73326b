//! The methods of GRACE on ResNet-50, by the bytes of our payloads.

use gradwire::{Device, Recipe, Seed};
use gradwire_planner::{Algorithm, CodecCost, Network as Link, Pipeline, Route};
use gradwire_tests::data;

use super::machines::GPUS;
use super::network::Network;
use super::networks::resnet50;

/// Links, in Gb/s.
pub(super) const RATES: [f64; 3] = [1.0, 10.0, 25.0];
/// Workers, and samples of each.
pub(super) const WORKERS: u32 = 8;
pub(super) const SAMPLES: f64 = 64.0;
/// Seconds of a message: 10GbE's of the planner.
const ALPHA: f64 = 3.03e-5;

/// A method on all links.
pub(super) struct Row {
    pub(super) method: &'static str,
    /// Bytes per element of a rank's payload.
    pub(super) bytes: f64,
    /// How many times as fast as without compression an iteration is, at each rate.
    pub(super) gains: [f64; RATES.len()],
}

/// What a method's payload has per element, and whether ranks sum it on the way.
fn payload(recipe: &Recipe, text: &str, network: &Network) -> Result<(f64, bool), String> {
    let gradient = &data::digits();
    let (device, per) = (Device::cpu(), |bytes: usize| bytes as f64 / gradient.len() as f64);
    if let Some(codec) = recipe.quantizer() {
        let sent = device.encode(&codec, gradient, Seed::new(1)).map_err(|e| e.to_string())?;
        return Ok((per(sent.as_bytes().len()), false));
    }
    if let Some(codec) = recipe.selection() {
        let sent = device.encode_sparse(&codec, gradient, Seed::new(1)).map_err(|e| e.to_string())?;
        return Ok((per(sent.as_bytes().len()), false));
    }
    if let Some(text) = text.strip_suffix("+vote") {
        let alone: Recipe = text.parse().map_err(|e: gradwire::Error| e.to_string())?;
        return payload(&alone, text, network);
    }
    // Two columns of each matrix, which is taken to be square.
    let columns = network.layers.iter().map(|layer| 2.0 * (layer.elements as f64).sqrt()).sum::<f64>();
    match text.split([':', ',']).collect::<Vec<_>>()[..] {
        ["none"] => Ok((4.0, true)),
        ["randomk", part] => Ok((4.0 * part.parse::<f64>().map_err(|_| format!("{part:?} is no part"))?, true)),
        ["powersgd", ..] => Ok((4.0 * columns / network.elements() as f64, true)),
        _ => Err(format!("{text}: the size of its payload is not known")),
    }
}

/// All methods.
pub(super) fn rows() -> Result<Vec<Row>, String> {
    let (network, gpu) = (resnet50(), &GPUS[1]);
    let profile = gpu.profile(&network, SAMPLES)?;
    let seconds = |cost: &CodecCost, rate: f64| -> Result<f64, String> {
        let link = Link::new(ALPHA, 8.0 / (rate * 1e9)).map_err(|e| e.to_string())?;
        let algorithm = if cost.sums { Algorithm::Ring } else { Algorithm::AllGather };
        let exchange = algorithm.cost(&link, WORKERS).map_err(|e| e.to_string())?;
        let payloads = if cost.sums { 1 } else { WORKERS };
        let route = Route { codec: cost.clone(), exchange, payloads };
        let pipeline = Pipeline::new(&profile, vec![route]).map_err(|e| e.to_string())?;
        pipeline.finish(&pipeline.exact_within(64).0).map_err(|e| e.to_string())
    };
    let mut rows = Vec::new();
    for method in Recipe::methods() {
        let recipe: Recipe = method.recipe.parse().map_err(|e: gradwire::Error| e.to_string())?;
        let (bytes, sums) = payload(&recipe, method.recipe, &network)?;
        let cost = if recipe.is_none() { CodecCost::dense() } else { gpu.gathered(method.name, bytes, sums) };
        let mut gains = [0.0; RATES.len()];
        for (gain, rate) in gains.iter_mut().zip(RATES) {
            *gain = seconds(&CodecCost::dense(), rate)? / seconds(&cost, rate)?;
        }
        rows.push(Row { method: method.name, bytes, gains });
    }
    Ok(rows)
}
