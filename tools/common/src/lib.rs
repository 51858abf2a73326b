//! What the project's programs share: the checkout, git, the pinned nightly, and other processes.

pub mod checkout;
pub mod child;
pub mod ending;
pub mod files;
pub mod machine;
pub mod nightly;
pub mod repository;
pub mod scratch;
pub mod settings;
pub mod side_by_side;
pub mod stand_in;
pub mod step;
