//! The ways that a codec's payloads can take, and the recipes that take them.

use crate::algorithm::Algorithm;
use crate::codec::CodecCost;
use crate::error::PlanError;
use crate::network::Network;
use crate::pipeline::Route;

/// Bytes of a message without payloads: a step in two phases, or by a tree, begins with a gather of them, in which a
/// rank that cannot begin says so.
const HEAD: f64 = 24.0;

/// Every algorithm among these that the codec admits. Payloads that cannot be summed are gathered, whether that is
/// named or not.
pub(crate) fn ways(
    codec: &CodecCost,
    algorithms: &[Algorithm],
    network: &Network,
    ranks: u32,
) -> Result<Vec<(Route, Algorithm)>, PlanError> {
    let ways: Vec<Algorithm> = match codec.sums {
        true => algorithms.iter().copied().filter(|algorithm| algorithm.sums()).collect(),
        false => {
            let may = [(codec.two_phase, Algorithm::TwoPhase), (codec.selects, Algorithm::MergeTree)];
            let may = may.into_iter().filter(|(may, way)| *may && algorithms.contains(way));
            std::iter::once(Algorithm::AllGather).chain(may.map(|(_, way)| way)).collect()
        }
    };
    let route = |algorithm: Algorithm| {
        let mut exchange = algorithm.cost(network, ranks)?;
        exchange.start *= f64::from(codec.rounds);
        if matches!(algorithm, Algorithm::TwoPhase | Algorithm::MergeTree) {
            exchange.start += Algorithm::AllGather.cost(network, ranks)?.at(HEAD);
        }
        let (codec, payloads) = match algorithm {
            // A piece of every rank's, which are one gradient's elements, and the sums of all pieces.
            Algorithm::TwoPhase => (codec.encoded_twice(ranks), 2),
            Algorithm::AllGather => (codec.clone(), ranks),
            // The root merges one per message towards it. The result is decoded.
            Algorithm::MergeTree => (codec.clone(), Algorithm::depth(ranks) + 1),
            _ => (codec.clone(), 1),
        };
        Ok((Route { codec, exchange, payloads }, algorithm))
    };
    ways.into_iter().map(route).collect()
}

/// The recipe that sends a codec's payloads by an algorithm, as text. Without compression it is `none`.
pub(crate) fn recipe(codec: &str, algorithm: Algorithm) -> String {
    match algorithm {
        _ if codec == CodecCost::dense().name => "none".to_owned(),
        Algorithm::TwoPhase => format!("{codec}+twophase"),
        // The residual keeps what a merge drops.
        Algorithm::MergeTree if codec.split('+').any(|word| word == "ef") => format!("{codec}+gtopk"),
        Algorithm::MergeTree => format!("{codec}+ef+gtopk"),
        _ => codec.to_owned(),
    }
}
