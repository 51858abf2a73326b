//! A network as a table of layers.

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
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, layers: Vec::new() }
    }

    pub(super) fn elements(&self) -> u64 {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    pub(super) fn products(&self) -> u64 {
        self.layers.iter().map(|layer| layer.products).sum()
    }

    pub(super) fn add(&mut self, elements: u64, column: u64, products: u64) {
        let name = format!("{}", self.layers.len() + 1);
        self.layers.push(Layer { name, elements, column, products });
    }

    /// A convolution with square kernels and outputs of `side` by `side`, and `extra` parameters for each output.
    pub(super) fn convolution(&mut self, channels: [u64; 2], kernel: u64, side: u64, extra: u64) {
        self.oblong(channels, [kernel, kernel], side, extra);
    }

    /// A convolution with kernels of so many rows and columns.
    pub(super) fn oblong(&mut self, [from, to]: [u64; 2], [rows, columns]: [u64; 2], side: u64, extra: u64) {
        let weights = rows * columns * from * to;
        self.add(weights + extra * to, columns, weights * side * side);
    }

    /// A scale and a shift for each of so many channels.
    pub(super) fn normalization(&mut self, channels: u64) {
        self.add(2 * channels, channels, 0);
    }

    /// A product with biases.
    pub(super) fn dense(&mut self, from: u64, to: u64) {
        self.add(from * to + to, to, from * to);
    }
}
