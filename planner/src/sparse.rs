//! Which gradients to merge if compression takes time: OMGS.

use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::groups::Groups;
use crate::pipeline::{Pipeline, Route};
use crate::profile::Profile;

/// Which form of the published rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The rule, for each layer but the first.
    Paper,
    /// As the authors' program applies it: the loop begins one layer late. The first two layers are always merged, and
    /// the program goes on as if the first were exchanged by itself.
    Program,
}

/// The model of Shi et al. (2020), "Communication-efficient distributed deep learning with merged gradient
/// sparsification on GPUs" (OMGS): a group's sparsification delays the backward pass of the layers after it.
///
/// It is a [`Pipeline`] of one route. A larger group starts fewer collectives and sorts less often, or more, if sorting
/// costs more than in proportion; and its exchange begins later.
#[derive(Clone, Debug)]
pub struct Sparse<'p> {
    pipeline: Pipeline<'p>,
}

impl<'p> Sparse<'p> {
    /// A model of these layers, all by this route.
    ///
    /// # Errors
    ///
    /// A cost that is negative, NaN or infinite.
    pub fn new(profile: &'p Profile, route: Route) -> Result<Self, PlanError> {
        Ok(Self { pipeline: Pipeline::new(profile, vec![route])? })
    }

    /// Seconds from the beginning of the forward pass until the last group is there.
    ///
    /// # Errors
    ///
    /// Groups of another number of layers.
    pub fn finish(&self, groups: &Groups) -> Result<f64, PlanError> {
        self.pipeline.finish(&self.pipeline.by(groups.clone(), 0))
    }

    /// The groups that end first, by [`Pipeline::exact`].
    pub fn exact(&self) -> Groups {
        self.pipeline.exact().groups
    }

    /// The groups of the published rule, which decides layer by layer in order of readiness.
    ///
    /// With `S` the time to sparsify, `T` that to exchange, `p` the group so far and `n` the next layer, the layer is
    /// taken in if `t_w < t_save`, where
    ///
    /// - `t_w = backward(n) + S(p + n) - S(p) - S(n) - (start of p's exchange - end of p's sparsification)`,
    /// - `t_save = T(p) + T(n) - T(p + n)`.
    ///
    /// It is no optimum, and unlike the rule of MG-WFBP it is no bound either: it may end later than a group per layer
    /// or than one group, since `t_w` is not how much later the merged exchange begins. That is
    /// `backward(n) + S(p + n) - S(p)` less the same wait: `S(n)` is counted as saved, though it delays no exchange
    /// that has begun.
    ///
    /// The authors' program departs from the paper further: adaptive merging and ratios are switched off by constants
    /// (`ADAPTIVE_MERGE`, `ADAPTIVE_SPARSE`), the density that it would adapt is the constant 0.001, the model of the
    /// sparse all-reduce lacks alpha, and compression uses the one density of the settings whatever was adapted.
    pub fn rule(&self, rule: Rule) -> Groups {
        let layers = self.pipeline.profile().layers();
        let [sparsify, exchange] = [0, 1].map(|part| move |elements| self.pipeline.routes()[0].seconds(elements)[part]);
        let mut begins = vec![0];
        let mut free: f64 = 0.0;
        // When the backward pass of the group's last layer ends.
        let mut computed = self.pipeline.profile().forward() + layers[0].backward;
        let mut group = layers[0].elements;
        for (index, layer) in layers.iter().enumerate().skip(1) {
            let encoded = computed + sparsify(group);
            let start = free.max(encoded);
            let both = group + layer.elements;
            let (own, next) = (sparsify(group), sparsify(layer.elements));
            let waits = layer.backward + sparsify(both) - own - next - (start - encoded);
            let saves = exchange(group) + exchange(layer.elements) - exchange(both);
            let blind = rule == Rule::Program && index == 1;
            if waits < saves && !blind {
                (computed, group) = (computed + layer.backward, both);
            } else {
                if !blind {
                    begins.push(index);
                }
                free = start + exchange(group);
                (computed, group) = (encoded + layer.backward, layer.elements);
            }
        }
        begins.reverse();
        Groups::from_begins(begins, layers.len())
    }
}
