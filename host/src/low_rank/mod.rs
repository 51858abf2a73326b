//! Low-rank compression: the table of a model's matrices, the state that is kept from step to step, and the steps.

#[cfg(feature = "wgpu")]
mod asynchronous;
mod bytes;
mod commit;
mod device;
mod embed;
mod engine;
mod factors;
mod outcome;
mod passes;
mod plain;
mod resident;
mod run;
mod start;
mod state;
mod state_error;

pub use self::embed::{AdvanceLowRank, BeginLowRank, FinishLowRank, LowRankBuffers};
pub(crate) use self::engine::LowRank;
pub use self::outcome::Outcome;
pub use self::resident::ResidentLowRank;
pub use self::state::LowRankState;
pub(crate) use self::state::Step;
pub use self::state_error::StateError;
