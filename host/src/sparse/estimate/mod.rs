//! Thresholds that are estimated from statistics of a gradient. Pure, but for what [`Device`](crate::Device) is asked.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod measure;
mod numbers;
mod search;
mod statistics;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::measure::Measure;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::search::Search;
pub(crate) use self::statistics::{plans, search};
