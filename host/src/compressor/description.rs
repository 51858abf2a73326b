//! What two compressors must agree in.

use super::policy::Tensor;
use crate::recipe::Recipe;

/// What two compressors must agree in: the tensors and their recipes.
pub(super) fn description(tensors: &[Tensor], recipes: &[Recipe]) -> String {
    let line = |(tensor, recipe): (&Tensor, &Recipe)| format!("{:?} {recipe}\n", tensor.shape);
    tensors.iter().zip(recipes).map(line).collect()
}
