//! Medians of timings that fill a slice of time, within a budget for the whole run.

use std::time::{Duration, Instant};

use gradwire::Error;

/// Seconds that one timing fills with repeats.
const SLICE: f64 = 0.06;
/// Timings that a median is of, where the budget allows.
const SAMPLES: f64 = 7.0;
/// The most repeats of one timing, so that a tiny tensor does not fill a device's queue.
const MOST_REPEATS: u32 = 4096;

/// Time that is shared evenly between the measurements that are left.
pub(crate) struct Budget {
    end: Instant,
    left: u32,
}

impl Budget {
    /// Time for this many measurements.
    pub(crate) fn new(time: Duration, measurements: u32) -> Self {
        Self { end: Instant::now() + time, left: measurements.max(1) }
    }

    /// Seconds for the next measurement.
    fn next(&mut self) -> f64 {
        let left = self.end.saturating_duration_since(Instant::now()).as_secs_f64() / f64::from(self.left);
        self.left = (self.left - 1).max(1);
        left
    }

    /// A measurement that does not take place leaves its time to the others.
    pub(crate) fn skip(&mut self) {
        self.left = (self.left - 1).max(1);
    }

    /// Seconds of one run: the median of several timings, each long enough for the clock.
    ///
    /// `run` takes a number of repeats and gives the seconds that they took together.
    pub(crate) fn median(&mut self, run: impl FnMut(u32) -> Result<f64, Error>) -> Result<f64, Error> {
        median_within(self.next(), run)
    }
}

fn median_within(budget: f64, mut run: impl FnMut(u32) -> Result<f64, Error>) -> Result<f64, Error> {
    // The first run pays for pages, caches, clocks that are not up yet and kernels that are compiled when they are
    // first run; it counts only where there is no time at all for another.
    let first = run(1)?;
    if first > 4.0 * budget {
        return Ok(first);
    }
    let (mut repeats, mut spent) = (1, first);
    let mut seconds = run(repeats)?;
    spent += seconds;
    // A single run may take longer than each of many does, so the number of repeats is approached.
    while seconds < SLICE / 2.0 && repeats < MOST_REPEATS && spent < budget / 2.0 {
        let factor = (SLICE / seconds.max(1e-9)).clamp(2.0, 16.0);
        repeats = ((f64::from(repeats) * factor) as u32).min(MOST_REPEATS);
        seconds = run(repeats)?;
        spent += seconds;
    }
    let samples = ((budget - spent) / seconds.max(1e-9) + 1.0).clamp(1.0, SAMPLES) as usize;
    let mut each = vec![seconds / f64::from(repeats)];
    while each.len() < samples {
        each.push(run(repeats)? / f64::from(repeats));
    }
    Ok(median(&mut each))
}

/// The middle value; the mean of both where there are two.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Bytes that an operation cannot do without, each input read once and each output written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Bytes of the gradient in its own type.
    pub(crate) gradient: u64,
    /// Bytes of the gradient as f32: the residual, and what decoding writes.
    pub(crate) wide: u64,
    /// Bytes of the payload's scalars and codes.
    pub(crate) body: u64,
}

impl Floor {
    pub(crate) fn encode(&self) -> u64 {
        self.gradient + self.body
    }

    pub(crate) fn decode(&self) -> u64 {
        self.body + self.wide
    }

    /// The sum is read and written.
    pub(crate) fn decode_add(&self) -> u64 {
        self.body + 2 * self.wide
    }

    /// The residual is read and written.
    pub(crate) fn feedback(&self) -> u64 {
        self.gradient + 2 * self.wide + self.body
    }
}

/// The rate of these bytes over the copy rate in bytes read plus written each second.
pub(crate) fn share(bytes: u64, seconds: f64, copy_rate: f64) -> f64 {
    bytes as f64 / seconds / copy_rate
}

/// 10^9 bytes each second.
pub(crate) fn gbps(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_bytes_that_must_move() {
        // 1000 f16 elements with a payload body of 600 bytes.
        let floor = Floor { gradient: 2000, wide: 4000, body: 600 };
        assert_eq!([floor.encode(), floor.decode(), floor.decode_add(), floor.feedback()], [2600, 4600, 8600, 10600]);
        assert_eq!(share(2600, 2e-6, 2.6e9), 0.5);
        assert_eq!(gbps(2000, 1e-6), 2.0);
    }

    #[test]
    fn the_median_is_of_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 9.0, 2.0]), 3.0);
    }

    #[test]
    fn repeats_fill_a_slice_and_the_cold_run_does_not_count() {
        let mut asked = Vec::new();
        let seconds = median_within(10.0, |repeats| {
            asked.push(repeats);
            Ok(if asked.len() == 1 { 1.0 } else { f64::from(repeats) * 1e-3 })
        });
        assert!((seconds.unwrap() - 1e-3).abs() < 1e-12);
        assert!(asked.iter().filter(|r| f64::from(**r) * 1e-3 >= SLICE / 2.0).count() == SAMPLES as usize, "{asked:?}");
    }

    #[test]
    fn slow_work_stays_within_its_budget() {
        let mut runs = 0;
        let seconds = median_within(1.0, |repeats| {
            runs += repeats;
            Ok(0.3 * f64::from(repeats))
        });
        assert_eq!((seconds.unwrap(), runs), (0.3, 3));
        let compiled = median_within(1.0, |repeats| {
            runs += repeats;
            Ok(if runs == 4 { 2.0 } else { 0.01 * f64::from(repeats) })
        });
        assert!((compiled.unwrap() - 0.01).abs() < 1e-12);
        let once = median_within(0.0, |repeats| Ok(f64::from(repeats) * 2.0));
        assert_eq!(once.unwrap(), 2.0);
    }

    #[test]
    fn a_failure_ends_the_measurement() {
        let mut budget = Budget::new(Duration::from_secs(1), 2);
        assert!(budget.median(|_| Err(Error::TooLong { got: 1 })).is_err());
    }
}
