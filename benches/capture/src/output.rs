//! Puts the gradients and what is known about them into a safetensors file.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::error::CaptureError;
use crate::network::DESCRIPTION;
use crate::train::{self, Gradient, Run, Snapshot};

/// The version is the one that Cargo.toml pins; a test holds the two together.
const FRAMEWORK: &str = "candle-core 0.11.0";

/// The header starts after its own length, a little-endian u64.
const LENGTH_BYTES: usize = 8;

pub(crate) fn tensor_name(snapshot: &Snapshot, gradient: &Gradient) -> String {
    format!("{}.{}", snapshot.label, gradient.parameter)
}

pub(crate) fn encode(run: &Run) -> Result<Vec<u8>, CaptureError> {
    let mut tensors = Vec::new();
    for snapshot in &run.snapshots {
        for gradient in &snapshot.gradients {
            let bytes: Vec<u8> = gradient.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let name = tensor_name(snapshot, gradient);
            tensors.push((name, gradient.shape.clone(), bytes));
        }
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name, view)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(encode_error)?;
    let plain = serialize(views, None).map_err(encode_error)?;
    let file = insert_metadata(&plain, &metadata(run))?;
    // Reading the file back catches any fault in the header.
    SafeTensors::deserialize(&file).map_err(encode_error)?;
    Ok(file)
}

fn metadata(run: &Run) -> BTreeMap<String, String> {
    let mut entries: BTreeMap<String, String> = [
        ("generator", concat!("gradwire-capture ", env!("CARGO_PKG_VERSION")).to_string()),
        ("framework", FRAMEWORK.to_string()),
        (
            "dataset",
            "Optical Recognition of Handwritten Digits, test set, 1797 images of 8x8 pixels, UCI \
             Machine Learning Repository, doi:10.24432/C50P49"
                .to_string(),
        ),
        (
            "dataset_attribution",
            "E. Alpaydin and C. Kaynak, 1998; the gradients in this file were computed from it".to_string(),
        ),
        ("dataset_license", "CC BY 4.0".to_string()),
        ("network", DESCRIPTION.to_string()),
        (
            "training",
            format!(
                "SGD, learning rate {}, momentum {}, batch {}, images shifted by up to 1 pixel, \
                 mean cross entropy, {} steps",
                train::LEARNING_RATE,
                train::MOMENTUM,
                train::BATCH,
                train::STEPS
            ),
        ),
        ("seed", train::SEED.to_string()),
        ("test_accuracy", format!("{:.4}", run.test_accuracy)),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into();
    for snapshot in &run.snapshots {
        entries.insert(format!("{}.step", snapshot.label), snapshot.step.to_string());
        entries.insert(format!("{}.loss", snapshot.label), snapshot.loss.to_string());
    }
    entries
}

/// Adds the metadata to a file that has none.
///
/// The safetensors crate takes metadata as a hash map and writes it in the
/// map's order, which changes from run to run. Adding it here in sorted order
/// makes equal runs give equal bytes.
fn insert_metadata(plain: &[u8], entries: &BTreeMap<String, String>) -> Result<Vec<u8>, CaptureError> {
    let (header, data) =
        split_header(plain).ok_or_else(|| CaptureError::Encode("its header has an unknown form".to_string()))?;
    let entries = serde_json::to_string(entries).map_err(encode_error)?;
    let mut header = format!("{{\"__metadata__\":{entries},{header}").into_bytes();
    // The format pads the header with spaces so that the data starts aligned.
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');

    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend_from_slice(data);
    Ok(file)
}

/// Splits a file into the inside of its header, without the opening brace and
/// the padding, and its data.
fn split_header(file: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = file.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, data) = rest.split_at_checked(length)?;
    let header = std::str::from_utf8(header).ok()?.trim_end();
    Some((header.strip_prefix('{')?, data))
}

fn encode_error(error: impl std::fmt::Display) -> CaptureError {
    CaptureError::Encode(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_run() -> Run {
        let gradient = |parameter: &str, shape: &[usize], values: &[f32]| Gradient {
            parameter: parameter.to_string(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        Run {
            snapshots: vec![Snapshot {
                label: "early",
                step: 1,
                loss: 2.25,
                gradients: vec![gradient("fc.weight", &[2, 1], &[1.0, -2.5]), gradient("fc.bias", &[1], &[0.5])],
            }],
            parameters: 3,
            test_accuracy: 0.5,
        }
    }

    #[test]
    fn a_file_reads_back_with_its_values_and_metadata() {
        let file = encode(&small_run()).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let weight = read.tensor("early.fc.weight").unwrap();
        assert_eq!(weight.dtype(), Dtype::F32);
        assert_eq!(weight.shape(), [2, 1]);
        assert_eq!(weight.data(), [1.0f32, -2.5].map(f32::to_le_bytes).concat());
        assert_eq!(read.names().len(), 2);

        let (length, header) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(length % LENGTH_BYTES, 0);
        let entries = header.metadata().as_ref().unwrap();
        assert_eq!(entries["early.step"], "1");
        assert_eq!(entries["early.loss"], "2.25");
        assert_eq!(entries["framework"], FRAMEWORK);
    }

    #[test]
    fn equal_runs_give_equal_bytes() {
        let first = encode(&small_run()).unwrap();
        for _ in 0..8 {
            assert_eq!(encode(&small_run()).unwrap(), first);
        }
    }

    #[test]
    fn the_framework_version_is_the_pinned_one() {
        let (name, version) = FRAMEWORK.split_once(' ').unwrap();
        let pin = format!("{name} = {{ version = \"={version}\"");
        assert!(include_str!("../Cargo.toml").contains(&pin));
    }
}
