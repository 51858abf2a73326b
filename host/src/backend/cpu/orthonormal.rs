//! Orthonormal columns by the Cholesky factorisation of their products, in f64.
//!
//! Source: Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for computing the QR
//! factorization of ill-conditioned matrices", SIAM J. Sci. Comput. 42 (2020). A column that depends on those before it
//! becomes zeros, which is the limit of an infinite shift for it alone; what is left of others after a badly
//! conditioned sweep, a second repairs.

use gradwire_kernels::arith::powersgd::{DEPENDENT, ONE_SWEEP};

use super::simd::Simd;
use crate::threads;

/// Rows whose products are summed together, and then in order over the blocks.
const BLOCK: usize = 4096;
/// Sweeps at most. A sweep squares the departure from orthonormal, so a third finds nothing to do but in the worst of
/// cases.
const SWEEPS: usize = 3;

/// Makes the columns of a factor orthonormal; a column that depends on those before it becomes zeros. Says for each
/// whether it did not.
pub(super) fn orthonormalise(simd: Simd, factor: &mut [f32], stride: usize, rank: usize) -> Vec<bool> {
    let mut independent = vec![true; rank];
    for _ in 0..SWEEPS {
        let products = all_products(simd, factor, stride, rank);
        let (triangle, least) = cholesky(products, rank, &mut independent);
        let mut columns: Vec<_> = factor.chunks_exact_mut(stride).map(|c| c.chunks_mut(BLOCK)).collect();
        let blocks: Vec<Vec<&mut [f32]>> =
            (0..stride.div_ceil(BLOCK)).map(|_| columns.iter_mut().filter_map(Iterator::next).collect()).collect();
        let apply = |mut block: Vec<&mut [f32]>| simd.solve(&mut block, &triangle);
        if blocks.len() == 1 {
            blocks.into_iter().for_each(apply);
        } else {
            threads::items(blocks).for_each(apply);
        }
        if least >= ONE_SWEEP {
            break;
        }
    }
    independent
}

/// The products of all pairs of columns, the lower triangle, row by row.
fn all_products(simd: Simd, factor: &[f32], stride: usize, rank: usize) -> Vec<f64> {
    let block = |b: usize| {
        let columns: Vec<&[f32]> =
            factor.chunks_exact(stride).map(|c| &c[b * BLOCK..stride.min((b + 1) * BLOCK)]).collect();
        let mut out = vec![0.0; rank * (rank + 1) / 2];
        simd.gram(&columns, &mut out);
        out
    };
    let count = stride.div_ceil(BLOCK);
    let blocks: Vec<Vec<f64>> = if count == 1 { vec![block(0)] } else { threads::items(0..count).map(block).collect() };
    let mut sums = vec![0.0; rank * (rank + 1) / 2];
    // In order, so that threads do not matter.
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, term)| *sum += term);
    }
    sums
}

/// The triangle L with L L^T = the products, lower, row by row, with the inverse of its diagonal in place of it; zero
/// there for a column that depends on those before it. And the least squared sine of a column that does not.
fn cholesky(mut g: Vec<f64>, rank: usize, independent: &mut [bool]) -> (Vec<f64>, f64) {
    let at = |i: usize, j: usize| i * (i + 1) / 2 + j;
    let mut least = 1.0f64;
    for i in 0..rank {
        for j in 0..i {
            let mut sum = g[at(i, j)];
            for k in 0..j {
                sum -= g[at(i, k)] * g[at(j, k)];
            }
            // The diagonal holds inverses already; that of a dependent column is zero.
            g[at(i, j)] = sum * g[at(j, j)];
        }
        let square = g[at(i, i)];
        let mut rest = square;
        for k in 0..i {
            rest -= g[at(i, k)] * g[at(i, k)];
        }
        // Written so that a square that is zero or not finite makes the column dependent.
        if square > 0.0 && square < f64::INFINITY && rest > DEPENDENT * square {
            least = least.min(rest / square);
            g[at(i, i)] = 1.0 / rest.sqrt();
        } else {
            g[at(i, i)] = 0.0;
            independent[i] = false;
        }
    }
    (g, least)
}
