//! Thresholds that are estimated from statistics of a gradient. Pure, but for what [`Device`](crate::Device) is asked.

mod numbers;
mod search;
mod statistics;

pub(crate) use self::statistics::{plans, search};
