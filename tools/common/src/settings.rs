//! Names of environment variables that the tests read. `gradwire-tests` has them too: xtask does not depend on it.

/// The variable for how much of every sweep runs.
pub const DEPTH: &str = "GRADWIRE_DEPTH";
/// Its values.
pub const DEPTHS: [&str; 3] = ["quick", "default", "full"];
/// The variable for which part of a sweep runs.
pub const TURN: &str = "GRADWIRE_TURN";
/// The variable for the one codec that the suite checks.
pub const CODEC: &str = "GRADWIRE_CODEC";
