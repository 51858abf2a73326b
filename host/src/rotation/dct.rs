//! The cosine transform of blocks, and back.

use gradwire_kernels::params::{DCT_SPAN, DctParams, dct_flags};

use super::tiles::Tiles;
use crate::codec::powersgd::Matrix;
use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};

/// A cosine transform of blocks: the orthonormal DCT-II of squares of 64 x 64 elements that lie one after another.
///
/// y_kl = s_k s_l sum_ij x_ij cos(k (2i + 1) pi / (2B)) cos(l (2j + 1) pi / (2B)), with the side B of a block, s_0 =
/// sqrt(1 / B) and s_k = sqrt(2 / B). What is smooth or constant over a block has a few large coefficients, so that a
/// selection of as many entries keeps more of the gradient.
///
/// Source: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization", 2024, which takes squares of 64 x 64 of
/// a tensor's matrix, as [`Dct::tiles`] does; without it a block is 4096 elements as they lie. Makhoul, "A fast cosine
/// transform in one and two dimensions", IEEE Transactions on Acoustics, Speech, and Signal Processing 28, 1980, has
/// the transform. The order of the operations is by Plonka and Tasche, "Fast and numerically stable algorithms for
/// discrete cosine transforms", Linear Algebra and its Applications 394, 2005.
///
/// * **Block**: a square whose side is a power of two from 2 to 64, 64 by default. What whole blocks leave of a tensor
///   falls into blocks of the powers of two that add up to it, the largest first, down to one element; those that are
///   no squares have rows of twice as many elements as there are rows.
/// * **Size**: as many coefficients as elements, in f32.
/// * **Order**: of each row and then of each column, sums, differences, and products with constants, each rounded once;
///   one multiplication by the roots of both. Back, the same multiplication, then columns, then rows.
/// * **Error**: the L2 norm of the error of a block is at most (4 k + 2) 2^-24 |x| + 2^-130, with k the base-2 logarithm
///   of the block's elements and |x| its L2 norm, where no sum overflows; back the same, and there and back twice that.
/// * **Seeds**: none. Every step and every worker has the same basis, so that residuals, momenta and sums may be of
///   coefficients.
/// * **Edge cases**: a value that is not finite makes its block's coefficients NaN or infinite. The sum of a block's
///   magnitudes has to be below 2^127, or it may overflow. A constant block has one coefficient that is not zero.
/// * **Backends**: all.
/// * **Determinism**: backend to backend.
///
/// ```
/// use gradwire::{Dct, Device};
/// let (device, gradient) = (Device::cpu(), [0.5f32; 4096]);
/// let coefficients = device.dct(Dct::default(), &gradient)?;
/// assert_eq!(coefficients[0], 32.0); // 4096 * 0.5 / sqrt(4096)
/// assert!(coefficients[1..].iter().all(|y| *y == 0.0));
/// assert_eq!(device.inverse_dct(Dct::default(), &coefficients)?, gradient);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dct {
    side: usize,
    tiles: bool,
}

impl Default for Dct {
    fn default() -> Self {
        Self::block(64)
    }
}

impl Dct {
    /// Squares of this side: a power of two from 2 to 64. Anything else is refused when it is used.
    pub const fn block(side: usize) -> Self {
        Self { side, tiles: false }
    }

    /// The side of a block: its elements are the square of it.
    pub const fn side(&self) -> usize {
        self.side
    }

    /// The same of squares of a tensor's matrix, with the same side, in a recipe: [`Recipe::dct`].
    ///
    /// [`Device::dct`] refuses them, since a slice has no rows.
    ///
    /// * **Matrix**: the first dimension of a tensor by the product of the others, as [`Matrix::of`] has it.
    /// * **Order**: the tensors of a recipe become one line of elements. First, tensor by tensor, each whole tile:
    ///   those of a row of tiles beside each other, then the next row of tiles, and a tile's elements row by row. Then,
    ///   tensor by tensor, what no whole tile holds: what lies right of the tiles, row by row, then the last rows; of a
    ///   tensor that is a vector, or less than a tile high or wide, all. Blocks are of that line. So each tile is a
    ///   whole block, and one of `topk:block=4096`, whatever lies around it.
    /// * **Sides** that the block's does not divide: DeMo then takes the largest divisor of a side that is at most 64.
    ///   Here sides of blocks are powers of two alone, since the transform halves a line at each of its levels.
    ///
    /// ```
    /// use gradwire::{Dct, Recipe, TopK};
    /// let tiles = Dct::default().tiles();
    /// assert!(tiles.is_tiled() && tiles.side() == 64);
    /// assert_eq!(Recipe::from(TopK::blocks(4096, 32)).dct(tiles).to_string(), "dct:tiles+topk:k=32,block=4096");
    /// ```
    ///
    /// [`Recipe::dct`]: crate::Recipe::dct
    /// [`Device::dct`]: crate::Device::dct
    /// [`Matrix::of`]: crate::Matrix::of
    pub const fn tiles(self) -> Self {
        Self { tiles: true, ..self }
    }

    /// Whether blocks are squares of a tensor's matrix.
    pub const fn is_tiled(&self) -> bool {
        self.tiles
    }

    /// The transform of elements that are in the order of tiles already.
    pub(crate) const fn of_order(self) -> Self {
        Self { tiles: false, ..self }
    }

    /// The order of the elements of matrices one after another; none if they are taken as they lie.
    pub(crate) fn order(self, matrices: &[Matrix]) -> Result<Option<Tiles>, Error> {
        self.check()?;
        Ok(self.tiles.then(|| Tiles::new(self.side as u64, matrices)))
    }

    /// Refuses a block that no tensor admits.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.params(0, false).map(drop)
    }

    /// The parameters of a tensor of `n` elements.
    pub(crate) fn params(self, n: u64, inverse: bool) -> Result<DctParams, Error> {
        if !self.side.is_power_of_two() || !(2..=64).contains(&self.side) {
            let allowed = "a side that is a power of two from 2 to 64";
            return Err(Error::Setting { what: "the block of a cosine transform", got: self.side as f64, allowed });
        }
        if n > 1 << 31 {
            return Err(Error::TooLong { got: n });
        }
        let flags = if inverse { dct_flags::INVERSE } else { 0 };
        Ok(DctParams { n: n as u32, block_log2: 2 * self.side.trailing_zeros(), flags, reserved: 0 })
    }
}

/// The passes that transform from the input into the output, within a device's limits.
pub(crate) fn passes(whole: &DctParams, limits: &Limits) -> Result<Vec<Pass>, Error> {
    let n = u64::from(whole.n);
    if n == 0 {
        return Ok(Vec::new());
    }
    // Whole blocks, so that the blocks of a pass are those of the tensor.
    let chunk = limits.chunk(4, DCT_SPAN)?;
    let pass = |first: u64| {
        let own = (n - first).min(chunk);
        let span = Span { offset: 4 * first, bytes: 4 * own };
        Pass {
            kernel: Kernel::Dct,
            params: Params::Dct(DctParams { n: own as u32, ..*whole }),
            bindings: Bindings { input: span, output: span, ..Bindings::default() },
            groups: own.div_ceil(u64::from(DCT_SPAN)) as u32,
        }
    };
    Ok((0..n.div_ceil(chunk)).map(|index| pass(index * chunk)).collect())
}
