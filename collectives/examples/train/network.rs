//! A network of full and convolutional layers with ReLU between them, and softmax cross-entropy at its end.

use std::ops::Range;

use super::random::Random;

/// A network: all parameters in one vector, layer after layer, of each the weights and then the bias.
///
/// The weights of a layer from `n` to `m` values are `m` rows of `n`. A convolution is such a layer at each place of an
/// image, whose values are the 3 x 3 pixels around the place, with all channels of each.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    layers: Vec<Layer>,
    parameters: Vec<f32>,
}

/// What a layer does, and where its parameters lie.
#[derive(Clone, Copy, Debug)]
struct Layer {
    inputs: usize,
    outputs: usize,
    weights: usize,
    bias: usize,
    /// None for a full layer.
    places: Option<Places>,
}

/// Where a convolution looks: at every `stride`th pixel of a square image, row by row. Beyond the image, all is zero.
#[derive(Clone, Copy, Debug)]
struct Places {
    side: usize,
    channels: usize,
    stride: usize,
}

impl Places {
    fn count(self) -> usize {
        self.side.div_ceil(self.stride).pow(2)
    }

    /// The pixels around a place, those that there are: where each has its channels among the place's values, and in
    /// the image.
    fn around(self, place: usize) -> impl Iterator<Item = (usize, usize)> {
        let Self { side, channels, stride } = self;
        let across = side.div_ceil(stride);
        let (row, column) = (place / across * stride, place % across * stride);
        (0..9).filter_map(move |near| {
            // One further than the pixel, so that nothing is below zero.
            let (y, x) = (row + near / 3, column + near % 3);
            let inside = (1..=side).contains(&y) && (1..=side).contains(&x);
            inside.then(|| (near * channels, ((y - 1) * side + x - 1) * channels))
        })
    }
}

impl Layer {
    fn end(self) -> usize {
        self.bias + self.outputs
    }

    fn places(self) -> usize {
        self.places.map_or(1, Places::count)
    }

    /// Values of an image that it takes.
    fn taken(self) -> usize {
        self.places.map_or(self.inputs, |places| places.side.pow(2) * places.channels)
    }

    /// The values at a place of an image.
    fn gather(self, place: usize, image: &[f32], values: &mut [f32]) {
        let Some(places) = self.places else { return values.copy_from_slice(image) };
        values.fill(0.0);
        for (to, from) in places.around(place) {
            values[to..to + places.channels].copy_from_slice(&image[from..from + places.channels]);
        }
    }

    /// Adds the values at a place to an image.
    fn scatter(self, place: usize, values: &[f32], image: &mut [f32]) {
        let Some(places) = self.places else { return add(image, 1.0, values) };
        for (from, to) in places.around(place) {
            add(&mut image[to..to + places.channels], 1.0, &values[from..from + places.channels]);
        }
    }
}

impl Network {
    /// Values of each layer, the input and the output among them; weights of mean 0 and variance 2 / inputs, and no
    /// bias.
    ///
    /// He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, equation 10.
    pub(crate) fn new(widths: &[usize], seed: u64) -> Self {
        Self::of(widths.windows(2).map(|pair| (pair[0], pair[1], None)), seed)
    }

    /// Two convolutions, of 16 and 32 channels, the second at every other pixel, and a full layer.
    pub(crate) fn convolutional(side: usize, classes: usize, seed: u64) -> Self {
        let places = |channels, stride| Some(Places { side, channels, stride });
        let last = 32 * side.div_ceil(2).pow(2);
        Self::of([(9, 16, places(1, 1)), (9 * 16, 32, places(16, 2)), (last, classes, None)], seed)
    }

    /// Layers one after another: values that each takes at a place and gives, and the places.
    fn of(layers: impl IntoIterator<Item = (usize, usize, Option<Places>)>, seed: u64) -> Self {
        let mut network = Self { layers: Vec::new(), parameters: Vec::new() };
        let mut random = Random::new(seed);
        for (inputs, outputs, places) in layers {
            let weights = network.parameters.len();
            let deviation = (2.0 / inputs as f64).sqrt();
            network.parameters.extend((0..inputs * outputs).map(|_| (deviation * random.normal()) as f32));
            let bias = network.parameters.len();
            network.parameters.resize(bias + outputs, 0.0);
            network.layers.push(Layer { inputs, outputs, weights, bias, places });
        }
        network
    }

    /// The shapes of the tensors that the parameters, and a gradient, consist of: weights and bias in turn.
    pub(crate) fn shapes(&self) -> Vec<Vec<u64>> {
        let shapes = |layer: &Layer| {
            let outputs = layer.outputs as u64;
            let weights = match layer.places {
                None => vec![outputs, layer.inputs as u64],
                Some(Places { channels, .. }) => vec![outputs, 3, 3, channels as u64],
            };
            [weights, vec![outputs]]
        };
        self.layers.iter().flat_map(shapes).collect()
    }

    pub(crate) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Goes on with other parameters, as many as there are.
    pub(crate) fn take_up(&mut self, parameters: &[f32]) {
        self.parameters.copy_from_slice(parameters);
    }

    /// The values of every layer for some images: first the input, last the logits.
    fn forward(&self, pixels: &[f32]) -> Vec<Vec<f32>> {
        let last = self.layers.len().saturating_sub(1);
        let mut values = vec![pixels.to_vec()];
        for (index, layer) in self.layers.iter().enumerate() {
            let weights = &self.parameters[layer.weights..layer.bias];
            let bias = &self.parameters[layer.bias..layer.end()];
            let input = &values[index];
            let mut output = Vec::with_capacity(input.len() / layer.taken() * layer.places() * layer.outputs);
            let mut here = vec![0.0; layer.inputs];
            for image in input.chunks_exact(layer.taken()) {
                for place in 0..layer.places() {
                    layer.gather(place, image, &mut here);
                    let rows = weights.chunks_exact(layer.inputs).zip(bias);
                    let sums = rows.map(|(row, bias)| dot(row, &here) + bias);
                    output.extend(sums.map(|sum| if index < last { sum.max(0.0) } else { sum }));
                }
            }
            values.push(output);
        }
        values
    }

    /// The cross-entropy of these images, summed; `gradient` becomes `scale` times its gradient.
    ///
    /// The last layer is first: `ready` hears of each layer's parameters, by where they begin and end, once their
    /// gradient is there.
    pub(crate) fn gradient<E>(
        &self,
        pixels: &[f32],
        labels: &[u32],
        scale: f32,
        gradient: &mut [f32],
        mut ready: impl FnMut(Range<usize>, &[f32]) -> Result<(), E>,
    ) -> Result<f64, E> {
        gradient.fill(0.0);
        let mut values = self.forward(pixels);
        let Some(mut back) = values.pop() else { return Ok(0.0) };
        let classes = self.classes();
        let mut loss = 0.0;
        for (logits, &label) in back.chunks_exact_mut(classes).zip(labels) {
            loss += softmax(logits, label);
            logits[label as usize] -= 1.0;
            logits.iter_mut().for_each(|logit| *logit *= scale);
        }
        for (layer, input) in self.layers.iter().zip(values).rev() {
            let weights = &self.parameters[layer.weights..layer.bias];
            let (of_weights, of_bias) = gradient[layer.weights..layer.end()].split_at_mut(layer.bias - layer.weights);
            let mut next = vec![0.0; input.len()];
            let (mut here, mut slopes) = (vec![0.0; layer.inputs], vec![0.0; layer.inputs]);
            let images = input.chunks_exact(layer.taken()).zip(next.chunks_exact_mut(layer.taken()));
            for ((image, next), back) in images.zip(back.chunks_exact(layer.places() * layer.outputs)) {
                for (place, back) in back.chunks_exact(layer.outputs).enumerate() {
                    layer.gather(place, image, &mut here);
                    slopes.fill(0.0);
                    for (output, &slope) in back.iter().enumerate() {
                        of_bias[output] += slope;
                        if slope != 0.0 {
                            let row = output * layer.inputs..(output + 1) * layer.inputs;
                            add(&mut of_weights[row.clone()], slope, &here);
                            add(&mut slopes, slope, &weights[row]);
                        }
                    }
                    layer.scatter(place, &slopes, next);
                }
                // The input is the ReLU of what lies before it, but for the first layer, where nothing asks.
                next.iter_mut().zip(image).for_each(|(next, value)| *next = if *value > 0.0 { *next } else { 0.0 });
            }
            back = next;
            ready(layer.weights..layer.end(), gradient)?;
        }
        Ok(loss)
    }

    fn classes(&self) -> usize {
        self.layers.last().map_or(1, |layer| layer.outputs)
    }

    /// One step of gradient descent.
    pub(crate) fn step(&mut self, gradient: &[f32], rate: f32) {
        add(&mut self.parameters, -rate, gradient);
    }

    /// The share of images whose digit is found, and the mean cross-entropy.
    pub(crate) fn evaluate(&self, pixels: &[f32], labels: &[u32]) -> (f64, f64) {
        let classes = self.classes();
        let mut logits = self.forward(pixels).pop().unwrap_or_default();
        let (mut right, mut loss) = (0usize, 0.0);
        for (logits, &label) in logits.chunks_exact_mut(classes).zip(labels) {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(class, _)| class);
            right += usize::from(best == Some(label as usize));
            loss += softmax(logits, label);
        }
        let count = labels.len().max(1) as f64;
        (right as f64 / count, loss / count)
    }
}

/// Turns logits into probabilities, and gives the cross-entropy with the label.
fn softmax(logits: &mut [f32], label: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter_mut().for_each(|logit| *logit -= most);
    let own = f64::from(logits[label as usize]);
    logits.iter_mut().for_each(|logit| *logit = logit.exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
    f64::from(sum).ln() - own
}

/// A sum of products in 16 lanes, so that the compiler may use vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

fn add(sums: &mut [f32], factor: f32, values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn images(count: usize, pixels: usize, classes: usize) -> (Vec<f32>, Vec<u32>) {
        let mut random = Random::new(5);
        let pixels = (0..count * pixels).map(|_| random.normal() as f32).collect();
        (pixels, (0..count).map(|at| (at * 7 % classes) as u32).collect())
    }

    /// A layer, as the plain form has it.
    #[derive(Clone, Copy)]
    enum Plain {
        Full { from: usize, to: usize },
        Convolution { side: usize, from: usize, to: usize, stride: usize },
    }

    fn full(widths: &[usize]) -> Vec<Plain> {
        widths.windows(2).map(|pair| Plain::Full { from: pair[0], to: pair[1] }).collect()
    }

    impl Plain {
        /// Weights, and the sums of a layer without its ReLU, of parameters that begin with its own.
        fn sums(self, parameters: &[f64], values: &[f64]) -> (usize, Vec<f64>) {
            match self {
                Self::Full { from, to } => {
                    let (weights, bias) = parameters.split_at(from * to);
                    let sum = |o: usize| bias[o] + (0..from).map(|i| weights[o * from + i] * values[i]).sum::<f64>();
                    (from * to + to, (0..to).map(sum).collect())
                }
                Self::Convolution { side, from, to, stride } => {
                    let (weights, bias) = parameters.split_at(9 * from * to);
                    let pixel = |y: isize, x: isize, c: usize| {
                        let inside = |at: isize| (0..side as isize).contains(&at);
                        if inside(y) && inside(x) { values[(y as usize * side + x as usize) * from + c] } else { 0.0 }
                    };
                    let mut sums = Vec::new();
                    for (y, x) in (0..side).step_by(stride).flat_map(|y| (0..side).step_by(stride).map(move |x| (y, x)))
                    {
                        for o in 0..to {
                            let mut sum = bias[o];
                            for (dy, dx, c) in (0..9 * from).map(|at| (at / from / 3, at / from % 3, at % from)) {
                                let weight = weights[((o * 3 + dy) * 3 + dx) * from + c];
                                sum += weight * pixel((y + dy) as isize - 1, (x + dx) as isize - 1, c);
                            }
                            sums.push(sum);
                        }
                    }
                    (9 * from * to + to, sums)
                }
            }
        }
    }

    /// The summed cross-entropy in f64, written down a second time.
    fn loss(layers: &[Plain], parameters: &[f64], pixels: &[f32], labels: &[u32]) -> f64 {
        let mut sum = 0.0;
        for (image, &label) in pixels.chunks_exact(pixels.len() / labels.len()).zip(labels) {
            let mut values: Vec<f64> = image.iter().map(|&pixel| f64::from(pixel)).collect();
            let mut at = 0;
            for (index, layer) in layers.iter().enumerate() {
                let (own, sums) = layer.sums(&parameters[at..], &values);
                let last = index + 1 == layers.len();
                values = sums.into_iter().map(|sum| if last { sum } else { sum.max(0.0) }).collect();
                at += own;
            }
            assert_eq!(at, parameters.len());
            sum += values.iter().map(|v| v.exp()).sum::<f64>().ln() - values[label as usize];
        }
        sum
    }

    /// Central differences of f64 are exact to 1e-9 here, so that the error is that of the gradient in f32: it adds up
    /// to `products` in each of three layers forward and back, and each may lose 2^-24 of the largest.
    fn check(mut network: Network, layers: &[Plain], products: f64, stride: usize) {
        // No bias is 0, so that each is tested.
        let mut random = Random::new(8);
        network.parameters.iter_mut().for_each(|p| *p += 0.1 * random.normal() as f32);
        let (pixels, labels) = images(6, network.layers[0].taken(), network.classes());
        let mut gradient = vec![7.0; network.parameters.len()];
        let scale = 0.25;
        let (mut end, whole) = (gradient.len(), &mut gradient);
        let ready = |layer: Range<usize>, gradient: &[f32]| {
            assert_eq!((layer.end, gradient.contains(&7.0)), (end, false));
            end = layer.start;
            Ok::<(), Infallible>(())
        };
        let Ok(sum) = network.gradient(&pixels, &labels, scale, whole, ready);
        assert_eq!(end, 0);
        let mut parameters: Vec<f64> = network.parameters.iter().map(|&p| f64::from(p)).collect();
        let largest = gradient.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        assert!((loss(layers, &parameters, &pixels, &labels) - sum).abs() < 1e-5 * sum);
        let allowed = f64::from(largest) * 6.0 * products / f64::from(1u32 << 24);
        for at in (0..parameters.len()).step_by(stride) {
            let (own, h) = (parameters[at], 1e-6);
            parameters[at] = own + h;
            let above = loss(layers, &parameters, &pixels, &labels);
            parameters[at] = own - h;
            let below = loss(layers, &parameters, &pixels, &labels);
            parameters[at] = own;
            let expected = f64::from(scale) * (above - below) / (2.0 * h);
            assert!((f64::from(gradient[at]) - expected).abs() <= allowed, "{at}: {} {expected}", gradient[at]);
        }
    }

    #[test]
    fn the_gradient_is_what_finite_differences_give() {
        for (widths, stride) in [(&[6, 5, 4, 3][..], 1), (&[17, 33, 2], 1), (&[64, 128, 64, 10], 41)] {
            check(Network::new(widths, 3), &full(widths), 128.0, stride);
        }
    }

    /// A weight of a convolution has a product of each place and image.
    #[test]
    fn so_is_that_of_convolutions() {
        for (side, stride) in [(5, 7), (8, 43)] {
            let last = 32 * (side + 1_usize).div_euclid(2).pow(2);
            let layers = [
                Plain::Convolution { side, from: 1, to: 16, stride: 1 },
                Plain::Convolution { side, from: 16, to: 32, stride: 2 },
                Plain::Full { from: last, to: 10 },
            ];
            check(Network::convolutional(side, 10, 3), &layers, (6 * side * side) as f64, stride);
        }
    }

    #[test]
    fn parameters_are_packed_by_layers() {
        let network = Network::new(&[64, 128, 64, 10], 1);
        let shapes = network.shapes();
        assert_eq!(shapes, [vec![128, 64], vec![128], vec![64, 128], vec![64], vec![10, 64], vec![10]]);
        let count: u64 = shapes.iter().map(|shape| shape.iter().product::<u64>()).sum();
        assert_eq!(network.parameters().len() as u64, count);
        assert_eq!(network.parameters()[128 * 64..128 * 65], [0.0; 128]);
        let network = Network::convolutional(8, 10, 1);
        let shapes = network.shapes();
        assert_eq!(shapes, [vec![16, 3, 3, 1], vec![16], vec![32, 3, 3, 16], vec![32], vec![10, 512], vec![10]]);
        assert_eq!(network.parameters().len(), 9930);
    }

    #[test]
    fn steps_lower_the_loss() {
        let mut network = Network::new(&[8, 16, 4], 1);
        let (pixels, labels) = images(20, 8, 4);
        let mut gradient = vec![0.0; network.parameters().len()];
        let (_, before) = network.evaluate(&pixels, &labels);
        for _ in 0..200 {
            let Ok(_) = network.gradient(&pixels, &labels, 1.0 / 20.0, &mut gradient, |_, _| Ok::<(), Infallible>(()));
            network.step(&gradient, 0.2);
        }
        let (right, after) = network.evaluate(&pixels, &labels);
        assert!(right == 1.0 && after < before / 4.0, "{right} {before} {after}");
    }
}
