//! What the CPU does where memory of the host lies, topic by topic.

mod dense;
mod entropy;
mod low_rank;
mod model;
mod random;
mod rotation;
mod sparse;
mod vote;
