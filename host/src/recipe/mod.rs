//! Recipes: what becomes of a gradient, stage by stage.

mod algorithm;
mod from;
mod memory;
mod methods;
mod near;
mod promise;
mod promised;
mod quantize;
mod stages;
mod text;
mod words;

pub use self::algorithm::Algorithm;
pub(crate) use self::memory::Formed;
pub use self::memory::{Memory, Shift};
pub use self::methods::Method;
pub use self::promise::Promise;
pub use self::quantize::Quantize;
pub use self::stages::Recipe;
