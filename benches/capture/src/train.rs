//! Trains the network and keeps the gradients of the chosen steps.

use candle_core::{DType, Device, Tensor};
use candle_nn::loss::cross_entropy;

use crate::augment::jitter;
use crate::digits::{Digits, SIDE};
use crate::error::CaptureError;
use crate::network::Network;
use crate::rng::SplitMix64;

pub(crate) const SEED: u64 = 20_260_101;
pub(crate) const STEPS: usize = 300;
pub(crate) const BATCH: usize = 64;
pub(crate) const LEARNING_RATE: f64 = 0.02;
pub(crate) const MOMENTUM: f64 = 0.9;

/// The last images of the file are held out, and take no part in training.
pub(crate) const TEST_IMAGES: usize = 360;

/// Which steps to keep, counted from 1. The first one sees the untrained
/// network, the second one falls in the steep part of the loss, and the last
/// one sees a network that has nearly learned its task.
const CAPTURES: [(&str, usize); 3] = [("early", 1), ("middle", 60), ("late", 290)];

/// The gradient of one parameter, with nothing done to it.
pub(crate) struct Gradient {
    pub(crate) parameter: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// All gradients of one step. They belong to the loss given here, which is
/// that of the step's batch before the step's update.
pub(crate) struct Snapshot {
    pub(crate) label: &'static str,
    pub(crate) step: usize,
    pub(crate) loss: f32,
    pub(crate) gradients: Vec<Gradient>,
}

pub(crate) struct Run {
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) parameters: usize,
    pub(crate) test_accuracy: f64,
}

pub(crate) fn train(digits: &Digits) -> Result<Run, CaptureError> {
    let needed = TEST_IMAGES + BATCH;
    if digits.len() < needed {
        return Err(CaptureError::TooFewImages { needed, found: digits.len() });
    }
    let train_images = digits.len() - TEST_IMAGES;
    let mut rng = SplitMix64::new(SEED);
    let network = Network::new(DType::F32, &mut rng)?;
    let parameters = network.parameters();
    let mut velocities =
        parameters.iter().map(|(_, parameter)| parameter.zeros_like()).collect::<candle_core::Result<Vec<Tensor>>>()?;

    let mut order: Vec<usize> = (0..train_images).collect();
    let mut next = order.len();
    let mut snapshots = Vec::new();
    for step in 1..=STEPS {
        // The images left over at the end of a pass are skipped, so that every
        // gradient is a mean over the same number of images.
        if next + BATCH > order.len() {
            rng.shuffle(&mut order);
            next = 0;
        }
        let (mut pixels, labels) = digits.select(&order[next..next + BATCH]);
        next += BATCH;
        jitter(&mut pixels, &mut rng);
        let (images, labels) = tensors(pixels, labels)?;

        let loss = cross_entropy(&network.forward(&images)?, &labels)?;
        let gradients = loss.backward()?;
        let loss = loss.to_scalar::<f32>()?;

        let mut captured = Vec::new();
        let capture = CAPTURES.iter().find(|(_, wanted)| *wanted == step);
        for ((name, parameter), velocity) in parameters.iter().zip(&mut velocities) {
            let gradient = gradients.get(parameter).ok_or_else(|| CaptureError::BadGradient {
                name: name.clone(),
                found: "the backward pass did not reach it",
            })?;
            if capture.is_some() {
                captured.push(Gradient {
                    parameter: name.clone(),
                    shape: gradient.dims().to_vec(),
                    values: gradient.flatten_all()?.to_vec1()?,
                });
            }
            // Detaching keeps the history of one step out of the next one.
            *velocity = ((&*velocity * MOMENTUM)? + gradient)?.detach();
            parameter.set(&(parameter.as_tensor() - (&*velocity * LEARNING_RATE)?)?)?;
        }
        if let Some((label, _)) = capture {
            snapshots.push(Snapshot { label, step, loss, gradients: captured });
        }
        if capture.is_some() || step % 50 == 0 {
            let accuracy = test_accuracy(&network, digits)?;
            println!("step {step:3}: loss {loss:.5}, test accuracy {:.2} %", 100.0 * accuracy);
        }
    }
    Ok(Run {
        snapshots,
        parameters: parameters.iter().map(|(_, parameter)| parameter.elem_count()).sum(),
        test_accuracy: test_accuracy(&network, digits)?,
    })
}

fn tensors(pixels: Vec<f32>, labels: Vec<u32>) -> Result<(Tensor, Tensor), CaptureError> {
    let count = labels.len();
    Ok((
        Tensor::from_vec(pixels, (count, 1, SIDE, SIDE), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}

/// The share of held-out images whose highest score is at their label.
fn test_accuracy(network: &Network, digits: &Digits) -> Result<f64, CaptureError> {
    let indices: Vec<usize> = (digits.len() - TEST_IMAGES..digits.len()).collect();
    let (pixels, labels) = digits.select(&indices);
    let (images, _) = tensors(pixels, labels.clone())?;
    let guesses = network.forward(&images)?.argmax(1)?.to_vec1::<u32>()?;
    let right = guesses.iter().zip(&labels).filter(|(a, b)| a == b).count();
    Ok(right as f64 / TEST_IMAGES as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_images_are_an_error() {
        let digits = Digits::parse(&format!("{}1\n", "0,".repeat(64))).unwrap();
        let error = train(&digits).err().unwrap().to_string();
        assert!(error.contains("424") && error.contains("has 1"), "{error}");
    }
}
