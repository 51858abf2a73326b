//! What iterations are simulated on: GPUs with published rates, links, and codecs by the memory that they move.

use gradwire_planner::{Algorithm, CodecCost, Curve, Layer, Line, Profile, Route};

use super::network::{self, Network};
use super::networks;

/// A GPU.
pub(super) struct Gpu {
    pub(super) name: &'static str,
    /// Bytes per second of a copy, read and written.
    copy: f64,
    /// Images per second of a training on one GPU, without input: ResNet-50, ResNet-152, AlexNet, VGG16.
    images: [f64; 4],
}

/// Rates are of "Benchmarks", TensorFlow's guide (May 2017), tables "Training synthetic data" with one GPU of a DGX-1
/// and of Google Compute Engine. Nobody has published them for Hopper with the same program: ten times the P100's are
/// assumed. The copy rates of Kepler and Pascal are 77 % of the data sheets'; Hopper's is an H200's.
pub(super) const GPUS: [Gpu; 3] = [
    Gpu { name: "Kepler (half a K80)", copy: 185e9, images: [51.9, 20.0, 656.0, 35.4] },
    Gpu { name: "Pascal (P100)", copy: 564e9, images: [219.0, 91.8, 2987.0, 154.0] },
    Gpu { name: "Hopper (assumed)", copy: 4.3e12, images: [2190.0, 918.0, 29_870.0, 1540.0] },
];

impl Gpu {
    /// Seconds of a sample's passes. A network without a published rate computes as fast as the one that is most like
    /// it: VGG19 as VGG16, all others as ResNet-50.
    fn per_sample(&self, network: &Network) -> f64 {
        let like = match network.name {
            "ResNet-50" => return 1.0 / self.images[0],
            "ResNet-152" => return 1.0 / self.images[1],
            "AlexNet" => return 1.0 / self.images[2],
            "VGG19" => (networks::vgg16(), self.images[3]),
            _ => (networks::resnet50(), self.images[0]),
        };
        network.products() as f64 / (like.0.products() as f64 * like.1)
    }

    /// Images per second, for a table; and whether they are published.
    pub(super) fn images(&self, network: &Network) -> (f64, bool) {
        (1.0 / self.per_sample(network), matches!(network.name, "ResNet-50" | "ResNet-152" | "AlexNet"))
    }

    /// An iteration of so many samples: a third of it forward, the rest backward, by what each layer computes.
    pub(super) fn profile(&self, network: &Network, samples: f64) -> Result<Profile, String> {
        let (seconds, all) = (samples * self.per_sample(network), network.products() as f64);
        let layer = |layer: &network::Layer| {
            Layer::new(&layer.name, layer.elements, seconds * 2.0 / 3.0 * layer.products as f64 / all)
        };
        Profile::new(seconds / 3.0, network.layers.iter().rev().map(layer).collect()).map_err(|e| e.to_string())
    }

    /// What a quantizer with feedback costs in two phases, for payloads of so many bytes per element: the gradient and
    /// its residual are read, the residual and the payload written, and a part of the sum once more; payloads of all
    /// pieces are added to a sum, and those of the result decoded. At the copy rate, with ten microseconds for each
    /// launch.
    pub(super) fn two_phases(&self, name: &str, bytes_per_element: f64, ranks: u32) -> CodecCost {
        let again = 1.0 + 1.0 / f64::from(ranks);
        CodecCost {
            name: name.to_owned(),
            encode: self.launches(2.0, (12.0 + bytes_per_element) * again),
            decode: self.launches(2.0, 2.0 * bytes_per_element + 12.0),
            bytes_per_element,
            // As a ring: pieces to their owners, and sums back.
            sums: true,
            ..CodecCost::dense()
        }
    }

    /// What a codec with feedback costs whose payloads are gathered or summed: the gradient and its residual are read,
    /// the residual and the payload written; each payload is read, and added to a sum.
    pub(super) fn gathered(&self, name: &str, bytes_per_element: f64, sums: bool) -> CodecCost {
        CodecCost {
            name: name.to_owned(),
            encode: self.launches(2.0, 12.0 + bytes_per_element),
            decode: self.launches(1.0, 8.0 + bytes_per_element),
            bytes_per_element,
            sums,
            ..CodecCost::dense()
        }
    }

    /// Ten microseconds for each launch, and so many bytes per element at the copy rate.
    fn launches(&self, launches: f64, bytes: f64) -> Curve {
        Curve::Line(Line::new(launches * 10e-6, bytes / self.copy))
    }
}

/// A link.
pub(super) struct Link {
    pub(super) name: &'static str,
    alpha: f64,
    /// Bytes per second.
    rate: f64,
}

/// Between GPUs of one machine: through the host's memory, and direct. Assumed.
pub(super) const LINKS: [Link; 2] =
    [Link { name: "MPI-like", alpha: 50e-6, rate: 1e9 }, Link { name: "NCCL-like", alpha: 20e-6, rate: 8e9 }];

impl Link {
    /// The way of a codec's payloads.
    pub(super) fn route(&self, codec: CodecCost, ranks: u32) -> Result<Route, String> {
        let network = gradwire_planner::Network::new(self.alpha, 1.0 / self.rate).map_err(|e| e.to_string())?;
        let exchange = Algorithm::Ring.cost(&network, ranks).map_err(|e| e.to_string())?;
        Ok(Route { codec, exchange, payloads: 1 })
    }
}
