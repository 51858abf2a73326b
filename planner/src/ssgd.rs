//! Synchronous SGD as a graph: what overlaps with what.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, checked};
use crate::graph::{Graph, Kind, Resource};
use crate::profile::Profile;

/// What runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// Nothing: samples are read, gradients are computed, then all are exchanged, then the model is updated.
    Naive,
    /// The next iteration's samples are read and copied while this one runs.
    Input,
    /// As `Input`, and each gradient is exchanged as soon as it is ready, beside the backward pass of the layers
    /// before it: wait-free backpropagation (Zhang et al. 2017; Awan et al. 2017).
    WaitFree,
}

/// An iteration of synchronous SGD on ranks that are alike. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration<'p> {
    /// Forward and backward passes.
    pub profile: &'p Profile,
    /// To read a batch from storage.
    pub read: f64,
    /// To copy it to the device.
    pub copy: f64,
    /// To update the model.
    pub update: f64,
    /// To exchange each layer's gradient, in the order of the profile's layers.
    pub communication: Vec<f64>,
}

impl Iteration<'_> {
    /// This many iterations, one after the other, as a graph.
    ///
    /// Reading and copying share a resource, as in the paper, where an iteration whose input is overlapped takes at
    /// least the sum of the two.
    ///
    /// # Errors
    ///
    /// Another number of communication times than of layers; a time that is negative, NaN or infinite.
    pub fn graph(&self, overlap: Overlap, iterations: usize) -> Result<Graph, PlanError> {
        let layers = self.profile.layers();
        if self.communication.len() != layers.len() {
            let (found, wanted) = (self.communication.len(), layers.len());
            return Err(PlanError::Length { what: "communication", found, wanted });
        }
        for (field, seconds) in [("read", self.read), ("copy", self.copy), ("update", self.update)] {
            checked(|| Place::whole(field), seconds)?;
        }
        for (index, (layer, &seconds)) in layers.iter().zip(&self.communication).enumerate() {
            checked(|| Place::layer(index, &layer.name, "communication"), seconds)?;
        }
        let mut graph = Graph::default();
        let mut updated: Option<usize> = None;
        for _ in 0..iterations {
            let before: Vec<usize> = updated.into_iter().filter(|_| overlap == Overlap::Naive).collect();
            let read = graph.add("read", Kind::Read, Resource::Input, self.read, &before);
            let copied = graph.add("copy", Kind::Copy, Resource::Input, self.copy, &[read]);
            let before: Vec<usize> = updated.into_iter().chain([copied]).collect();
            graph.add("forward", Kind::Forward, Resource::Compute, self.profile.forward(), &before);
            let backward: Vec<usize> = layers
                .iter()
                .map(|layer| graph.add(&layer.name, Kind::Backward, Resource::Compute, layer.backward, &[]))
                .collect();
            let mut all = Vec::with_capacity(layers.len());
            for (index, layer) in layers.iter().enumerate() {
                let gradient = if overlap == Overlap::WaitFree { index } else { layers.len() - 1 };
                let seconds = self.communication[index];
                let wait = [backward[gradient]];
                all.push(graph.add(&layer.name, Kind::Communicate, Resource::Network, seconds, &wait));
            }
            updated = Some(graph.add("update", Kind::Update, Resource::Compute, self.update, &all));
        }
        Ok(graph)
    }

    /// Seconds per iteration once training has run for a while, by the closed forms of Shi et al. 2018.
    ///
    /// - naive: read + copy + forward + backward + communication + update
    /// - overlapped input: max(read + copy, forward + backward + communication + update)
    /// - wait-free: max(read + copy, forward + the end of the last exchange + update), exchanges in order of readiness
    ///
    /// # Errors
    ///
    /// As [`graph`](Self::graph).
    pub fn seconds(&self, overlap: Overlap) -> Result<f64, PlanError> {
        // The graph of no iteration checks the inputs.
        self.graph(overlap, 0)?;
        let input = self.read + self.copy;
        let computed = self.profile.forward() + self.profile.backward();
        let after = computed + self.communication.iter().sum::<f64>() + self.update;
        Ok(match overlap {
            Overlap::Naive => input + after,
            Overlap::Input => input.max(after),
            Overlap::WaitFree => {
                let ready = self.profile.ready().into_iter().zip(&self.communication);
                input.max(ready.fold(0.0, |end: f64, (ready, seconds)| end.max(ready) + seconds) + self.update)
            }
        })
    }

    /// How many times the samples per second of one rank `ranks` of them reach: the weak scaling of Shi et al. 2018.
    /// One rank does as these do, without communication.
    ///
    /// It is NaN where an iteration takes no time at all.
    ///
    /// # Errors
    ///
    /// As [`graph`](Self::graph).
    pub fn speed_up(&self, overlap: Overlap, ranks: u32) -> Result<f64, PlanError> {
        let alone = Self { communication: vec![0.0; self.communication.len()], ..self.clone() };
        Ok(f64::from(ranks) * alone.seconds(overlap)? / self.seconds(overlap)?)
    }
}

/// The most that overlapping communication with the backward pass gains over doing one after the other:
/// `1 + 1 / (forward / min(backward, communication) + max(r, 1 / r))` with `r = communication / backward`
/// (Shi et al. 2019, LAGS). It is computed as the equal ratio of the sum of the three times to
/// `forward + max(backward, communication)`.
///
/// It is 1 where everything takes no time.
///
/// # Errors
///
/// A time that is negative, NaN or infinite.
pub fn most_speed_up(forward: f64, backward: f64, communication: f64) -> Result<f64, PlanError> {
    for (field, seconds) in [("forward", forward), ("backward", backward), ("communication", communication)] {
        checked(|| Place::whole(field), seconds)?;
    }
    let least = forward + backward.max(communication);
    Ok(if least == 0.0 { 1.0 } else { (forward + backward + communication) / least })
}
