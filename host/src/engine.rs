//! The one door to what backends do with memory of the host's.
//!
//! Each topic has its trait, with two implementations beside each other: the CPU's, which works where the memory lies,
//! and that of a backend with memory of its own, which runs passes over the buffers of a session.
//! [`Device`](crate::Device) checks what it is given, and asks an engine.

use crate::dense::Dense;
use crate::entropy::Packs;
use crate::low_rank::LowRank;
use crate::model::Models;
use crate::random::Random;
use crate::rotation::Rotate;
use crate::sparse::Sparse;
use crate::vote::Vote;

/// What every backend does.
pub(crate) trait Engine: Dense + Packs + Models + Sparse + LowRank + Random + Rotate + Vote {}

impl<T: Dense + Packs + Models + Sparse + LowRank + Random + Rotate + Vote> Engine for T {}
