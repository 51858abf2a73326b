#![doc = include_str!("../README.md")]

mod algorithm;
mod codec;
mod error;
mod line;
mod network;
mod profile;

pub use algorithm::{Algorithm, MAX_RANKS};
pub use codec::{CodecCost, Curve};
pub use error::{Place, PlanError};
pub use line::{Fit, Line};
pub use network::{Network, PRESETS, Preset};
pub use profile::{Layer, Profile};
