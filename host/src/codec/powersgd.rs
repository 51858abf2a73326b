//! PowerSGD, as a user sets it up.

use std::sync::Arc;

use gradwire_kernels::arith::powersgd::MOST_RANK;

use crate::error::Error;
use crate::plan::{NonFinite, Part, Table};
use crate::seed::Seed;
use crate::wire::MAX_ELEMENTS;

/// The shape of a tensor of a model, as a matrix in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Its rows.
    pub rows: u64,
    /// Its columns.
    pub columns: u64,
}

impl Matrix {
    /// A matrix.
    pub const fn new(rows: u64, columns: u64) -> Self {
        Self { rows, columns }
    }

    /// A vector, as a bias: it is never compressed.
    pub const fn vector(elements: u64) -> Self {
        Self { rows: elements, columns: 1 }
    }

    /// A tensor of any dimensions: the first by the product of the others, as the paper has it (section 3).
    ///
    /// ```
    /// use gradwire::Matrix;
    /// assert_eq!(Matrix::of(&[64, 3, 7, 7]), Matrix::new(64, 147));
    /// assert_eq!(Matrix::of(&[10]), Matrix::vector(10));
    /// ```
    pub fn of(dimensions: &[u64]) -> Self {
        let (rows, others) = dimensions.split_first().map_or((1, &[][..]), |(rows, others)| (*rows, others));
        Self { rows, columns: others.iter().fold(1, |product, d| product.saturating_mul(*d)) }
    }

    /// Its elements.
    pub const fn elements(&self) -> u64 {
        self.rows.saturating_mul(self.columns)
    }
}

/// Send a gradient as the product of two thin factors.
///
/// Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
/// optimization", NeurIPS 2019, algorithm 1 (one step of warm-started subspace iteration) and algorithm 2 (error
/// feedback).
///
/// * **Shape**: the gradients of all tensors of a model in one buffer, each an n x m [`Matrix`] in row-major order;
///   f32, f16 or bf16. Output and factors are f32.
/// * **Sent**: P = M Q, n x r, then Q = M^T P, m x r, with M = gradient + residual and P made orthonormal in between: 4
///   r (n + m) bytes. Both are linear in M, so what is all-reduced is P and Q themselves, by any collective that
///   computes a mean.
/// * **Not compressed**: vectors, and matrices for which (n + m) r `min_compression` >= n m; they are sent as they are,
///   in f32, after the last factor.
/// * **Biased**: M^ = P P^T M is the projection of M on r directions, so |M - M^| <= |M|, and M^ = M where the rank of
///   M is at most r. The residual keeps M - M^.
/// * **Orthonormal**: by Cholesky of P^T P in f64, swept again where the columns are nearly dependent. A column that
///   depends on the ones before it becomes zeros; in the next step it starts afresh from a seeded one.
/// * **Seeds**: one for all workers, since the first factors have to agree; a seed with a [`crate::Seed::worker`] is
///   refused.
/// * **Determinism**: run to run on one device; on the CPU the same bits at any thread count and any vector width. On
///   CUDA above rank 8, GPUs of another architecture may have other bits: tensor cores sum as they do. Between
///   backends, within rounding: factors, output and residual of a matrix M are apart by 4 * 514 * 2^-24 sqrt(r) |M| at
///   most, given the same state and the same reduced factors (514 terms of a sum are added one after another at the
///   most), unless columns are so nearly dependent that rounding decides whether one is.
///
/// The steps, and what goes over the network, are on [`crate::Device::begin_low_rank`].
///
/// ```
/// use gradwire::{Device, Matrix, PowerSgd, Seed};
/// let device = Device::cpu();
/// let mut state = PowerSgd::rank(1).state(&[Matrix::new(32, 16)], Seed::new(42))?;
/// let gradient: Vec<f32> = (0..32 * 16).map(|i| (i / 16) as f32 * (i % 16) as f32).collect(); // of rank 1
/// let mut output = vec![0.0; 32 * 16];
/// device.low_rank_step(&mut state, &gradient, &mut output, |factor| {
///     assert!(factor.len() <= 32); // the collective, which may fail
///     Ok::<_, gradwire::Error>(())
/// })?;
/// assert!(gradient.iter().zip(&output).all(|(g, o)| (g - o).abs() < 1e-3));
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSgd {
    rank: u32,
    iterations: u32,
    one_sided: bool,
    min_compression: f64,
    feedback: bool,
    non_finite: NonFinite,
}

impl PowerSgd {
    /// Factors of `rank` columns, 1 to 32; one power iteration a step, error feedback, and compression if it saves
    /// at least half.
    pub const fn rank(rank: u32) -> Self {
        Self {
            rank,
            iterations: 1,
            one_sided: false,
            min_compression: 2.0,
            feedback: true,
            non_finite: NonFinite::Propagate,
        }
    }

    /// As many power iterations a step, 1 to 16: each computes P and Q, and sends both.
    pub const fn iterations(mut self, iterations: u32) -> Self {
        self.iterations = iterations;
        self
    }

    /// Half an iteration a step: P in one step, Q in the next, each with the other side's last factor made orthonormal.
    /// One all-reduce and one product a step. Overrides [`PowerSgd::iterations`].
    pub const fn one_sided(mut self) -> Self {
        self.one_sided = true;
        self
    }

    /// Compress a matrix only where (n + m) r times this is below n m. The default is 2, that of PyTorch's hook; 0
    /// compresses every matrix, and then a rank above min(n, m) is an error.
    pub const fn min_compression(mut self, rate: f64) -> Self {
        self.min_compression = rate;
        self
    }

    /// Keep no residual: values that are not sent are lost.
    pub const fn without_feedback(mut self) -> Self {
        self.feedback = false;
        self
    }

    /// What to do with NaN and infinity. Under [`NonFinite::Propagate`] a matrix that holds one comes out as NaN, all
    /// of it, on every worker, and so does one whose factors overflow; its residual takes up the finite part of the
    /// gradient, and nothing of it was sent. The second time within three steps, the matrix's residual is dropped, on
    /// every worker, since it may be what overflows: the gradients of these steps and what had waited before them are
    /// lost. [`crate::LowRankState::outcome`] says which it was.
    pub const fn non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// Without memory and policy, as a stage of a recipe.
    pub(crate) fn plain(self) -> Self {
        Self { feedback: false, non_finite: NonFinite::Propagate, ..self }
    }

    /// With error feedback or without.
    pub(crate) fn with_feedback(self, feedback: bool) -> Self {
        Self { feedback, ..self }
    }

    /// The settings as they stand in a recipe's text.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![format!("rank={}", self.rank)];
        words.extend((self.iterations != 1).then(|| format!("iterations={}", self.iterations)));
        words.extend(self.one_sided.then(|| "onesided".into()));
        words.extend((self.min_compression != 2.0).then(|| format!("mincompression={}", self.min_compression)));
        words
    }

    /// Factors that one step sends one after another.
    pub(crate) fn rounds(&self) -> u32 {
        if self.one_sided { 1 } else { 2 * self.iterations }
    }

    pub(crate) fn feedback(&self) -> bool {
        self.feedback
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.non_finite == NonFinite::Error
    }

    pub(crate) fn table(&self, tensors: &[Matrix]) -> Result<Arc<Table>, Error> {
        let setting = |what, got, allowed| Err(Error::Setting { what, got, allowed });
        if !(1..=16).contains(&self.iterations) {
            return setting("iterations of PowerSGD", self.iterations.into(), "1 to 16");
        }
        if !(0.0..=f64::MAX).contains(&self.min_compression) {
            return setting("the least compression of PowerSGD", self.min_compression, "0 or more, and finite");
        }
        if !(1..=MOST_RANK).contains(&self.rank) {
            return Err(Error::Rank { rank: self.rank, most: MOST_RANK.into(), tensor: None });
        }
        let total = tensors.iter().fold(0u64, |sum, t| sum.saturating_add(t.elements()));
        if total > MAX_ELEMENTS {
            return Err(Error::TooLong { got: total });
        }
        if tensors.len() as u64 > MAX_ELEMENTS {
            return setting("the number of tensors of PowerSGD", tensors.len() as f64, "at most 2^31");
        }
        let mut parts = Vec::with_capacity(tensors.len());
        let (mut first, mut left, mut right) = (0, 0, 0);
        let rank = self.rank as usize;
        for (index, tensor) in tensors.iter().enumerate() {
            let compressed = self.gains(tensor);
            let least = tensor.rows.min(tensor.columns);
            if compressed && u64::from(self.rank) > least {
                return Err(Error::Rank { rank: self.rank, most: least, tensor: Some(index as u64) });
            }
            // A tensor without elements may have any number of rows.
            let [rows, columns] = [tensor.rows, tensor.columns].map(usize::try_from);
            let (Ok(rows), Ok(columns)) = (rows, columns) else {
                return Err(Error::TooLong { got: tensor.rows.max(tensor.columns) });
            };
            let part = Part { rows, columns, compressed, first, left, right };
            first += part.elements();
            if compressed {
                left += part.row_stride() * rank;
                right += part.column_stride() * rank;
            }
            parts.push(part);
        }
        Ok(Arc::new(Table { rank, parts, elements: first, left, right }))
    }

    /// The published rule: `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`, `_should_compress`.
    fn gains(&self, tensor: &Matrix) -> bool {
        if tensor.columns <= 1 || tensor.rows == 0 {
            return false;
        }
        let sent = (tensor.rows as f64 + tensor.columns as f64) * f64::from(self.rank);
        sent * self.min_compression < tensor.elements() as f64
    }
}

/// The seed, if it is every worker's.
pub(crate) fn shared(seed: Seed) -> Result<Seed, Error> {
    match seed.rank() {
        0 => Ok(seed),
        rank => Err(Error::WorkerSeed { rank }),
    }
}
