//! The real gradients that ship with the repository.

use safetensors::{Dtype, SafeTensors};

/// Gradients of a small convolutional network on handwritten digits; `benches/data/README.md` says where from.
pub const DIGITS: &[u8] = include_bytes!("../../benches/data/digits_cnn.safetensors");

/// A named tensor as f32, flat.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in the file, as [`shown`] has it.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// The type of its elements in the file.
    pub stored: gradwire::Dtype,
    /// Values, row-major.
    pub values: Vec<f32>,
}

/// The tensors of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// Those that can be compressed, by name.
    pub tensors: Vec<Tensor>,
    /// Of each other one, by name, what it is: integers, as PyTorch's counters of steps are, or a wider type.
    pub left_out: Vec<String>,
}

/// A text for a terminal: what could move its cursor, or turn the direction of writing, is written as an escape.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// The f32, f16 and bf16 tensors of a safetensors file as f32, and what others it has.
///
/// # Errors
/// A text that says what is wrong with the file.
pub fn read(bytes: &[u8]) -> Result<Tensors, String> {
    let file = SafeTensors::deserialize(bytes);
    let file = file.map_err(|e| format!("not a safetensors file: {}", shown(&e.to_string())))?;
    let (mut tensors, mut left_out) = (Vec::new(), Vec::new());
    for (name, view) in file.tensors() {
        let name = shown(&name);
        let raw = view.data();
        let halves = || raw.chunks_exact(2).map(|b| [b[0], b[1]]);
        let (stored, values) = match view.dtype() {
            Dtype::F32 => {
                let values = raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                (gradwire::Dtype::F32, values)
            }
            Dtype::F16 => (gradwire::Dtype::F16, halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
            Dtype::BF16 => (gradwire::Dtype::Bf16, halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
            other => {
                left_out.push(format!("tensor {name} is {other:?}; f32, f16 and bf16 can be compressed"));
                continue;
            }
        };
        tensors.push(Tensor { name, shape: view.shape().to_vec(), stored, values });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    left_out.sort();
    match left_out.first() {
        _ if !tensors.is_empty() => Ok(Tensors { tensors, left_out }),
        Some(other) => Err(format!("the file holds no tensor that can be compressed: {other}")),
        None => Err("the file holds no tensor".to_owned()),
    }
}

/// All of the shipped gradients, one after another.
pub fn digits() -> Vec<f32> {
    read(DIGITS).unwrap_or_default().tensors.into_iter().flat_map(|t| t.values).collect()
}
