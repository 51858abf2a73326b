//! Searches by thresholds that start from statistics of a gradient: for a threshold that is estimated, and for the
//! largest entries of each sign. Pure, but for what [`Device`](crate::Device) is asked.

mod either;
mod numbers;
mod per_sign;
mod search;
mod statistics;

pub(crate) use self::either::Search;
pub(crate) use self::statistics::{plans, search};
