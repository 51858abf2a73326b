//! Networks as tables of layers, from what their papers say of them.

/// A layer: what is exchanged of it, and what it computes.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) name: String,
    /// Parameters: weights, biases, scales and shifts of a normalization.
    pub(super) elements: u64,
    /// Elements of a column, as CNTK has matrices: the side of a kernel, or the outputs of a product.
    pub(super) column: u64,
    /// Multiplications and additions of the forward pass, for one sample.
    pub(super) products: u64,
}

/// A network.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) name: &'static str,
    /// From the first layer to the last.
    pub(super) layers: Vec<Layer>,
}

impl Network {
    fn new(name: &'static str) -> Self {
        Self { name, layers: Vec::new() }
    }

    pub(super) fn elements(&self) -> u64 {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    pub(super) fn products(&self) -> u64 {
        self.layers.iter().map(|layer| layer.products).sum()
    }

    fn add(&mut self, elements: u64, column: u64, products: u64) {
        let name = format!("{}", self.layers.len() + 1);
        self.layers.push(Layer { name, elements, column, products });
    }

    /// A convolution with square kernels and outputs of `side` by `side`, and `extra` parameters for each output.
    fn convolution(&mut self, [from, to]: [u64; 2], kernel: u64, side: u64, extra: u64) {
        let weights = kernel * kernel * from * to;
        self.add(weights + extra * to, kernel, weights * side * side);
    }

    /// A scale and a shift for each of so many channels.
    fn normalization(&mut self, channels: u64) {
        self.add(2 * channels, channels, 0);
    }

    /// A product with biases.
    fn dense(&mut self, from: u64, to: u64) {
        self.add(from * to + to, to, from * to);
    }
}

/// Krizhevsky 2014, one tower, as torchvision has it.
pub(super) fn alexnet() -> Network {
    let mut network = Network::new("AlexNet");
    for ([from, to], kernel, side) in
        [([3, 64], 11, 55), ([64, 192], 5, 27), ([192, 384], 3, 13), ([384, 256], 3, 13), ([256, 256], 3, 13)]
    {
        network.convolution([from, to], kernel, side, 1);
    }
    for (from, to) in [(9216, 4096), (4096, 4096), (4096, 1000)] {
        network.dense(from, to);
    }
    network
}

/// Simonyan and Zisserman 2015, with so many convolutions in each of five stages.
fn vgg(name: &'static str, stages: [u64; 5]) -> Network {
    let mut network = Network::new(name);
    let (mut from, mut side) = (3, 224);
    for (convolutions, to) in stages.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..convolutions {
            network.convolution([from, to], 3, side, 1);
            from = to;
        }
        side /= 2;
    }
    for (from, to) in [(25_088, 4096), (4096, 4096), (4096, 1000)] {
        network.dense(from, to);
    }
    network
}

pub(super) fn vgg16() -> Network {
    vgg("VGG16", [2, 2, 3, 3, 3])
}

pub(super) fn vgg19() -> Network {
    vgg("VGG19", [2, 2, 4, 4, 4])
}

/// He et al. 2016, with bottlenecks.
fn resnet(name: &'static str, stages: [u64; 4]) -> Network {
    let mut network = Network::new(name);
    network.convolution([3, 64], 7, 112, 2);
    let (mut from, mut side) = (64, 56);
    for (stage, (blocks, width)) in stages.into_iter().zip([64, 128, 256, 512]).enumerate() {
        for block in 0..blocks {
            let before = side;
            if block == 0 && stage > 0 {
                side /= 2;
            }
            network.convolution([from, width], 1, before, 2);
            network.convolution([width, width], 3, side, 2);
            network.convolution([width, 4 * width], 1, side, 2);
            if block == 0 {
                network.convolution([from, 4 * width], 1, side, 2);
            }
            from = 4 * width;
        }
    }
    network.dense(2048, 1000);
    network
}

pub(super) fn resnet50() -> Network {
    resnet("ResNet-50", [3, 4, 6, 3])
}

pub(super) fn resnet152() -> Network {
    resnet("ResNet-152", [3, 8, 36, 3])
}

/// He et al. 2016, for images of 32 by 32: three stages of 18 blocks, without parameters in the shortcuts.
pub(super) fn resnet110() -> Network {
    let mut network = Network::new("ResNet-110");
    network.convolution([3, 16], 3, 32, 2);
    let mut from = 16;
    for (width, side) in [(16, 32), (32, 16), (64, 8)] {
        for _ in 0..36 {
            network.convolution([from, width], 3, side, 2);
            from = width;
        }
    }
    network.dense(64, 10);
    network
}

/// Huang et al. 2017, with four blocks of so many layers, each of which adds `growth` channels.
fn densenet(name: &'static str, growth: u64, blocks: [u64; 4]) -> Network {
    let mut network = Network::new(name);
    let mut channels = 2 * growth;
    network.convolution([3, channels], 7, 112, 2);
    let mut side = 56;
    for (block, layers) in blocks.into_iter().enumerate() {
        for _ in 0..layers {
            network.normalization(channels);
            network.convolution([channels, 4 * growth], 1, side, 2);
            network.convolution([4 * growth, growth], 3, side, 0);
            channels += growth;
        }
        network.normalization(channels);
        if block < 3 {
            network.convolution([channels, channels / 2], 1, side, 0);
            (channels, side) = (channels / 2, side / 2);
        }
    }
    network.dense(channels, 1000);
    network
}

pub(super) fn densenet161() -> Network {
    densenet("DenseNet-161", 48, [6, 12, 36, 24])
}

pub(super) fn densenet201() -> Network {
    densenet("DenseNet-201", 32, [6, 12, 48, 32])
}

/// A module of BN-Inception: outputs of the product by 1, of the branch by 3, of the branch by 3 twice, and behind the pooling.
type Module = (u64, [u64; 2], [u64; 2], u64, u64);

/// Ioffe and Szegedy 2015, figure 5. Where a module halves the sides, it has no product by 1, and the pooling keeps its inputs.
pub(super) fn bn_inception() -> Network {
    const MODULES: [Module; 10] = [
        (64, [64, 64], [64, 96], 32, 28),
        (64, [64, 96], [64, 96], 64, 28),
        (0, [128, 160], [64, 96], 0, 14),
        (224, [64, 96], [96, 128], 128, 14),
        (192, [96, 128], [96, 128], 128, 14),
        (160, [128, 160], [128, 160], 96, 14),
        (96, [128, 192], [160, 192], 96, 14),
        (0, [128, 192], [192, 256], 0, 7),
        (352, [192, 320], [160, 224], 128, 7),
        (352, [192, 320], [192, 224], 128, 7),
    ];
    let mut network = Network::new("BN-Inception");
    network.convolution([3, 64], 7, 112, 2);
    network.convolution([64, 64], 1, 56, 2);
    network.convolution([64, 192], 3, 56, 2);
    let (mut from, mut before) = (192, 28);
    for (one, three, twice, pooled, side) in MODULES {
        if one > 0 {
            network.convolution([from, one], 1, side, 2);
        }
        network.convolution([from, three[0]], 1, before, 2);
        network.convolution(three, 3, side, 2);
        network.convolution([from, twice[0]], 1, before, 2);
        network.convolution(twice, 3, before, 2);
        network.convolution([twice[1], twice[1]], 3, side, 2);
        if pooled > 0 {
            network.convolution([from, pooled], 1, side, 2);
        }
        let kept = if pooled > 0 { pooled } else { from };
        (from, before) = (one + three[1] + twice[1] + kept, side);
    }
    network.dense(from, 1000);
    network
}

/// Three layers of 768 cells over 363 features, which make the 13 million parameters that Grubic et al. have. The
/// sizes of its layers are not published: they are assumed, as are 300 steps of a sequence.
pub(super) fn lstm() -> Network {
    const STEPS: u64 = 300;
    let mut network = Network::new("LSTM");
    let mut from = 363;
    for _ in 0..3 {
        let weights = 4 * 768 * (from + 768);
        network.add(weights + 4 * 768, 4 * 768, STEPS * weights);
        from = 768;
    }
    network.add(769 * 132, 132, STEPS * 768 * 132);
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As torchvision counts them.
    #[test]
    fn networks_have_as_many_parameters_as_is_published() {
        for (network, published) in [
            (alexnet(), 61_100_840),
            (vgg16(), 138_357_544),
            (vgg19(), 143_667_240),
            (resnet50(), 25_557_032),
            (resnet152(), 60_192_808),
            (densenet161(), 28_681_000),
            (densenet201(), 20_013_928),
        ] {
            assert_eq!(network.elements(), published, "{}", network.name);
        }
        // He et al. 2016, table 6, say 1.7 million; Grubic et al. 2018 say 13 million of the LSTM.
        for (network, millions) in [(resnet110(), 1.7), (lstm(), 13.0), (bn_inception(), 11.0)] {
            let found = network.elements() as f64 / 1e6;
            assert!((found - millions).abs() < 0.05 * millions, "{}: {found}", network.name);
        }
    }

    /// He et al. 2016, table 1, have 3.8 and 11.3 billion products and sums; Simonyan and Zisserman's 19 layers have 19.6.
    #[test]
    fn networks_compute_as_much_as_is_published() {
        for (network, billions) in [(resnet50(), 3.8), (resnet152(), 11.3), (vgg19(), 19.6)] {
            let found = network.products() as f64 / 1e9;
            assert!((found - billions).abs() < 0.1 * billions, "{}: {found}", network.name);
        }
    }
}
