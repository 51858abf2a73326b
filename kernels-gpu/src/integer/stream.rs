//! Where the draws of an encode come from.

/// The part of a draw's address that is the same for a whole launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The run's seed.
    pub key: [u32; 2],
    /// Which tensor of the model.
    pub tensor: u32,
    /// Which step of the training run, low word first.
    pub step: [u32; 2],
}

/// Rounds that Gradwire's draws use. Seven is the least number of rounds that passes BigCrush (Salmon et al., table 2).
pub const ROUNDS: usize = 7;

const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// The keys of the rounds, of which a block's first is its own.
#[inline(always)]
pub fn round_keys<const R: usize>(key: [u32; 2]) -> [[u32; 2]; R] {
    let mut keys = [key; R];
    let mut round = 1;
    while round < R {
        keys[round] = [keys[round - 1][0].wrapping_add(W0), keys[round - 1][1].wrapping_add(W1)];
        round += 1;
    }
    keys
}
