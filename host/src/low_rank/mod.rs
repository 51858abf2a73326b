//! Low-rank compression: the table of a model's matrices, the state that is kept from step to step, and the steps.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod bytes;
mod commit;
mod device;
mod outcome;
mod passes;
mod plain;
#[cfg_attr(
    not(any(feature = "cuda", feature = "wgpu")),
    allow(dead_code, reason = "it is the GPU backends that take pieces")
)]
mod resident;
mod run;
mod start;
mod state;
mod state_error;
mod work;

pub use self::outcome::Outcome;
pub use self::resident::{LowRankBuffers, ResidentLowRank};
pub use self::state::LowRankState;
pub use self::state_error::StateError;
