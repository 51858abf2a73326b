//! A few numbers per gradient, to see at a glance that it looks real.

use crate::error::CaptureError;

pub(crate) struct Summary {
    count: usize,
    rms: f64,
    max: f64,
    /// Fourth central moment over squared variance. A normal distribution has
    /// 3, and heavy tails have more.
    kurtosis: f64,
    zeros: usize,
    finite: bool,
}

pub(crate) fn summarise(values: &[f32]) -> Summary {
    let count = values.len();
    let mean_of = |f: &dyn Fn(f64) -> f64| values.iter().map(|&v| f(f64::from(v))).sum::<f64>() / count.max(1) as f64;
    let mean = mean_of(&|v| v);
    let variance = mean_of(&|v| (v - mean).powi(2));
    Summary {
        count,
        rms: mean_of(&|v| v * v).sqrt(),
        max: values.iter().fold(0.0, |max, &v| f64::from(v.abs()).max(max)),
        kurtosis: mean_of(&|v| (v - mean).powi(4)) / (variance * variance),
        zeros: values.iter().filter(|&&v| v == 0.0).count(),
        finite: values.iter().all(|v| v.is_finite()),
    }
}

pub(crate) fn print_header() {
    println!(
        "{:<20} {:>14} {:>7} {:>10} {:>10} {:>8} {:>6}",
        "gradient", "shape", "count", "rms", "max", "kurtosis", "zeros"
    );
}

impl Summary {
    pub(crate) fn print(&self, name: &str, shape: &[usize]) {
        println!(
            "{name:<20} {:>14} {:>7} {:>10.3e} {:>10.3e} {:>8.1} {:>6}",
            format!("{shape:?}"),
            self.count,
            self.rms,
            self.max,
            self.kurtosis,
            self.zeros
        );
    }

    pub(crate) fn check(&self, name: &str) -> Result<(), CaptureError> {
        let found = if !self.finite {
            "it has a value that is infinite or not a number"
        } else if self.zeros == self.count {
            "every value is zero"
        } else {
            return Ok(());
        };
        Err(CaptureError::BadGradient { name: name.to_string(), found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_known_sample() {
        let summary = summarise(&[1.0, -1.0, 1.0, -1.0]);
        assert_eq!(summary.count, 4);
        assert_eq!(summary.rms, 1.0);
        assert_eq!(summary.max, 1.0);
        assert_eq!(summary.kurtosis, 1.0);
        assert!(summary.check("sample").is_ok());
    }

    #[test]
    fn empty_zero_and_infinite_gradients_are_refused() {
        for values in [&[][..], &[0.0, -0.0], &[1.0, f32::NAN], &[f32::INFINITY]] {
            let error = summarise(values).check("fc1.bias").unwrap_err();
            assert!(error.to_string().contains("fc1.bias"));
        }
    }
}
