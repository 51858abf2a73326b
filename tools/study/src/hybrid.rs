//! Data and model parallelism together: what the model of Pal et al. says of their three gains.

use gradwire_planner::{Scaling, hybrid};

/// Networks, and how many times as fast as data parallelism alone a mixture is: the abstract's "at least 26.5 %, 8 %
/// and 22 %".
const PUBLISHED: [(&str, f64); 3] = [("Inception-V3", 1.265), ("GNMT", 1.08), ("BigLSTM", 1.22)];

/// How many times as fast as one device two may be that share a model.
pub(super) const TWO_DEVICES: [f64; 3] = [1.1, 1.25, 1.4];

/// Workers at which the devices are twice as many. The model's gain does not depend on it.
const WORKERS: u32 = 16;

/// A network.
pub(super) struct Row {
    pub(super) network: &'static str,
    pub(super) published: f64,
    /// For each of [`TWO_DEVICES`]: by how much twice the workers shorten the training, so that the gain is the
    /// published one; none if no mixture gains so much.
    pub(super) doubled: [Option<f64>; 3],
}

/// The gain on twice as many devices as workers, where twice the workers are so many times as fast.
fn gain(two_devices: f64, doubled: f64) -> Result<f64, String> {
    let at = |workers, epochs| Scaling { workers, efficiency: 1.0, epochs: Some(epochs) };
    // Epochs alone: the model has nothing but their product with the efficiency.
    let scaling = [at(1, 1.0), at(WORKERS, 1.0), at(2 * WORKERS, 2.0 / doubled)];
    let split = hybrid(&scaling, &[(2, two_devices)], 2 * WORKERS).map_err(|e| e.to_string())?;
    Ok(split.gain())
}

/// All networks.
pub(super) fn rows() -> Result<Vec<Row>, String> {
    let row = |&(network, published): &(&'static str, f64)| {
        let mut doubled = [None; 3];
        for (doubled, two_devices) in doubled.iter_mut().zip(TWO_DEVICES) {
            // The most that the model allows is where twice the workers gain nothing.
            if gain(two_devices, 1.0)? >= published {
                *doubled = Some(two_devices / published);
            }
        }
        Ok(Row { network, published, doubled })
    };
    PUBLISHED.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_what_the_page_says_the_model_gains_what_is_published() {
        for row in rows().expect("simulated") {
            for (doubled, two_devices) in row.doubled.into_iter().zip(TWO_DEVICES) {
                let found = gain(two_devices, doubled.unwrap_or(1.0)).expect("a gain");
                assert!(if doubled.is_some() { (found - row.published).abs() < 1e-12 } else { found < row.published });
            }
        }
    }
}
