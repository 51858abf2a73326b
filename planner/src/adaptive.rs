//! A ratio per layer, with which communication overlaps the backward pass: LAGS.

use serde::{Deserialize, Serialize};

use crate::codec::Curve;
use crate::error::{Place, PlanError, checked};
use crate::line::Line;
use crate::profile::{Layer, Profile};

/// What a layer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Entries of the gradient, from 1 to all.
    pub entries: u64,
    /// Whether selection and exchange fit into the backward time of the next layer. If they do not, the entries are
    /// the fewest that the settings allow.
    pub hidden: bool,
}

/// Costs of sparsified layers, each exchanged by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// Seconds to select, over the layer's elements, whatever the number of entries.
    pub select: Curve,
    /// Seconds of the collective, over the bytes of one rank's entries.
    pub exchange: Line,
    /// Bytes per entry, such as 8 for an index and a value.
    pub bytes_per_entry: f64,
    /// The most that a layer may be compressed, at least 1: a layer of `n` elements sends at least `n` by this many,
    /// rounded up.
    pub most_ratio: f64,
}

impl Adaptive {
    /// For each layer, the most entries whose selection and exchange take no longer than the backward pass of the layer
    /// after it in order of readiness, by the rule of Shi et al. 2019 (LAGS): the least
    /// ratio that overlaps in full, and at most [`most_ratio`](Self::most_ratio). The layer that is ready last has
    /// nothing to overlap with.
    ///
    /// The number is exact: one entry more would not overlap in full.
    ///
    /// ```
    /// use gradwire_planner::{Adaptive, Curve, Layer, Line, Profile};
    ///
    /// let layers = vec![Layer::new("head", 1000, 1.0), Layer::new("stem", 100, 10.0)];
    /// let profile = Profile::new(1.0, layers)?;
    /// let costs = Adaptive {
    ///     select: Curve::Line(Line::new(1.0, 0.0)),
    ///     exchange: Line::new(1.0, 0.0625),
    ///     bytes_per_entry: 8.0,
    ///     most_ratio: 100.0,
    /// };
    /// let shares = costs.shares(&profile)?;
    /// // 1 + 1 + 16 * 8 / 16 = 10 s.
    /// assert_eq!((shares[0].entries, shares[0].hidden), (16, true));
    /// assert_eq!((shares[1].entries, shares[1].hidden), (1, false));
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A cost that is negative, NaN or infinite; a `most_ratio` below 1.
    pub fn shares(&self, profile: &Profile) -> Result<Vec<Share>, PlanError> {
        self.select.check("select")?;
        self.exchange.check("exchange")?;
        checked(|| Place::whole("bytes_per_entry"), self.bytes_per_entry)?;
        checked(|| Place::whole("most_ratio"), self.most_ratio)?;
        if self.most_ratio < 1.0 {
            return Err(PlanError::Ratio { found: self.most_ratio });
        }
        let layers = profile.layers();
        let share = |(index, layer): (usize, &Layer)| {
            let fewest = ((layer.elements as f64 / self.most_ratio).ceil() as u64).clamp(1, layer.elements);
            let Some(behind) = layers.get(index + 1) else { return Share { entries: fewest, hidden: false } };
            let fits = |entries: u64| self.seconds(layer.elements, entries) <= behind.backward;
            if !fits(fewest) {
                return Share { entries: fewest, hidden: false };
            }
            // `most` fits, and what lies above `end` does not.
            let (mut most, mut end) = (fewest, layer.elements);
            while most < end {
                let middle = most + (end - most).div_ceil(2);
                if fits(middle) {
                    most = middle;
                } else {
                    end = middle - 1;
                }
            }
            Share { entries: most, hidden: true }
        };
        Ok(layers.iter().enumerate().map(share).collect())
    }

    /// Seconds to select this many entries of a layer and to exchange them.
    pub fn seconds(&self, elements: u64, entries: u64) -> f64 {
        self.select.at(elements) + self.exchange.at(entries as f64 * self.bytes_per_entry)
    }
}

/// What LAGS assumes of a layer for its theorem, measured: `|x - t|^2 / ((1 - k / n) |x|^2)` for the sum `x` of all
/// ranks' gradients of `n` elements and the sum `t` of their selections of `k` entries each (Shi et al. 2019, LAGS,
/// assumption 1). The denominator is what `k` entries at random leave on average.
///
/// The assumption holds if it is at most 1. It is 0 where both are 0, and infinite where only the denominator is.
/// Sums are in `f64`, in the order of elements.
///
/// # Errors
///
/// Sums of different lengths; more entries than elements.
pub fn delta(sum: &[f32], selected: &[f32], entries: usize) -> Result<f64, PlanError> {
    if selected.len() != sum.len() {
        return Err(PlanError::Length { what: "selected", found: selected.len(), wanted: sum.len() });
    }
    if entries > sum.len() {
        return Err(PlanError::Length { what: "a selection", found: entries, wanted: sum.len() });
    }
    let square = |x: f64| x * x;
    let left: f64 = sum.iter().zip(selected).map(|(&x, &t)| square(f64::from(x) - f64::from(t))).sum();
    let all: f64 = sum.iter().map(|&x| square(f64::from(x))).sum();
    if left == 0.0 {
        return Ok(0.0);
    }
    let at_random = (sum.len() - entries) as f64 / sum.len() as f64 * all;
    Ok(left / at_random)
}
