//! Products of rows with a factor: sums along a row, and down the rows.

use super::super::lanes::{LANES, Lanes};
use super::{GROUP, MOST, TOGETHER};

/// Parts of neighbouring rows. Nothing here is a closure: one that is not inlined would be compiled for the narrowest
/// vectors.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub(super) source: &'a [f32],
    /// From a row to the next.
    pub(super) stride: usize,
    pub(super) width: usize,
    pub(super) count: usize,
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

/// Adds a group's rows, each times its weight, to the columns of the right factor.
#[inline(always)]
pub(super) fn down<V: Lanes>(
    lines: Lines<'_>,
    weights: &[[f32; GROUP]; MOST],
    rank: usize,
    out: &mut [f32],
    stride: usize,
) {
    if lines.count == GROUP {
        return rows_down::<V, GROUP>(lines, 0, weights, rank, out, stride);
    }
    for i in 0..lines.count {
        rows_down::<V, 1>(lines, i, weights, rank, out, stride);
    }
}

#[inline(always)]
fn rows_down<V: Lanes, const R: usize>(
    lines: Lines<'_>,
    i: usize,
    weights: &[[f32; GROUP]; MOST],
    rank: usize,
    out: &mut [f32],
    stride: usize,
) {
    let (vectors, rests) = lines.rows::<R>(i);
    let whole = lines.width / LANES;
    let mut m = [V::splat(0.0); R];
    for j in 0..whole {
        for r in 0..R {
            V::prefetch(lines.source, (i + r) * lines.stride + j * LANES + stride);
            m[r] = V::load(&vectors[r][j]);
        }
        add_rows::<V, R>(m, i, weights, rank, &mut out[j * LANES..], stride);
    }
    if whole * LANES < lines.width {
        for r in 0..R {
            m[r] = V::load_part(rests[r]);
        }
        add_rows::<V, R>(m, i, weights, rank, &mut out[whole * LANES..], stride);
    }
}

/// Adds sixteen columns of rows to each column of the factor.
#[inline(always)]
fn add_rows<V: Lanes, const R: usize>(
    m: [V; R],
    i: usize,
    weights: &[[f32; GROUP]; MOST],
    rank: usize,
    out: &mut [f32],
    stride: usize,
) {
    for k in 0..rank {
        let Some(out) = out[k * stride..].first_chunk_mut() else { continue };
        let weights = &weights[k % MOST];
        let mut sum = V::load(out);
        for r in 0..R {
            sum = sum.add(m[r].mul(V::splat(weights[(i + r) % GROUP])));
        }
        sum.store(out);
    }
}
