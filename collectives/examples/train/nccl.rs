//! Ranks whose GPUs NCCL connects.

use std::time::Duration;

use gradwire::{Device, Error};
use gradwire_collectives::{Collective, Nccl, NcclSettings};

use super::error::TrainError;
use super::gpu::{By, Gpu};

/// A group of the ranks of another engine, over which NCCL's id travels; and what compresses, where no device is given
/// the rank's GPU.
///
/// Each rank takes a GPU of its own where its machine has as many, and else GPU 0.
pub(crate) fn open<'d>(
    ranks: &mut dyn Collective,
    device: Option<&'d Device>,
    deadline: Duration,
) -> Result<(Nccl, By<'d>), TrainError> {
    let settings = NcclSettings { deadline, ..NcclSettings::default() };
    let settings = settings.own_gpu(ranks).map_err(Error::from)?;
    let group = Nccl::open_over(ranks, &settings).map_err(Error::from)?;
    let by = match device {
        Some(device) => By::Device(device),
        None => By::Gpu(Gpu::open(settings.device)?),
    };
    Ok((group, by))
}
