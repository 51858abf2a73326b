//! A cost that is a start-up time and a time per unit, and how it is fitted to measurements.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, checked, positive};

/// Seconds that `units` of work take: `start + per_unit * units`.
///
/// The unit is the user's to say: bytes for a network, elements for a codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds of a piece of work of any size.
    pub start: f64,
    /// Seconds per unit.
    pub per_unit: f64,
}

impl Line {
    /// A line from its two numbers, in seconds and seconds per unit.
    pub const fn new(start: f64, per_unit: f64) -> Self {
        Self { start, per_unit }
    }

    /// Seconds for this many units.
    pub fn at(&self, units: f64) -> f64 {
        self.start + self.per_unit * units
    }

    /// Refuses NaN, infinite and negative numbers, as fields of `of`.
    pub(crate) fn check(&self, of: &str) -> Result<(), PlanError> {
        checked(|| Place::whole(&format!("{of}.start")), self.start)?;
        checked(|| Place::whole(&format!("{of}.per_unit")), self.per_unit).map(drop)
    }
}

/// A line through measurements, and how far each is from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The line.
    pub line: Line,
    /// For each measurement, in order, the seconds measured less those of the line.
    pub residuals: Vec<f64>,
}

impl Fit {
    /// The line of least squares through `(units, seconds)`.
    ///
    /// Each measurement counts alike, so that large sizes, whose errors are large in seconds, weigh most. Measure sizes
    /// of the range that will be used.
    ///
    /// ```
    /// use gradwire_planner::{Fit, Line};
    ///
    /// let fit = Fit::least_squares(&[(0.0, 3.0), (1.0, 4.0), (2.0, 7.0), (3.0, 12.0)])?;
    /// assert_eq!(fit.line, Line::new(2.0, 3.0));
    /// assert_eq!(fit.residuals, [1.0, -1.0, -1.0, 1.0]);
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Measurements at fewer than two sizes; a size or time that is negative, NaN or infinite, with its index
    /// instead of a layer's.
    pub fn least_squares(measured: &[(f64, f64)]) -> Result<Self, PlanError> {
        Self::weighted(measured, |_| 1.0)
    }

    /// The line whose relative errors have the least squares.
    ///
    /// So sizes of several magnitudes count alike, and the start-up time is near that of the smallest.
    ///
    /// ```
    /// use gradwire_planner::Fit;
    ///
    /// // A second, and a second per unit up to 10 units; large ones take longer.
    /// let measured = [(1.0, 2.0), (10.0, 11.0), (1000.0, 1500.0)];
    /// assert!(Fit::least_squares(&measured)?.line.start < 0.0);
    /// let line = Fit::least_relative(&measured)?.line;
    /// assert!((0.7..0.8).contains(&line.start) && (1.2..1.3).contains(&line.per_unit), "{line:?}");
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Fit::least_squares`], and a time of zero.
    pub fn least_relative(measured: &[(f64, f64)]) -> Result<Self, PlanError> {
        for (index, &(_, seconds)) in measured.iter().enumerate() {
            positive(
                || Place::layer(index, "measurement", "seconds"),
                seconds,
                "its errors would be endless parts of it",
            )?;
        }
        Self::weighted(measured, |seconds| 1.0 / (seconds * seconds))
    }

    fn weighted(measured: &[(f64, f64)], weight: impl Fn(f64) -> f64) -> Result<Self, PlanError> {
        for (index, &(units, seconds)) in measured.iter().enumerate() {
            checked(|| Place::layer(index, "measurement", "units"), units)?;
            checked(|| Place::layer(index, "measurement", "seconds"), seconds)?;
        }
        let sum = |of: &dyn Fn(f64, f64) -> f64| measured.iter().map(|m| weight(m.1) * of(m.0, m.1)).sum::<f64>();
        let count = sum(&|_, _| 1.0);
        let (middle, mean) = (sum(&|units, _| units) / count, sum(&|_, seconds| seconds) / count);
        // Around the means, where less is lost to rounding than in sums of squares.
        let spread = sum(&|units, _| (units - middle) * (units - middle));
        if !(spread.is_finite() && spread > 0.0) {
            return Err(PlanError::Fit { sizes: measured.len().min(1) });
        }
        let per_unit = sum(&|units, seconds| (units - middle) * (seconds - mean)) / spread;
        let line = Line::new(mean - per_unit * middle, per_unit);
        let residuals = measured.iter().map(|m| m.1 - line.at(m.0)).collect();
        Ok(Self { line, residuals })
    }

    /// The root of the mean square of the residuals, in seconds.
    pub fn rms(&self) -> f64 {
        let squares: f64 = self.residuals.iter().map(|r| r * r).sum();
        (squares / self.residuals.len().max(1) as f64).sqrt()
    }

    /// The largest residual by magnitude, in seconds.
    pub fn worst(&self) -> f64 {
        self.residuals.iter().fold(0.0, |most, r| r.abs().max(most))
    }
}
