//! Integer arithmetic that parameters, the other arithmetic and the kernels use.

pub(crate) mod machine;
pub mod stream;
pub mod tiles;
