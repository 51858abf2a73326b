//! The iterations of the first study: every GPU, link, network, number of workers and codec.

use std::fmt::Write as _;

use gradwire_planner::{CodecCost, Groups, Pipeline};

use super::machines::{GPUS, Gpu, LINKS, Link};
use super::network::{Layer, Network};
use super::networks;

/// Workers of the sweep.
pub(super) const WORKERS: [u32; 5] = [1, 2, 4, 8, 16];
/// Samples of an iteration, of all workers together.
pub(super) const SAMPLES: f64 = 256.0;
/// Of sequences.
pub(super) const SEQUENCES: f64 = 16.0;

/// The networks of Grubic et al.
pub(super) fn networks() -> [Network; 7] {
    [
        networks::alexnet(),
        networks::vgg19(),
        networks::resnet50(),
        networks::resnet152(),
        networks::resnet110(),
        networks::bn_inception(),
        networks::lstm(),
    ]
}

/// The codecs of Grubic et al. beside none.
pub(super) const CODECS: [&str; 6] =
    ["1 bit per column", "1 bit / 64", "QSGD 2 / 128", "QSGD 4 / 512", "QSGD 8 / 512", "QSGD 16 / 8192"];

/// Bytes per element of a payload: a bit and two means per column or bucket, or codes and a norm.
pub(super) fn bytes_per_element(codec: usize, network: &Network) -> f64 {
    match codec {
        0 => {
            let bytes = |layer: &Layer| layer.elements as f64 * (0.125 + 8.0 / layer.column as f64);
            network.layers.iter().map(bytes).sum::<f64>() / network.elements() as f64
        }
        1 => 0.125 + 8.0 / 64.0,
        2 => 0.25 + 4.0 / 128.0,
        3 => 0.5 + 4.0 / 512.0,
        4 => 1.0 + 4.0 / 512.0,
        _ => 2.0 + 4.0 / 8192.0,
    }
}

/// Seconds of an iteration by each way.
pub(super) struct Cell {
    /// Each layer by itself, after the backward pass.
    behind: f64,
    /// The best groups beside it.
    beside: f64,
}

/// An iteration of a network with a codec, or without one.
pub(super) fn cell(
    gpu: &Gpu,
    link: &Link,
    network: &Network,
    workers: u32,
    codec: Option<usize>,
) -> Result<Cell, String> {
    let samples = if network.name == "LSTM" { SEQUENCES } else { SAMPLES };
    let profile = gpu.profile(network, samples / f64::from(workers))?;
    let cost = match codec {
        Some(codec) => gpu.two_phases(CODECS[codec], bytes_per_element(codec, network), workers),
        None => CodecCost::dense(),
    };
    let route = link.route(cost, workers)?;
    let compute = profile.forward() + profile.backward();
    // A worker alone sends nothing, and encodes nothing.
    if workers == 1 {
        return Ok(Cell { behind: compute, beside: compute });
    }
    let behind = profile.layers().iter().map(|layer| route.seconds(layer.elements).iter().sum::<f64>()).sum::<f64>();
    let pipeline = Pipeline::new(&profile, vec![route]).map_err(|e| e.to_string())?;
    let (best, _) = pipeline.exact_within(64);
    let single = pipeline.by(Groups::single(profile.layers().len()), 0);
    let finish = |routed| pipeline.finish(routed).map_err(|e| e.to_string());
    Ok(Cell { behind: compute + behind, beside: finish(&best)?.min(finish(&single)?) })
}

/// All iterations.
pub(super) fn csv() -> Result<String, String> {
    let mut text = "gpu,link,network,workers,codec,bytes_per_element,seconds_behind,seconds_beside\n".to_owned();
    for (gpu, link) in GPUS.iter().flat_map(|gpu| LINKS.iter().map(move |link| (gpu, link))) {
        for network in networks() {
            for workers in WORKERS {
                for codec in std::iter::once(None).chain((0..CODECS.len()).map(Some)) {
                    let Cell { behind, beside } = cell(gpu, link, &network, workers, codec)?;
                    let bytes = codec.map_or(4.0, |codec| bytes_per_element(codec, &network));
                    let codec = codec.map_or("none", |codec| CODECS[codec]);
                    let (gpu, link, network) = (gpu.name, link.name, network.name);
                    // Writing into a string does not fail.
                    let _ =
                        writeln!(text, "{gpu},{link},{network},{workers},{codec},{bytes:.4},{behind:.6},{beside:.6}");
                }
            }
        }
    }
    Ok(text)
}

/// How much faster an iteration is with each codec than without one, after the backward pass and beside it.
pub(super) fn gains(gpu: &Gpu, link: &Link, network: &Network, workers: u32) -> Result<Vec<[f64; 2]>, String> {
    let dense = cell(gpu, link, network, workers, None)?;
    let gain = |codec| {
        let own = cell(gpu, link, network, workers, Some(codec))?;
        Ok([dense.behind / own.behind, dense.beside / own.beside])
    };
    (0..CODECS.len()).map(gain).collect()
}
