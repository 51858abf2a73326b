//! The network: three convolutions and two linear layers, 188,234 parameters.

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::digits::{CLASSES, SIDE};
use crate::rng::SplitMix64;

const CONV1_CHANNELS: usize = 32;
const CONV2_CHANNELS: usize = 64;
const CONV3_CHANNELS: usize = 64;
const HIDDEN: usize = 128;
const KERNEL: usize = 3;

/// One description of the network for readers of the gradients file.
pub(crate) const DESCRIPTION: &str = "conv1 3x3 1->32, relu, conv2 3x3 32->64, relu, maxpool 2x2, \
     conv3 3x3 64->64, relu, flatten, fc1 1024->128, relu, fc2 128->10";

pub(crate) struct Layer {
    pub(crate) name: &'static str,
    pub(crate) weight: Var,
    pub(crate) bias: Var,
}

impl Layer {
    /// Weights get He's uniform initialisation. Biases are small random
    /// numbers and not zero: with zero biases the empty corners of the images
    /// would put many relu inputs at exactly zero, where the slope is not
    /// defined.
    fn new(name: &'static str, shape: &[usize], dtype: DType, rng: &mut SplitMix64) -> Result<Self> {
        let fan_in = shape[1..].iter().product::<usize>() as f64;
        let mut random = |shape: &[usize], limit: f64| {
            let count = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|_| rng.symmetric(limit)).collect();
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
            Var::from_tensor(&tensor.to_dtype(dtype)?)
        };
        Ok(Self {
            name,
            weight: random(shape, (6.0 / fan_in).sqrt())?,
            bias: random(&shape[..1], (1.0 / fan_in).sqrt())?,
        })
    }

    /// A convolution that keeps the width and height of its input.
    fn convolve(&self, input: &Tensor) -> Result<Tensor> {
        let bias = self.bias.reshape((1, self.bias.elem_count(), 1, 1))?;
        input.conv2d(&self.weight, KERNEL / 2, 1, 1, 1)?.broadcast_add(&bias)
    }

    fn multiply(&self, input: &Tensor) -> Result<Tensor> {
        input.matmul(&self.weight.t()?)?.broadcast_add(&self.bias)
    }
}

pub(crate) struct Network {
    pub(crate) layers: [Layer; 5],
}

impl Network {
    pub(crate) fn new(dtype: DType, rng: &mut SplitMix64) -> Result<Self> {
        let features = CONV3_CHANNELS * (SIDE / 2) * (SIDE / 2);
        let mut layer = |name, shape: &[usize]| Layer::new(name, shape, dtype, rng);
        Ok(Self {
            layers: [
                layer("conv1", &[CONV1_CHANNELS, 1, KERNEL, KERNEL])?,
                layer("conv2", &[CONV2_CHANNELS, CONV1_CHANNELS, KERNEL, KERNEL])?,
                layer("conv3", &[CONV3_CHANNELS, CONV2_CHANNELS, KERNEL, KERNEL])?,
                layer("fc1", &[HIDDEN, features])?,
                layer("fc2", &[CLASSES, HIDDEN])?,
            ],
        })
    }

    /// Every parameter with its name, such as `conv1.weight`.
    pub(crate) fn parameters(&self) -> Vec<(String, &Var)> {
        let named = |layer: &'_ Layer, part| format!("{}.{part}", layer.name);
        self.layers
            .iter()
            .flat_map(|layer| [(named(layer, "weight"), &layer.weight), (named(layer, "bias"), &layer.bias)])
            .collect()
    }

    /// Takes images of shape (n, 1, 8, 8) to scores of shape (n, 10).
    pub(crate) fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let [conv1, conv2, conv3, fc1, fc2] = &self.layers;
        let x = conv1.convolve(images)?.relu()?;
        let x = conv2.convolve(&x)?.relu()?;
        let x = max_pool(&x)?;
        let x = conv3.convolve(&x)?.relu()?;
        let x = fc1.multiply(&x.flatten_from(1)?)?.relu()?;
        fc2.multiply(&x)
    }
}

/// Takes the maximum of each 2x2 block.
///
/// This is made of element-wise maxima because the backward pass of candle's
/// own `max_pool2d` (0.11.0 and 0.11.1) gives a quarter of the true gradient where a
/// block has one maximum: it multiplies by the share of maxima in the block
/// instead of dividing by their number. Every layer before the pool would get
/// wrong gradients. A test below checks the gradients against differences.
fn max_pool(input: &Tensor) -> Result<Tensor> {
    let (n, c, h, w) = input.dims4()?;
    let rows = input.reshape((n, c, h / 2, 2, w))?;
    let tall = rows.narrow(3, 0, 1)?.maximum(&rows.narrow(3, 1, 1)?)?;
    let columns = tall.reshape((n, c, h / 2, w / 2, 2))?;
    columns.narrow(4, 0, 1)?.maximum(&columns.narrow(4, 1, 1)?)?.squeeze(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_nn::loss::cross_entropy;

    #[test]
    fn max_pool_takes_the_largest_of_each_block() {
        let values: Vec<f32> = vec![1., 5., 2., 0., 3., 4., 8., 8., -1., -2., 0., 0., -3., -4., 0., 9.];
        let input = Tensor::from_vec(values, (1, 1, 4, 4), &Device::Cpu).unwrap();
        let output = max_pool(&input).unwrap();
        assert_eq!(output.dims(), [1, 1, 2, 2]);
        let found: Vec<f32> = output.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(found, [5., 8., -1., 9.]);
    }

    #[test]
    fn gradients_agree_with_differences_of_the_loss() {
        // Double precision keeps the differences exact enough to tell a wrong
        // backward pass from rounding.
        let mut rng = SplitMix64::new(11);
        let network = Network::new(DType::F64, &mut rng).unwrap();
        let pixels: Vec<f64> = (0..4 * 64).map(|_| rng.symmetric(1.0).max(0.0)).collect();
        let images = Tensor::from_vec(pixels, (4, 1, SIDE, SIDE), &Device::Cpu).unwrap();
        let labels = Tensor::from_vec(vec![3u32, 0, 9, 5], 4, &Device::Cpu).unwrap();
        let loss = || cross_entropy(&network.forward(&images).unwrap(), &labels).unwrap();
        let value = || loss().to_scalar::<f64>().unwrap();

        let gradients = loss().backward().unwrap();
        for (name, parameter) in network.parameters() {
            let start = parameter.copy().unwrap();
            let count = start.elem_count();
            let values: Vec<f64> = (0..count).map(|_| rng.symmetric(1.0)).collect();
            let direction = Tensor::from_vec(values, start.dims(), &Device::Cpu).unwrap();
            let gradient = gradients.get(parameter).unwrap();
            let slope = (gradient * &direction).unwrap().sum_all().unwrap();
            let slope = slope.to_scalar::<f64>().unwrap();

            let step = 1e-6;
            let moved = (&direction * step).unwrap();
            parameter.set(&(&start + &moved).unwrap()).unwrap();
            let above = value();
            parameter.set(&(&start - &moved).unwrap()).unwrap();
            let below = value();
            parameter.set(&start).unwrap();

            let difference = (above - below) / (2.0 * step);
            let error = (slope - difference).abs() / difference.abs();
            assert!(error < 1e-4, "{name}: {slope} but {difference}");
        }
    }
}
