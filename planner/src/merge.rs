//! Which gradients to merge where compression takes no time: MG-WFBP.

use crate::error::{Place, PlanError, checked};
use crate::groups::Groups;
use crate::line::Line;
use crate::profile::Profile;

/// The model of Shi, Chu and Li (2019), "MG-WFBP: efficient data communication for distributed synchronous SGD
/// algorithms": gradients are exchanged in groups, one group at a time, each as soon as its last gradient is ready and
/// the group before it is through.
///
/// A group ends at `max(end of the group before, readiness of its last layer) + collective(bytes)`.
///
/// ```
/// use gradwire_planner::{Algorithm, Layer, Merging, Network, Profile};
///
/// let layers = [("head", 1_000_000, 0.010), ("body", 50, 0.005), ("stem", 50, 0.005)];
/// let layers = layers.map(|(name, elements, backward)| Layer::new(name, elements, backward)).to_vec();
/// let profile = Profile::new(0.0, layers)?;
/// let collective = Algorithm::Ring.cost(&Network::preset("1GbE")?, 8)?;
/// let merging = Merging::new(&profile, collective, 4.0)?;
/// let best = merging.exact();
/// assert_eq!(Vec::from(best.clone()), [1, 2]);
/// assert!(merging.finish(&best)? < merging.finish(&merging.wait_free())?);
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Merging<'p> {
    profile: &'p Profile,
    collective: Line,
    bytes_per_element: f64,
    ready: Vec<f64>,
}

impl<'p> Merging<'p> {
    /// A model of these layers, with a collective in seconds over bytes and this many bytes per element.
    ///
    /// # Errors
    ///
    /// A number that is negative, NaN or infinite.
    pub fn new(profile: &'p Profile, collective: Line, bytes_per_element: f64) -> Result<Self, PlanError> {
        collective.check("collective")?;
        checked(|| Place::whole("bytes_per_element"), bytes_per_element)?;
        Ok(Self { profile, collective, bytes_per_element, ready: profile.ready() })
    }

    /// A group per layer.
    pub fn wait_free(&self) -> Groups {
        Groups::each(self.ready.len())
    }

    /// One group of all layers.
    pub fn single(&self) -> Groups {
        Groups::single(self.ready.len())
    }

    /// Seconds from the beginning of the forward pass until the last group is exchanged.
    ///
    /// # Errors
    ///
    /// Groups of another number of layers.
    pub fn finish(&self, groups: &Groups) -> Result<f64, PlanError> {
        if groups.layers() != self.ready.len() {
            return Err(PlanError::Groups { found: groups.clone().into(), layers: self.ready.len() });
        }
        Ok(groups.ranges().fold(0.0, |end: f64, group| {
            let elements = self.profile.layers()[group.clone()].iter().map(|layer| layer.elements).sum();
            end.max(self.ready[group.end - 1]) + self.exchange(elements)
        }))
    }

    /// The groups that end first, by dynamic programming in `O(L^2)` for `L` layers.
    ///
    /// The least end of the first `j` layers is the least over the layer `i` that begins the last group of
    /// `max(least end of the first i layers, readiness of layer j - 1) + collective(bytes from i to j)`: a group never
    /// ends later for a group before it that ends earlier. Of groups that end alike, the last group is the largest.
    pub fn exact(&self) -> Groups {
        let count = self.ready.len();
        let mut least = vec![0.0];
        let mut begin = Vec::with_capacity(count);
        for end in 1..=count {
            let (mut best, mut from, mut elements) = (f64::INFINITY, 0, 0);
            for first in (0..end).rev() {
                elements += self.profile.layers()[first].elements;
                let through = f64::max(least[first], self.ready[end - 1]) + self.exchange(elements);
                if through <= best {
                    (best, from) = (through, first);
                }
            }
            least.push(best);
            begin.push(from);
        }
        let mut begins = Vec::new();
        let mut end = count;
        while end > 0 {
            end = begin[end - 1];
            begins.push(end);
        }
        Groups::from_begins(begins, count)
    }

    /// The groups of the published rule, Algorithm 1 of the paper, which decides layer by layer in order of readiness.
    ///
    /// A group takes in the next layer if that layer is ready before the group would be through, and if it is ready
    /// before the group can begin or keeps it from beginning for less than the collective's start-up time. Every
    /// decision is final, so that the result is no optimum; it is never worse than [`wait_free`](Self::wait_free) or
    /// [`single`](Self::single).
    ///
    /// The authors' programs depart from it:
    ///
    /// - In MG-WFBP, where collectives were timed, the merged group's time is looked up by the layer's number in a
    ///   table that is keyed by sizes (`size_commtime_dict[l-1]`).
    /// - In the copy within OMGS, the start of an exchange is the larger of `tc[l+1] + tc[l+1]`, twice the exchange
    ///   before it, and readiness. The first addend should be its start.
    /// - In that copy, the loop begins at the second layer, so that the first is merged with it whatever the costs, and
    ///   is not counted in its size.
    /// - In that copy, the layer that is ready last counts as ready when its backward pass begins (`taob[0]`).
    pub fn greedy(&self) -> Groups {
        let layers = self.profile.layers();
        let mut begins = vec![0];
        let mut free: f64 = 0.0;
        let mut elements = layers[0].elements;
        for (next, layer) in layers.iter().enumerate().skip(1) {
            let begin = free.max(self.ready[next - 1]);
            let through = begin + self.exchange(elements);
            let ready = self.ready[next];
            let merges = ready < through && (begin > ready || ready - begin < self.collective.start);
            if !merges {
                begins.push(next);
                free = through;
                elements = 0;
            }
            elements += layer.elements;
        }
        begins.reverse();
        Groups::from_begins(begins, layers.len())
    }

    fn exchange(&self, elements: u64) -> f64 {
        self.collective.at(elements as f64 * self.bytes_per_element)
    }
}
