//! The real gradients that ship with the repository.

use safetensors::{Dtype, SafeTensors};

/// Gradients of a small convolutional network on handwritten digits; `benches/data/README.md` says where from.
pub const DIGITS: &[u8] = include_bytes!("../../benches/data/digits_cnn.safetensors");

/// A named tensor as f32, flat.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// The type of its elements in the file.
    pub stored: gradwire::Dtype,
    /// Values, row-major.
    pub values: Vec<f32>,
}

/// The f32, f16 and bf16 tensors of a safetensors file as f32, by name.
///
/// # Errors
/// A text that says what is wrong with the file.
pub fn read(bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not a safetensors file: {e}"))?;
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let raw = view.data();
        let halves = || raw.chunks_exact(2).map(|b| [b[0], b[1]]);
        let (stored, values) = match view.dtype() {
            Dtype::F32 => {
                let values = raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                (gradwire::Dtype::F32, values)
            }
            Dtype::F16 => (gradwire::Dtype::F16, halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
            Dtype::BF16 => (gradwire::Dtype::Bf16, halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
            other => return Err(format!("tensor {name} is {other:?}; f32, f16 and bf16 can be compressed")),
        };
        tensors.push(Tensor { name, shape: view.shape().to_vec(), stored, values });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if tensors.is_empty() {
        return Err("the file holds no tensor".to_owned());
    }
    Ok(tensors)
}

/// All of the shipped gradients, one after another.
pub fn digits() -> Vec<f32> {
    read(DIGITS).unwrap_or_default().into_iter().flat_map(|t| t.values).collect()
}
