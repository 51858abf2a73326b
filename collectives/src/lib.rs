#![doc = include_str!("../README.md")]

mod delays;
#[cfg(feature = "mpi")]
mod mpi;
mod op;
mod post;
mod sum;
mod threads;

pub use gradwire::{Collective, CollectiveError};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiSettings};
pub use threads::Threads;
