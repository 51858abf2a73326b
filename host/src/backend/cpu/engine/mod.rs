//! The CPU's implementation of each engine, which works in place on the host's memory.

mod dense;
mod entropy;
mod low_rank;
mod model;
mod random;
mod rotation;
mod sparse;
mod vote;
