//! What to do: groups, codecs and algorithms, and whether to compress at all.

use std::fmt;

use serde::Serialize;

use crate::algorithm::Algorithm;
use crate::codec::CodecCost;
use crate::error::{Place, PlanError, checked};
use crate::graph::Graph;
use crate::groups::Groups;
use crate::message::{Message, Sent};
use crate::network::Network;
use crate::pipeline::{Pipeline, Route, Routed};
use crate::profile::Profile;
use crate::ways::{recipe, ways};

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Question<'q> {
    /// Forward and backward passes of one rank.
    pub profile: &'q Profile,
    /// The link between ranks.
    pub network: Network,
    /// How many ranks there are.
    pub ranks: u32,
    /// Codecs whose accuracy will do, beside none at all. A plan knows their time alone.
    pub codecs: &'q [CodecCost],
    /// Algorithms that there are, one of them at least an all-reduce. Payloads that cannot be summed are gathered, and
    /// those of quantizers may go in two phases where [`Algorithm::TwoPhase`] is among these, and selections may be
    /// merged where [`Algorithm::MergeTree`] is. A merge counts as a decode. It keeps fewer entries than a gather, and
    /// needs error feedback.
    pub algorithms: &'q [Algorithm],
    /// The share of an iteration that compression must save to be worth it, such as 0.05.
    pub least_margin: f64,
    /// The most states per layer of the search, such as 256; see [`Pipeline::exact_within`].
    pub states: usize,
}

/// Whether compression pays. A margin is the share of the best iteration without it that it saves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It saves this share, at least the margin that was asked for.
    Compress {
        /// The share saved.
        margin: f64,
    },
    /// It saves this share, which is less than was asked for, or 0.
    DoNotCompress {
        /// The share that the best compressed plan would save.
        margin: f64,
    },
}

/// A group of layers that is exchanged at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedGroup {
    /// The index of its first layer in order of readiness.
    pub first: usize,
    /// How many layers it has.
    pub layers: usize,
    /// Elements of all of them.
    pub elements: u64,
    /// The codec's name.
    pub codec: String,
    /// How its payloads travel.
    pub algorithm: Algorithm,
}

/// One codec by one algorithm: seconds of an iteration, by how gradients are merged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The codec's name.
    pub codec: String,
    /// How its payloads travel.
    pub algorithm: Algorithm,
    /// Each layer by itself.
    pub wait_free: f64,
    /// All at once.
    pub single: f64,
    /// The best groups.
    pub merged: f64,
    /// Whether the search for those was complete.
    pub complete: bool,
}

/// A verdict, the groups of layers, and the assumptions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Whether to compress.
    pub verdict: Verdict,
    /// Seconds of an iteration by this plan, from the beginning of the forward pass until all gradients are there.
    pub seconds: f64,
    /// Seconds of the best iteration without compression.
    pub dense: f64,
    /// Seconds of the forward and backward passes, which no plan goes below.
    pub compute: f64,
    /// The groups, in order of readiness.
    pub groups: Vec<PlannedGroup>,
    /// The same for a training: names of tensors, and recipes. [`Message::from_plan`] reads them from the plan's JSON.
    pub messages: Vec<Message>,
    /// Whether the search was complete, so that no plan of the model is faster.
    pub complete: bool,
    /// Every codec by every algorithm.
    pub rows: Vec<Row>,
    /// The assumptions of the prediction.
    pub rests_on: Vec<String>,
    /// Its tasks, of which [`gantt`](crate::gantt) draws a chart.
    #[serde(skip)]
    pub graph: Graph,
}

impl Question<'_> {
    /// The fastest plan of the model, if it saves enough; otherwise the fastest without compression.
    ///
    /// Groups may differ in codec and algorithm. The model is that of [`Pipeline`]: gradients without a codec take no
    /// time to encode and decode; payloads that are gathered are decoded one by one, as many as there are ranks.
    ///
    /// # Errors
    ///
    /// More ranks than collectives are modelled for; no algorithm that sums; a cost or margin that is negative, NaN or
    /// infinite.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        checked(|| Place::whole("least_margin"), self.least_margin)?;
        let dense = self.routes(&CodecCost::dense())?;
        if dense.is_empty() {
            return Err(PlanError::Missing(Place::whole("algorithms, one that sums")));
        }
        let mut routes = dense.clone();
        for codec in self.codecs {
            routes.extend(self.routes(codec)?);
        }
        let pipeline_of =
            |routes: &[(Route, Algorithm)]| Pipeline::new(self.profile, routes.iter().map(|r| r.0.clone()).collect());
        let (plain, all) = (pipeline_of(&dense)?, pipeline_of(&routes)?);
        let (plain_plan, plain_complete) = plain.exact_within(self.states);
        let (best_plan, best_complete) = all.exact_within(self.states);
        let (plain_seconds, best_seconds) = (plain.finish(&plain_plan)?, all.finish(&best_plan)?);
        let margin = if plain_seconds > 0.0 { ((plain_seconds - best_seconds) / plain_seconds).max(0.0) } else { 0.0 };
        let compressed = best_plan.routes.iter().any(|&route| route >= dense.len());
        let pays = compressed && margin > 0.0 && margin >= self.least_margin;
        let verdict = if pays { Verdict::Compress { margin } } else { Verdict::DoNotCompress { margin } };
        // Routes without a codec come first, so that their numbers agree.
        let (routed, seconds) = if pays { (&best_plan, best_seconds) } else { (&plain_plan, plain_seconds) };
        let groups = self.groups(routed, &routes);
        Ok(Plan {
            verdict,
            seconds,
            dense: plain_seconds,
            compute: self.profile.forward() + self.profile.backward(),
            messages: groups.iter().map(|group| self.message(group)).collect(),
            groups,
            complete: plain_complete && best_complete,
            rows: self.rows(&routes)?,
            rests_on: self.rests_on(),
            graph: all.graph(routed)?,
        })
    }

    /// The ways that a codec's payloads can take.
    fn routes(&self, codec: &CodecCost) -> Result<Vec<(Route, Algorithm)>, PlanError> {
        ways(codec, self.algorithms, &self.network, self.ranks)
    }

    fn groups(&self, routed: &Routed, routes: &[(Route, Algorithm)]) -> Vec<PlannedGroup> {
        let planned = |(range, &route): (std::ops::Range<usize>, &usize)| PlannedGroup {
            first: range.start,
            layers: range.len(),
            elements: self.profile.layers()[range].iter().map(|layer| layer.elements).sum(),
            codec: routes[route].0.codec.name.clone(),
            algorithm: routes[route].1,
        };
        routed.groups.ranges().zip(&routed.routes).map(planned).collect()
    }

    /// The message of a group in a training. Without compression its recipe is `none`.
    fn message(&self, group: &PlannedGroup) -> Message {
        let layers = &self.profile.layers()[group.first..group.first + group.layers];
        let sent = layers.iter().map(|layer| Sent { name: layer.name.clone(), elements: layer.elements });
        let recipe = recipe(&group.codec, group.algorithm);
        Message { tensors: sent.collect(), recipe }
    }

    fn rows(&self, routes: &[(Route, Algorithm)]) -> Result<Vec<Row>, PlanError> {
        let count = self.profile.layers().len();
        let row = |(route, algorithm): &(Route, Algorithm)| {
            let pipeline = Pipeline::new(self.profile, vec![route.clone()])?;
            let (merged, complete) = pipeline.exact_within(self.states);
            Ok(Row {
                codec: route.codec.name.clone(),
                algorithm: *algorithm,
                wait_free: pipeline.finish(&pipeline.by(Groups::each(count), 0))?,
                single: pipeline.finish(&pipeline.by(Groups::single(count), 0))?,
                merged: pipeline.finish(&merged)?,
                complete,
            })
        };
        routes.iter().map(row).collect()
    }

    fn rests_on(&self) -> Vec<String> {
        let (alpha, beta) = (self.network.alpha(), self.network.beta());
        vec![
            format!("{} ranks that are alike, over links of {alpha:e} s and {beta:e} s per byte", self.ranks),
            format!("a profile of {} layers, the same in every iteration", self.profile.layers().len()),
            "one exchange at a time, which does not slow compute down".to_owned(),
            "decoding beside the backward pass, which does not slow it down".to_owned(),
            "codecs that reach the accuracy wanted in as many iterations".to_owned(),
        ]
    }
}

impl fmt::Display for Plan {
    /// The table of choices, in milliseconds, and the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two spaces after the longest name.
        let name = self.rows.iter().map(|row| row.codec.chars().count() + 2).fold(28, usize::max);
        writeln!(f, "{:<name$}{:<20}{:>12}{:>12}{:>12}", "codec", "algorithm", "wait-free", "single", "merged")?;
        for row in &self.rows {
            let [wait_free, single, merged] =
                [row.wait_free, row.single, row.merged].map(|s| format!("{:.3}", s * 1e3));
            let about = if row.complete { "" } else { " at most" };
            let algorithm = format!("{:?}", row.algorithm);
            writeln!(f, "{:<name$}{algorithm:<20}{wait_free:>12}{single:>12}{merged:>12}{about}", row.codec)?;
        }
        let (ms, dense, compute) = (self.seconds * 1e3, self.dense * 1e3, self.compute * 1e3);
        match self.verdict {
            Verdict::Compress { margin } => {
                writeln!(f, "compress: {ms:.3} ms in {} groups", self.groups.len())?;
                writeln!(f, "that saves {:.1} % of {dense:.3} ms without codecs", margin * 100.0)?;
            }
            Verdict::DoNotCompress { margin } => {
                writeln!(f, "do not compress: {ms:.3} ms in {} groups", self.groups.len())?;
                writeln!(f, "codecs would save {:.1} % of it", margin * 100.0)?;
            }
        }
        writeln!(f, "compute alone takes {compute:.3} ms")?;
        self.rests_on.iter().try_for_each(|what| writeln!(f, "rests on: {what}"))
    }
}
