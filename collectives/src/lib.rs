#![doc = include_str!("../README.md")]

mod delays;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod op;
mod post;
mod sum;
mod threads;

pub use gradwire::{Collective, CollectiveError};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiSettings};
#[cfg(feature = "nccl")]
pub use nccl::{Nccl, NcclId, NcclSettings};
pub use threads::Threads;
