//! Which gradients to merge: the settings of MG-WFBP.

use gradwire_planner::{Algorithm, Groups, Merging, Network as Link};

use super::machines::GPUS;
use super::network::Network;
use super::networks::{densenet161, densenet201, inception_v4, resnet152};

/// Seconds of an iteration by each way to merge.
pub(super) struct Row {
    pub(super) network: &'static str,
    pub(super) link: &'static str,
    pub(super) workers: u32,
    /// Forward and backward passes.
    pub(super) compute: f64,
    /// Each layer by itself, all at once, the published rule, and the best groups.
    pub(super) seconds: [f64; 4],
}

/// Workers.
pub(super) const WORKERS: [u32; 2] = [16, 64];
/// Samples of each.
pub(super) const SAMPLES: f64 = 32.0;

/// Kepler behind 10 Gb/s and Pascal behind InfiniBand.
pub(super) fn rows() -> Result<Vec<Row>, String> {
    let networks: [fn() -> Network; 4] = [resnet152, inception_v4, densenet161, densenet201];
    let places = [(&GPUS[0], "10GbE"), (&GPUS[1], "InfiniBand")];
    let mut rows = Vec::new();
    for (network, (gpu, link)) in networks.into_iter().flat_map(|network| places.map(|place| (network(), place))) {
        for workers in WORKERS {
            let profile = gpu.profile(&network, SAMPLES)?;
            let cost = Link::preset(link).and_then(|link| Algorithm::Ring.cost(&link, workers));
            let merging = Merging::new(&profile, cost.map_err(|e| e.to_string())?, 4.0).map_err(|e| e.to_string())?;
            let finish = |groups: Groups| merging.finish(&groups).map_err(|e| e.to_string());
            let seconds = [
                finish(merging.wait_free())?,
                finish(merging.single())?,
                finish(merging.greedy())?,
                finish(merging.exact())?,
            ];
            let compute = profile.forward() + profile.backward();
            rows.push(Row { network: network.name, link, workers, compute, seconds });
        }
    }
    Ok(rows)
}
