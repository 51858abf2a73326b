//! Work as the CPU does it, one file per topic.

mod dense;
mod low_rank;
mod model;
mod pack;
mod random;
mod rotation;
mod sparse;
mod vote;
