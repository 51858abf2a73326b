#![doc = include_str!("../README.md")]

mod background;
#[cfg(feature = "planner")]
mod choose;
mod delays;
#[cfg(feature = "key")]
mod keyed;
mod link;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod op;
#[cfg(feature = "mpi")]
mod pause;
mod ping;
mod post;
mod sent;
mod sum;
mod threads;
mod together;

pub use background::{Background, BackgroundError};
#[cfg(feature = "planner")]
pub use choose::{ChooseError, choose};
pub use gradwire::{Collective, CollectiveError};
#[cfg(feature = "planner")]
pub use gradwire_planner::Choice;
#[cfg(feature = "key")]
pub use keyed::{Key, Keyed, SealError};
pub use link::{Link, LinkError};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiSettings};
#[cfg(feature = "nccl")]
pub use nccl::{Nccl, NcclId, NcclSettings};
pub use ping::{GroupPings, Ping, ping, ping_group};
pub use sent::Sent;
pub use threads::Threads;
pub use together::Together;
