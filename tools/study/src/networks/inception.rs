//! The Inception networks.

use crate::network::Network;

/// A module of BN-Inception: outputs of the product by 1, of the branch by 3, of the branch by 3 twice, and after the
/// pooling.
type Module = (u64, [u64; 2], [u64; 2], u64, u64);

/// Ioffe and Szegedy 2015, figure 5. Where a module halves the sides, it has no product by 1, and the pooling keeps its
/// inputs.
pub(crate) fn bn_inception() -> Network {
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

/// A convolution with normalization: its outputs, the rows and columns of its kernel, and the side of its outputs.
type Step = (u64, [u64; 2], u64);

const ONE: [u64; 2] = [1, 1];
const THREE: [u64; 2] = [3, 3];

/// Convolutions one after another.
fn chain(network: &mut Network, mut from: u64, steps: &[Step]) {
    for &(to, kernel, side) in steps {
        network.oblong([from, to], kernel, side, 2);
        from = to;
    }
}

/// Szegedy et al. 2016, figures 3 to 9, with sides where a kernel does not reach over the border, from images of 299 by
/// 299.
pub(crate) fn inception_v4() -> Network {
    let mut network = Network::new("Inception-v4");
    let n = &mut network;
    chain(n, 3, &[(32, THREE, 149), (32, THREE, 147), (64, THREE, 147), (96, THREE, 73)]);
    chain(n, 160, &[(64, ONE, 73), (96, THREE, 71)]);
    chain(n, 160, &[(64, ONE, 73), (64, [1, 7], 73), (64, [7, 1], 73), (96, THREE, 71)]);
    chain(n, 192, &[(192, THREE, 35)]);
    for _ in 0..4 {
        chain(n, 384, &[(96, ONE, 35)]);
        chain(n, 384, &[(64, ONE, 35), (96, THREE, 35)]);
        chain(n, 384, &[(64, ONE, 35), (96, THREE, 35), (96, THREE, 35)]);
        chain(n, 384, &[(96, ONE, 35)]);
    }
    chain(n, 384, &[(384, THREE, 17)]);
    chain(n, 384, &[(192, ONE, 35), (224, THREE, 35), (256, THREE, 17)]);
    for _ in 0..7 {
        chain(n, 1024, &[(384, ONE, 17)]);
        chain(n, 1024, &[(192, ONE, 17), (224, [1, 7], 17), (256, [7, 1], 17)]);
        let long = [(192, ONE, 17), (192, [7, 1], 17), (224, [1, 7], 17), (224, [7, 1], 17), (256, [1, 7], 17)];
        chain(n, 1024, &long);
        chain(n, 1024, &[(128, ONE, 17)]);
    }
    chain(n, 1024, &[(192, ONE, 17), (192, THREE, 8)]);
    chain(n, 1024, &[(256, ONE, 17), (256, [1, 7], 17), (320, [7, 1], 17), (320, THREE, 8)]);
    for _ in 0..3 {
        chain(n, 1536, &[(256, ONE, 8)]);
        // Two convolutions read the same inputs, here and after the next branch.
        chain(n, 1536, &[(384, ONE, 8), (256, [1, 3], 8)]);
        chain(n, 384, &[(256, [3, 1], 8)]);
        chain(n, 1536, &[(384, ONE, 8), (448, [3, 1], 8), (512, [1, 3], 8), (256, [1, 3], 8)]);
        chain(n, 512, &[(256, [3, 1], 8)]);
        chain(n, 1536, &[(256, ONE, 8)]);
    }
    network.dense(1536, 1000);
    network
}
