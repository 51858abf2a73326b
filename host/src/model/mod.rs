//! Many tensors at once: the tensors of a model, in one flat buffer, encoded and decoded by one launch set.

pub(crate) mod item;
pub(crate) mod layout;
pub(crate) mod plan;
pub(crate) mod whole;

pub use self::layout::{Layout, TensorSpan};
pub use self::plan::ModelPlan;
