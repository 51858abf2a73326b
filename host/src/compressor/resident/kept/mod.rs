//! What a part keeps in a device's memory.

mod any;
mod dense;
mod low_rank;
mod place;
mod quantized;
mod random;
mod rotated;
mod sparse;

pub(super) use self::any::Kept;
pub(super) use self::place::{Onto, Place, pack, unpack};
