//! Networks as tables of layers, from what their papers say of them.

mod inception;

pub(super) use self::inception::{bn_inception, inception_v4};
use super::network::Network;

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

/// The convolutions of Simonyan and Zisserman 2015, so many in each of five stages.
fn vgg_convolutions(name: &'static str, stages: [u64; 5], mut side: u64, extra: u64) -> Network {
    let mut network = Network::new(name);
    let mut from = 3;
    for (convolutions, to) in stages.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..convolutions {
            network.convolution([from, to], 3, side, extra);
            from = to;
        }
        side /= 2;
    }
    network
}

fn vgg(name: &'static str, stages: [u64; 5]) -> Network {
    let mut network = vgg_convolutions(name, stages, 224, 1);
    for (from, to) in [(25_088, 4096), (4096, 4096), (4096, 1000)] {
        network.dense(from, to);
    }
    network
}

/// For images of 32 by 32, with normalizations and one product, as the program of gTop-k has it.
pub(super) fn vgg16_small() -> Network {
    let mut network = vgg_convolutions("VGG-16 (CIFAR-10)", [2, 2, 3, 3, 3], 32, 3);
    network.dense(512, 10);
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

/// He et al. 2016, for images of 32 by 32: three stages of so many blocks, without parameters in the shortcuts.
fn resnet_small(name: &'static str, blocks: u64) -> Network {
    let mut network = Network::new(name);
    network.convolution([3, 16], 3, 32, 2);
    let mut from = 16;
    for (width, side) in [(16, 32), (32, 16), (64, 8)] {
        for _ in 0..2 * blocks {
            network.convolution([from, width], 3, side, 2);
            from = width;
        }
    }
    network.dense(64, 10);
    network
}

pub(super) fn resnet20() -> Network {
    resnet_small("ResNet-20", 3)
}

pub(super) fn resnet110() -> Network {
    resnet_small("ResNet-110", 18)
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

/// Zaremba et al. 2014, the large one for the Penn Treebank, as the program of gTop-k has it: words of 1500 numbers,
/// two layers of 1500 cells, each with weights of its inputs, weights of its state and two biases, 35 steps, and a
/// product for 10,000 words.
pub(super) fn lstm_ptb() -> Network {
    let [words, cells, steps] = [10_000, 1500, 35];
    let mut network = Network::new("LSTM-PTB");
    network.add(words * cells, cells, 0);
    let weights = 4 * cells * cells;
    for biases in [8 * cells, 0, 8 * cells, 0] {
        network.add(weights + biases, 4 * cells, steps * weights);
    }
    network.add(cells * words + words, words, steps * cells * words);
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
            // As timm counts them.
            (inception_v4(), 42_679_816),
            // The elements whose selection OMGS's model gives the published 0.37548 s.
            (lstm_ptb(), 66_034_000),
        ] {
            assert_eq!(network.elements(), published, "{}", network.name);
        }
        // He et al. 2016, table 6, say 1.7 million; Grubic et al. 2018 say 13 million of the LSTM.
        // The program of gTop-k has 14.7 and 0.27 million of the small networks.
        for (network, millions) in
            [(resnet110(), 1.7), (lstm(), 13.0), (bn_inception(), 11.0), (vgg16_small(), 14.7), (resnet20(), 0.27)]
        {
            let found = network.elements() as f64 / 1e6;
            assert!((found - millions).abs() < 0.05 * millions, "{}: {found}", network.name);
        }
    }

    /// He et al. 2016, table 1, have 3.8 and 11.3 billion products and sums; Simonyan and Zisserman's 19 layers have
    /// 19.6; and timm's card of Inception-v4 has 12.3.
    #[test]
    fn networks_compute_as_much_as_is_published() {
        for (network, billions) in [(resnet50(), 3.8), (resnet152(), 11.3), (vgg19(), 19.6), (inception_v4(), 12.3)] {
            let found = network.products() as f64 / 1e9;
            assert!((found - billions).abs() < 0.1 * billions, "{}: {found}", network.name);
        }
    }
}
