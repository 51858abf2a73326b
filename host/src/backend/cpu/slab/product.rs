//! Products of rows with a factor: sums along a row, and down the rows.

use super::super::lanes::{LANES, Lanes};
use super::form::Ahead;
use super::parts::{LARGE_GROUP, TOGETHER, Weights};

/// Parts of neighbouring rows. Nothing here is a closure: one that is not inlined would be compiled for the narrowest
/// vectors.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub(super) source: &'a [f32],
    /// From a row to the next.
    pub(super) stride: usize,
    pub(super) width: usize,
    pub(super) count: usize,
    /// What is to be fetched meanwhile.
    pub(super) ahead: Ahead<'a>,
}

impl<'a> Lines<'a> {
    /// The row's whole vectors, and what is left of it.
    #[inline(always)]
    fn row(&self, i: usize) -> (&'a [[f32; LANES]], &'a [f32]) {
        self.source[i * self.stride..][..self.width].as_chunks()
    }

    #[inline(always)]
    fn rows<const R: usize>(&self, i: usize) -> ([&'a [[f32; LANES]]; R], [&'a [f32]; R]) {
        let (mut whole, mut rest) = ([&[][..]; R], [&[][..]; R]);
        for r in 0..R {
            (whole[r], rest[r]) = self.row(i + r);
        }
        (whole, rest)
    }
}

/// Products of a group's rows with every column of a factor, added to the lanes of each row and column.
#[inline(always)]
pub(super) fn dots<V: Lanes, const K: usize>(
    lines: Lines<'_>,
    factor: &[f32],
    stride: usize,
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let mut i = 0;
    while i < lines.count {
        if i + TOGETHER <= lines.count {
            columns_of::<V, TOGETHER, K>(lines, i, factor, stride, rank, lanes);
            i += TOGETHER;
        } else {
            columns_of::<V, 1, K>(lines, i, factor, stride, rank, lanes);
            i += 1;
        }
    }
}

#[inline(always)]
fn columns_of<V: Lanes, const R: usize, const K: usize>(
    lines: Lines<'_>,
    i: usize,
    factor: &[f32],
    stride: usize,
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let mut k = 0;
    while k < rank {
        for at in (k / K..lines.width / LANES).step_by(rank.div_ceil(K)) {
            for row in i..i + R {
                lines.ahead.fetch::<V>(row, at * LANES);
            }
        }
        if k + K <= rank {
            dot::<V, R, K>(lines, i, &factor[k * stride..], stride, rank, &mut lanes[i * rank + k..]);
            k += K;
        } else {
            dot::<V, R, 1>(lines, i, &factor[k * stride..], stride, rank, &mut lanes[i * rank + k..]);
            k += 1;
        }
    }
}

#[inline(always)]
fn dot<V: Lanes, const R: usize, const K: usize>(
    lines: Lines<'_>,
    i: usize,
    factor: &[f32],
    stride: usize,
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let (vectors, rests) = lines.rows::<R>(i);
    let whole = lines.width / LANES;
    // The factors are padded, so that there is one more vector where a row has a remainder.
    let mut columns = [&[][..]; K];
    for k in 0..K {
        columns[k] = &factor[k * stride..].as_chunks::<LANES>().0[..lines.width.div_ceil(LANES)];
    }
    let mut sums = [[V::splat(0.0); K]; R];
    for r in 0..R {
        for k in 0..K {
            sums[r][k] = V::load(&lanes[r * rank + k]);
        }
    }
    for j in 0..whole {
        let mut m = [V::splat(0.0); R];
        for r in 0..R {
            m[r] = V::load(&vectors[r][j]);
        }
        for k in 0..K {
            let q = V::load(&columns[k][j]);
            for r in 0..R {
                sums[r][k] = sums[r][k].add(m[r].mul(q));
            }
        }
    }
    if whole * LANES < lines.width {
        for r in 0..R {
            let m = V::load_part(rests[r]);
            for k in 0..K {
                sums[r][k] = sums[r][k].add(m.mul(V::load(&columns[k][whole])));
            }
        }
    }
    for r in 0..R {
        for k in 0..K {
            sums[r][k].store(&mut lanes[r * rank + k]);
        }
    }
}

/// Adds the lanes to the totals, each in the same order, and clears them.
#[inline(always)]
pub(super) fn fold(lanes: &mut [[f32; LANES]], totals: &mut [f64]) {
    for (lanes, total) in lanes.iter_mut().zip(totals) {
        let mut sum = lanes.map(f64::from);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                sum[i] += sum[i + half];
            }
        }
        *total += sum[0];
        *lanes = [0.0; LANES];
    }
}

/// Adds a group's rows, each times its weight, to the columns of the right factor, which is in lines. Sums of K columns
/// are in registers together for all rows. The first rows of a slab begin the sums.
#[inline(always)]
pub(super) fn down<V: Lanes, const K: usize>(
    lines: Lines<'_>,
    weights: &Weights<K>,
    rank: usize,
    out: &mut [f32],
    is_first: bool,
) {
    for (j, out) in out.as_chunks_mut().0.chunks_exact_mut(rank).enumerate() {
        let (blocks, rest) = out.as_chunks_mut::<K>();
        let turns = blocks.len() + rest.len();
        for (block, (out, weights)) in blocks.iter_mut().zip(weights).enumerate() {
            for row in (block..lines.count).step_by(turns) {
                lines.ahead.fetch::<V>(row, j * LANES);
            }
            add_rows::<V, K, K>(lines, j * LANES, weights, out, is_first);
        }
        for (block, (out, weights)) in rest.as_chunks_mut::<1>().0.iter_mut().zip(&weights[rank / K..]).enumerate() {
            for row in (rank / K + block..lines.count).step_by(turns) {
                lines.ahead.fetch::<V>(row, j * LANES);
            }
            add_rows::<V, 1, K>(lines, j * LANES, weights, out, is_first);
        }
    }
}

/// Adds at most sixteen columns of the rows, each times its weight, to columns of the factor.
#[inline(always)]
fn add_rows<V: Lanes, const C: usize, const K: usize>(
    lines: Lines<'_>,
    at: usize,
    weights: &[[f32; K]; LARGE_GROUP],
    out: &mut [[f32; LANES]; C],
    is_first: bool,
) {
    let mut sums = [V::splat(0.0); C];
    if !is_first {
        for c in 0..C {
            sums[c] = V::load(&out[c]);
        }
    }
    let (source, stride) = (&lines.source[at..], lines.stride);
    if at + LANES <= lines.width {
        let (pairs, last) = weights[..lines.count].as_chunks::<2>();
        for (rows, weights) in source.chunks(2 * stride).zip(pairs) {
            add_row(&mut sums, &rows[..LANES], &weights[0]);
            add_row(&mut sums, &rows[stride..stride + LANES], &weights[1]);
        }
        for (row, weights) in source.chunks(stride).skip(lines.count / 2 * 2).zip(last) {
            add_row(&mut sums, &row[..LANES], weights);
        }
    } else {
        for (row, weights) in source.chunks(stride).zip(&weights[..lines.count]) {
            add_row(&mut sums, &row[..lines.width - at], weights);
        }
    }
    for c in 0..C {
        sums[c].store(&mut out[c]);
    }
}

#[inline(always)]
fn add_row<V: Lanes, const C: usize, const K: usize>(sums: &mut [V; C], row: &[f32], weights: &[f32; K]) {
    let m = match row.first_chunk() {
        Some(row) => V::load(row),
        None => V::load_part(row),
    };
    for c in 0..C {
        sums[c] = sums[c].add(m.mul(V::splat(weights[c])));
    }
}
