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
