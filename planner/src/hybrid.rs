//! When to give devices to model parallelism rather than to more data-parallel workers.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, positive};

/// Data parallelism at a number of workers, measured or predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Data-parallel workers, each with the same batch per step.
    pub workers: u32,
    /// Scaling efficiency: samples per second over those of one worker, over the number of workers.
    pub efficiency: f64,
    /// Epochs until the accuracy wanted is reached: statistical efficiency. `None` if it is not reached.
    pub epochs: Option<f64>,
}

/// A way to use devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hybrid {
    /// Data-parallel workers.
    pub workers: u32,
    /// Devices per worker, which share a copy of the model.
    pub devices_per_worker: u32,
    /// Time to converge on one device, over that of this.
    pub speed_up: f64,
}

/// The best use of devices, with and without model parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The fastest of all.
    pub best: Hybrid,
    /// The fastest with one device per worker.
    pub data_parallel: Hybrid,
}

impl Split {
    /// How many times as fast the best is as data parallelism alone: 1 where that is the best.
    pub fn gain(&self) -> f64 {
        self.best.speed_up / self.data_parallel.speed_up
    }
}

/// The fastest way to converge on at most this many devices, by the model of Pal et al. 2019, "Optimizing multi-GPU
/// parallelization strategies for deep learning training".
///
/// `N` workers of `M` devices each converge `SU(M) * SE(N) * N * E(1) / E(N)` times as fast as one device, with the
/// speed-up `SU(M)` of a worker by model parallelism, the efficiency `SE(N)` and the epochs `E(N)`. `scaling` has `SE`
/// and `E` for the numbers of workers that are looked at, 1 among them. `model_parallel` has pairs of `M` and `SU(M)`.
/// One device per worker, with a speed-up of 1, is always looked at. A worker's batch is the same whatever its devices.
///
/// Of equal ways, that with fewer devices per worker and then fewer workers is taken.
///
/// ```
/// use gradwire_planner::{Scaling, hybrid};
///
/// // Beyond 2 workers, more data parallelism does not help: a second device per worker does.
/// let at = |workers, efficiency, epochs| Scaling { workers, efficiency, epochs };
/// let scaling = [at(1, 1.0, Some(4.0)), at(2, 1.0, Some(4.0)), at(4, 0.75, None)];
/// let split = hybrid(&scaling, &[(2, 1.25)], 4)?;
/// assert_eq!((split.best.workers, split.best.devices_per_worker, split.gain()), (2, 2, 1.25));
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
///
/// # Errors
///
/// No entry for one worker, or one that does not converge; a number of workers or devices that is 0; an efficiency, a
/// speed-up or a number of epochs that is zero, negative, NaN or infinite. Each names its entry by index.
pub fn hybrid(scaling: &[Scaling], model_parallel: &[(u32, f64)], devices: u32) -> Result<Split, PlanError> {
    let none = "nothing runs on none";
    for (index, entry) in scaling.iter().enumerate() {
        let place = |field: &'static str| move || Place::layer(index, "scaling", field);
        positive(place("workers"), f64::from(entry.workers), none)?;
        positive(place("efficiency"), entry.efficiency, "training would not advance")?;
        positive(place("epochs"), entry.epochs.unwrap_or(1.0), "training takes some")?;
    }
    for (index, &(per_worker, speed_up)) in model_parallel.iter().enumerate() {
        let place = |field: &'static str| move || Place::layer(index, "model parallelism", field);
        positive(place("devices"), f64::from(per_worker), none)?;
        positive(place("speed_up"), speed_up, "training would not advance")?;
    }
    positive(|| Place::whole("devices"), f64::from(devices), none)?;
    let one = scaling.iter().find(|entry| entry.workers == 1).and_then(|entry| entry.epochs);
    let one = one.ok_or_else(|| PlanError::Missing(Place::whole("scaling, epochs of 1 worker")))?;
    let way = |entry: &Scaling, per_worker: u32, speed_up: f64| {
        let epochs = entry.epochs?;
        let fits = u64::from(entry.workers) * u64::from(per_worker) <= u64::from(devices);
        let speed_up = speed_up * entry.efficiency * f64::from(entry.workers) * one / epochs;
        fits.then_some(Hybrid { workers: entry.workers, devices_per_worker: per_worker, speed_up })
    };
    let best = |ways: &mut dyn Iterator<Item = Hybrid>| {
        ways.min_by(|a, b| {
            let fewer = (a.devices_per_worker, a.workers).cmp(&(b.devices_per_worker, b.workers));
            b.speed_up.total_cmp(&a.speed_up).then(fewer)
        })
    };
    let missing = || PlanError::Missing(Place::whole("scaling, an entry that the devices allow"));
    let data_parallel = best(&mut scaling.iter().filter_map(|entry| way(entry, 1, 1.0))).ok_or_else(missing)?;
    let mut split = model_parallel
        .iter()
        .filter(|pair| pair.0 > 1)
        .flat_map(|&(per_worker, speed_up)| scaling.iter().filter_map(move |entry| way(entry, per_worker, speed_up)))
        .chain([data_parallel]);
    Ok(Split { best: best(&mut split).ok_or_else(missing)?, data_parallel })
}
