//! The machine itself: what instructions compute, what faults it finds, what it counts.

mod common;
mod counts;
mod faults;
mod instructions;
