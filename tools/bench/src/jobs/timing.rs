//! Timings: warm-up, then many samples, each long enough for the clock and for launches to be queued ahead.

use std::time::{Duration, Instant};

use gradwire::Error;

/// Samples that a median is of, where the time allows.
const SAMPLES: usize = 40;
/// Fewer than this are no median.
const LEAST_SAMPLES: usize = 3;
/// Runs before anything counts, where a quarter of the time allows.
const WARM_UP: u32 = 20;
/// The most runs of a sample: a queue that is given much more can lose the device to a watchdog.
const MOST_RUNS: u32 = 4096;

/// The most time of a measurement within a budget: longer makes a median no better.
const MOST_TIME: Duration = Duration::from_millis(400);
/// Seconds of a sample, where nothing speaks against it.
pub(crate) const SAMPLE: f64 = 2e-3;

/// Seconds of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(crate) median: f64,
    pub(crate) p25: f64,
    pub(crate) p75: f64,
    pub(crate) samples: usize,
    /// Runs in each sample.
    pub(crate) runs: u32,
}

/// How long timing may take, and how long one sample has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) time: Duration,
    /// Seconds of a sample.
    pub(crate) sample: f64,
}

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

    /// For the next measurement.
    pub(crate) fn next(&mut self) -> Slice {
        let time = (self.end.saturating_duration_since(Instant::now()) / self.left).min(MOST_TIME);
        self.skip(1);
        Slice { time, sample: SAMPLE }
    }

    /// Measurements that do not take place leave their time to the others.
    pub(crate) fn skip(&mut self, measurements: u32) {
        self.left = self.left.saturating_sub(measurements).max(1);
    }
}

/// Times a turn of `sets` runs, which `turns` does as often as it is told, and gives the seconds of all of them
/// together.
pub(crate) fn sample(
    slice: Slice,
    sets: u32,
    mut turns: impl FnMut(u32) -> Result<f64, Error>,
) -> Result<Timing, Error> {
    let start = Instant::now();
    let over = || start.elapsed() >= slice.time;
    let mut warm = 0;
    let mut seconds = 0.0;
    while warm < WARM_UP && !(warm > 0 && start.elapsed() >= slice.time / 4) {
        seconds = turns(1)?;
        warm += sets;
    }
    // A turn alone may take longer than each of several does, so their number is approached.
    let mut repeats = 1;
    let most = (MOST_RUNS / sets.max(1)).max(1);
    while seconds < slice.sample && repeats < most && !over() {
        let factor = (1.2 * slice.sample / seconds.max(1e-9)).clamp(2.0, 16.0);
        repeats = ((f64::from(repeats) * factor) as u32).min(most);
        seconds = turns(repeats)?;
    }
    let runs = repeats * sets;
    let mut each = Vec::with_capacity(SAMPLES);
    while each.len() < SAMPLES && (each.len() < LEAST_SAMPLES || !over()) {
        each.push(turns(repeats)? / f64::from(runs));
    }
    let [p25, median, p75] = quartiles(&mut each);
    Ok(Timing { median, p25, p75, samples: each.len(), runs })
}

/// The values below which a quarter, a half and three quarters of all lie, interpolated.
pub(crate) fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * (values.len().max(1) - 1) as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        match (values.get(low), values.get(high)) {
            (Some(a), Some(b)) => a + (b - a) * place.fract(),
            _ => 0.0,
        }
    };
    [at(0.25), at(0.5), at(0.75)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        assert_eq!(quartiles(&mut [3.0]), [3.0, 3.0, 3.0]);
        assert_eq!(quartiles(&mut [5.0, 1.0, 2.0, 4.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&mut [4.0, 1.0, 2.0, 3.0]), [1.75, 2.5, 3.25]);
        assert_eq!(quartiles(&mut []), [0.0; 3]);
    }

    #[test]
    fn samples_are_long_enough_and_the_cold_runs_do_not_count() {
        let mut asked = Vec::new();
        let slice = Slice { time: Duration::from_secs(100), sample: 2e-3 };
        let timing = sample(slice, 8, |repeats| {
            asked.push(repeats);
            // The first turns are a hundred times slower.
            Ok(f64::from(repeats) * 8.0 * if asked.len() <= 2 { 1e-3 } else { 1e-5 })
        });
        let timing = timing.unwrap();
        assert!((timing.median - 1e-5).abs() < 1e-15 && timing.p25 == timing.p75, "{timing:?}");
        assert_eq!(timing.samples, SAMPLES);
        assert!(f64::from(timing.runs) * 1e-5 >= 2e-3 && timing.runs.is_multiple_of(8), "{timing:?}");
        assert_eq!(asked[..3], [1, 1, 1], "24 runs are a warm-up of at least 20");
    }

    #[test]
    fn a_budget_is_shared_and_what_is_skipped_leaves_its_time() {
        let mut budget = Budget::new(Duration::from_secs(1), 10);
        let near = |slice: Slice, seconds: f64| (slice.time.as_secs_f64() - seconds).abs() < 0.02;
        assert!(near(budget.next(), 0.1));
        budget.skip(4);
        assert!(near(budget.next(), 0.2));
        budget.skip(9);
        assert!(near(budget.next(), 0.4), "no more than is of use");
        assert_eq!(Budget::new(Duration::ZERO, 1).next().time, Duration::ZERO);
    }

    #[test]
    fn warming_up_takes_a_quarter_of_the_time() {
        let (mut turns, slice) = (0, Slice { time: Duration::from_millis(80), sample: 0.0 });
        let timing = sample(slice, 1, |repeats| {
            turns += repeats;
            std::thread::sleep(Duration::from_millis(10));
            Ok(0.01)
        });
        let samples = timing.unwrap().samples;
        assert!(samples >= LEAST_SAMPLES && turns as usize - samples <= 2, "{turns} turns, {samples} samples");
    }

    #[test]
    fn no_time_at_all_gives_three_samples_of_one_turn() {
        let mut turns = 0;
        let slice = Slice { time: Duration::ZERO, sample: 1.0 };
        let timing = sample(slice, 2, |repeats| {
            turns += repeats;
            Ok(f64::from(repeats))
        });
        assert_eq!(timing.unwrap(), Timing { median: 0.5, p25: 0.5, p75: 0.5, samples: 3, runs: 2 });
        assert_eq!(turns, 4, "and one to warm up");
    }

    #[test]
    fn a_queue_is_not_flooded_and_a_failure_ends_it() {
        let slice = Slice { time: Duration::from_secs(100), sample: 1e9 };
        let timing = sample(slice, 16, |_| Ok(1e-9)).unwrap();
        assert_eq!(timing.runs, MOST_RUNS);
        assert!(sample(slice, 1, |_| Err(Error::TooLong { got: 1 })).is_err());
    }
}
