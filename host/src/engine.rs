//! The one door to what backends do with memory of the host's.
//!
//! Each topic has its trait, with two implementations: that of a backend with memory of its own, which is beside the
//! trait and runs passes over the buffers of a session, and the CPU's in `backend/cpu/engine/`, which works in place.
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
