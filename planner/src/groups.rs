//! Which layers are exchanged together.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::PlanError;

/// A partition of a profile's layers into groups of neighbours in order of readiness. Each group is one exchange.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<usize>", try_from = "Vec<usize>")]
pub struct Groups {
    /// The number of layers in each group.
    lengths: Vec<usize>,
}

impl Groups {
    /// Groups of this many layers each, from the layer that is ready first.
    ///
    /// # Errors
    ///
    /// A group without layers; groups that have more layers or fewer than `layers`.
    pub fn new(lengths: Vec<usize>, layers: usize) -> Result<Self, PlanError> {
        let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        if sum != Some(layers) || lengths.contains(&0) {
            return Err(PlanError::Groups { found: lengths, layers });
        }
        Ok(Self { lengths })
    }

    /// A group per layer: wait-free backpropagation.
    pub fn each(layers: usize) -> Self {
        Self { lengths: vec![1; layers] }
    }

    /// One group, which is exchanged after the backward pass.
    pub fn single(layers: usize) -> Self {
        Self { lengths: if layers == 0 { Vec::new() } else { vec![layers] } }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is no group, which is so for no layer.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// How many layers the groups have together.
    pub fn layers(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The layers of each group, in order of readiness.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.lengths.iter().scan(0, |end, length| {
            let begin = *end;
            *end += length;
            Some(begin..*end)
        })
    }

    /// From the first layer of each group, with the end of the last: what a walk from the last layer finds.
    pub(crate) fn from_begins(mut begins: Vec<usize>, layers: usize) -> Self {
        begins.reverse();
        let ends = begins.iter().skip(1).copied().chain([layers]);
        Self { lengths: begins.iter().zip(ends).map(|(begin, end)| end - begin).collect() }
    }
}

impl From<Groups> for Vec<usize> {
    fn from(groups: Groups) -> Self {
        groups.lengths
    }
}

impl TryFrom<Vec<usize>> for Groups {
    type Error = PlanError;

    /// As [`Groups::new`] for the layers that the lengths sum to.
    fn try_from(lengths: Vec<usize>) -> Result<Self, PlanError> {
        let layers = lengths.iter().fold(0usize, |sum, &length| sum.saturating_add(length));
        Self::new(lengths, layers)
    }
}
