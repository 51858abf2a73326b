//! How one exchange goes: by which recipe and algorithm, or not compressed at all.

use serde::{Deserialize, Serialize};

use crate::algorithm::Algorithm;
use crate::codec::CodecCost;
use crate::error::{Place, PlanError, checked};
use crate::network::Network;
use crate::ways::{recipe, ways};

/// A way for a gradient to become the mean over all ranks, and its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// The text of the recipe, with `+twophase` or `+gtopk` after it where that is the algorithm; `none` without a
    /// codec.
    pub recipe: String,
    /// How its payloads travel.
    pub algorithm: Algorithm,
    /// Seconds to encode, to exchange and to decode.
    pub seconds: f64,
}

/// The algorithm of an exchange, by its size, the ranks and the link.
///
/// [`Question`](crate::Question) plans an iteration: it says which layers to exchange together, and how much of that
/// overlaps the passes. This is of one exchange by itself, without a profile: every way that the codecs admit, by the
/// same costs, and the fastest of them.
///
/// ```
/// use gradwire_planner::{Algorithm, Choice, CodecCost, Curve, Line, Network};
///
/// // Four bits per element, and 20 billion elements per second on either side.
/// let speed = Curve::Line(Line::new(5.0e-6, 5.0e-11));
/// let codec = CodecCost {
///     name: "qsgd:bits=4,bucket=64+ef".to_owned(),
///     encode: speed,
///     decode: speed,
///     bytes_per_element: 0.5625,
///     sums: false,
///     two_phase: true,
///     ..CodecCost::dense()
/// };
/// let engine = [Algorithm::Ring, Algorithm::TwoPhase, Algorithm::MergeTree];
/// let recipe = |network: &str, ranks, elements| {
///     let network = Network::preset(network)?;
///     Ok::<_, gradwire_planner::PlanError>(Choice::new(&network, ranks, elements, &[codec.clone()], &engine, 0.05)?.recipe)
/// };
/// // Over 10 GbE, 16 ranks send pieces of much, and gather little.
/// assert_eq!(recipe("10GbE", 16, 25_000_000)?, "qsgd:bits=4,bucket=64+ef+twophase");
/// assert_eq!(recipe("10GbE", 16, 10_000)?, "qsgd:bits=4,bucket=64+ef");
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The text of the recipe of the fastest way, for `gradwire::Compressor`.
    pub recipe: String,
    /// Its seconds.
    pub seconds: f64,
    /// Seconds of the fastest way without a codec.
    pub dense: f64,
    /// Every way, those without a codec first.
    pub ways: Vec<Way>,
}

impl Choice {
    /// The fastest way for `elements`, by one of these codecs if that saves the share `least_margin` of an exchange
    /// without one, such as 0.05. Of ways that are equally fast the first counts: the same input gives the same
    /// choice.
    ///
    /// `algorithms` are those of the engine, one of them at least an all-reduce; a gather is always among them. The
    /// engines of `gradwire-collectives` sum [directly](Algorithm::Direct). Codecs that need one have
    /// [`CodecCost::two_phase`] and [`CodecCost::selects`].
    ///
    /// # Errors
    ///
    /// No rank, or more than collectives are modelled for; no algorithm that sums; a cost or margin that is negative,
    /// NaN or infinite.
    pub fn new(
        network: &Network,
        ranks: u32,
        elements: u64,
        codecs: &[CodecCost],
        algorithms: &[Algorithm],
        least_margin: f64,
    ) -> Result<Self, PlanError> {
        checked(|| Place::whole("least_margin"), least_margin)?;
        let mut all = Vec::new();
        for codec in std::iter::once(&CodecCost::dense()).chain(codecs) {
            codec.check()?;
            for (route, algorithm) in ways(codec, algorithms, network, ranks)? {
                // One rank sends nothing, and needs no codec.
                let seconds = if ranks == 1 { 0.0 } else { route.seconds(elements).iter().sum() };
                all.push(Way { recipe: recipe(&codec.name, algorithm), algorithm, seconds });
            }
        }
        let least = |ways: &mut dyn Iterator<Item = &Way>| {
            ways.cloned().reduce(|a, b| if b.seconds < a.seconds { b } else { a })
        };
        let dense = least(&mut all.iter().filter(|way| way.recipe == "none"));
        let dense = dense.ok_or_else(|| PlanError::Missing(Place::whole("algorithms, one that sums")))?;
        let best = least(&mut all.iter()).unwrap_or_else(|| dense.clone());
        let pays = best.seconds < dense.seconds && dense.seconds - best.seconds >= least_margin * dense.seconds;
        let Way { recipe, seconds, .. } = if pays { best } else { dense.clone() };
        Ok(Self { recipe, seconds, dense: dense.seconds, ways: all })
    }

    /// The choice as JSON, for ranks that have not made it. Numbers may lose their last bit on the way.
    ///
    /// # Errors
    ///
    /// None of a choice that was made.
    pub fn to_json(&self) -> Result<String, PlanError> {
        serde_json::to_string(self).map_err(json)
    }

    /// The choice that [`Choice::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// No such JSON.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        serde_json::from_str(text).map_err(json)
    }
}

fn json(error: serde_json::Error) -> PlanError {
    PlanError::Json { line: error.line(), column: error.column(), message: error.to_string() }
}
