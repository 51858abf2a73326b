//! The randomised Hadamard transform of blocks: which blocks, and the passes. Pure.

use gradwire_kernels::arith::rotation::{MOST_LOG2, ROW_LOG2, SIGN_KEY};
use gradwire_kernels::params::{RotateParams, SPAN, rotate_flags};

use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};
use crate::seed::Seed;

/// Elements of a row, to which a tensor is padded.
const ROW: u64 = 1 << ROW_LOG2;

/// A rotation of blocks: y = H D x / sqrt(B), with the Hadamard matrix H of the block's B elements and signs D drawn
/// from the seed.
///
/// Behind it, no coordinate of a block is much larger than the others, whatever the block held. So a quantizer whose
/// error goes by the largest magnitude, or by the range, loses less on gradients with a few large elements.
///
/// Source: Vargaftik et al., "DRIVE: One-bit distributed mean estimation", NeurIPS 2021, section 6, and "EDEN", ICML
/// 2022. There a vector is one block.
///
/// * **Block**: a power of two from 32 to 8192, 1024 by default. What whole blocks leave of a tensor falls into blocks
///   of the powers of two that add up to it, the largest first, down to 32; the last one is padded with zeros.
/// * **Size**: [`Rotation::rotated_len`], at most 31 elements more than the tensor.
/// * **Order**: signs; sums and differences of distance 1, 2, 4 and so on, each rounded once; one multiplication by 1 /
///   sqrt(B), rounded to binary32, which is exact where B is a power of four.
/// * **Error**: back and forth, an element is off by at most (2 k + 4) 2^-24 |x| and 2^-140, k = log2 B and |x| the L2
///   norm of its block, where no sum overflows.
/// * **Seeds**: the signs depend on (run, step, tensor), and not on the worker: workers of a step rotate alike, so that
///   sums of rotated gradients are rotated sums. With [`Rotation::own`] they depend on the worker too, as in the papers:
///   then workers with equal gradients have different errors, which average out in the mean. No draw of an encode
///   shares their key.
/// * **Edge cases**: a value that is not finite makes all of its block NaN or infinite. The sum of a block's magnitudes
///   has to be below 2^128, or it overflows.
/// * **Determinism**: backend to backend.
///
/// ```
/// use gradwire::{Device, Rotation, Seed};
/// let (device, rotation, seed) = (Device::cpu(), Rotation::default(), Seed::new(1).step(7));
/// let mut gradient = [0.0f32; 1024];
/// gradient[300] = 64.0;
/// let rotated = device.rotate(rotation, &gradient, seed)?;
/// assert!(rotated.iter().all(|y| y.abs() == 2.0)); // one large element is spread over its block
/// assert_eq!(device.unrotate(rotation, &rotated, gradient.len(), seed)?, gradient);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rotation {
    block: usize,
    own: bool,
}

impl Default for Rotation {
    fn default() -> Self {
        Self::block(1024)
    }
}

impl Rotation {
    /// Blocks of `elements` elements: a power of two from 32 to 8192. Anything else is refused when it is used.
    pub const fn block(elements: usize) -> Self {
        Self { block: elements, own: false }
    }

    /// The same with each worker's own signs: the seed's worker counts.
    ///
    /// ```
    /// use gradwire::{Device, Rotation, Seed};
    /// let (device, values) = (Device::cpu(), [1.0f32; 64]);
    /// let of = |rotation, worker| device.rotate(rotation, &values, Seed::new(1).worker(worker));
    /// assert_eq!(of(Rotation::block(64), 0)?, of(Rotation::block(64), 1)?);
    /// assert_ne!(of(Rotation::block(64).own(), 0)?, of(Rotation::block(64).own(), 1)?);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub const fn own(self) -> Self {
        Self { own: true, ..self }
    }

    /// Whether each worker has signs of its own.
    pub const fn is_own(&self) -> bool {
        self.own
    }

    /// Elements of a block.
    pub const fn elements(&self) -> usize {
        self.block
    }

    /// Refuses a block that no tensor admits.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.log2().map(drop)
    }

    /// Elements that a tensor of `n` elements is rotated into: the next multiple of 32.
    pub const fn rotated_len(&self, n: u64) -> u64 {
        n.div_ceil(ROW) * ROW
    }

    /// The base-2 logarithm of the block.
    fn log2(self) -> Result<u32, Error> {
        let log2 = self.block.trailing_zeros();
        if self.block.is_power_of_two() && (ROW_LOG2..=MOST_LOG2).contains(&log2) {
            return Ok(log2);
        }
        let allowed = "a power of two from 32 to 8192";
        Err(Error::Setting { what: "the block of a rotation", got: self.block as f64, allowed })
    }

    /// The parameters of all rows of a tensor of `n` elements.
    pub(crate) fn params(self, n: u64, inverse: bool, seed: Seed) -> Result<RotateParams, Error> {
        let block_log2 = self.log2()?;
        if n > 1 << 31 {
            return Err(Error::TooLong { got: n });
        }
        let seed = if self.own { seed } else { seed.worker(0) };
        let [low, high] = seed.key();
        Ok(RotateParams {
            n: n as u32,
            rows: n.div_ceil(ROW) as u32,
            block_log2,
            flags: if inverse { rotate_flags::INVERSE } else { 0 },
            key: [low, high ^ SIGN_KEY],
            tensor: seed.tensor_word(),
            step: seed.step_words(),
            first_call: 0,
            reserved: [0; 2],
        })
    }
}

/// The passes that rotate from the input into the output, within a device's limits.
pub(crate) fn passes(whole: &RotateParams, limits: &Limits) -> Result<Vec<Pass>, Error> {
    let (n, rows) = (u64::from(whole.n), u64::from(whole.rows));
    if n == 0 {
        return Ok(Vec::new());
    }
    let chunk = limits.chunk(4, SPAN)?;
    let mut passes = Vec::new();
    let mut first = 0;
    while first < n {
        let (own, padded) = ((n - first).min(chunk), (rows * ROW - first).min(chunk));
        let params = RotateParams {
            n: own as u32,
            rows: (padded / ROW) as u32,
            first_call: whole.first_call + (first / (4 * ROW)) as u32,
            ..*whole
        };
        let (from, to) = if whole.is_inverse() { (padded, own) } else { (own, padded) };
        passes.push(Pass {
            kernel: Kernel::Rotate,
            params: Params::Rotate(params),
            bindings: Bindings {
                input: Span { offset: 4 * first, bytes: 4 * from },
                output: Span { offset: 4 * first, bytes: 4 * to },
                ..Bindings::default()
            },
            groups: padded.div_ceil(u64::from(SPAN)) as u32,
        });
        first += chunk;
    }
    Ok(passes)
}
