//! Low-rank compression: the table of a model's matrices, the state that is kept from step to step, and the steps.

pub(crate) mod bytes;
pub(crate) mod calls;
pub(crate) mod commit;
pub(crate) mod factors;
pub(crate) mod outcome;
pub(crate) mod passes;
pub(crate) mod plain;
pub(crate) mod resident;
pub(crate) mod start;
pub(crate) mod state;

pub use self::outcome::Outcome;
pub use self::resident::ResidentLowRank;
pub use self::state::LowRankState;
pub(crate) use self::state::Step;
