//! The passes of PowerSGD over a slab: neighbouring rows of a matrix, with all their columns.
//!
//! Sums are in one order, whatever the vector width: along a row sixteen lanes, folded in f64 every [`PANEL`] columns; down a
//! slab row after row.

use std::array::from_fn;

use gradwire_kernels::arith::float::{INF_BITS, bf16_to_f32, f16_to_f32};
use gradwire_kernels::arith::powersgd::MOST_RANK;

use super::lanes::{LANES, Lanes};
use crate::gradient::Gradient;
use crate::low_rank::{Part, Side};

/// Rows that are worked on together.
const GROUP: usize = 8;
/// Rows of a group whose sums along the row are in registers together.
const TOGETHER: usize = 4;
/// Columns of a tile, which stays in the first-level cache.
const TILE: usize = 512;
/// Columns after which sums along a row go over to f64. A multiple of the tile.
const PANEL: usize = 2048;
const MOST: usize = MOST_RANK as usize;

/// What the residual is, beside the sums of the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// There is none.
    Nothing,
    /// The sums: nothing was sent.
    Sums,
    /// The sums less L R^T.
    Rest,
}

/// The rows of a slab.
pub(super) enum Rows<'a> {
    /// Gradient + residual as an earlier pass left it.
    Formed(&'a [f32]),
    /// To be formed, and left in `sums`.
    Form { gradient: Gradient<'a>, sums: &'a mut [f32], before: Before, left: &'a [f32], right: &'a [f32] },
}

/// A slab, and the factor that it is multiplied by.
pub(super) struct Slab<'a> {
    pub(super) part: Part,
    pub(super) rank: usize,
    /// Its first row in the matrix.
    pub(super) first: usize,
    pub(super) rows: Rows<'a>,
    /// The matrix's factor of the side `known`, padded.
    pub(super) input: &'a [f32],
    pub(super) known: Side,
    /// With the right factor known, `rank` entries of each row; else the slab's share of the right factor, padded.
    pub(super) out: &'a mut [f32],
}

/// M Q of the slab's rows, or their share of M^T P.
#[inline(always)]
pub(super) fn multiply<V: Lanes, const K: usize>(slab: Slab<'_>) {
    let Slab { part, rank, first, rows, input, known, out } = slab;
    let columns = part.columns;
    let mut tile = [0.0; GROUP * TILE];
    let mut lanes = [[0.0; LANES]; GROUP * MOST];
    if known == Side::Left {
        out.fill(0.0);
    }
    let (formed, mut form) = match rows {
        Rows::Formed(m) => (m, None),
        Rows::Form { gradient, sums, before, left, right } => (&[][..], Some((gradient, sums, before, left, right))),
    };
    let count = form.as_ref().map_or(formed.len(), |form| form.1.len()) / columns;
    for start in (0..count).step_by(GROUP) {
        let group = GROUP.min(count - start);
        let lanes = &mut lanes[..GROUP * rank];
        lanes.fill([0.0; LANES]);
        let mut totals = [0.0; GROUP * MOST];
        let weights = weights(input, &part, rank, first + start, group, known);
        for at in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - at);
            if let Some((gradient, sums, before, left, right)) = &mut form {
                for i in 0..group {
                    let range = (start + i) * columns + at..(start + i) * columns + at + width;
                    let to = &mut tile[i * TILE..i * TILE + width];
                    widen(gradient, range.start, to);
                    let scale =
                        from_fn(|k| if k < rank { left[k * part.row_stride() + first + start + i] } else { 0.0 });
                    add::<V>(to, &mut sums[range], *before, &scale, &right[at..], part.column_stride(), rank);
                }
            }
            let row = |i: usize| match form {
                Some(_) => &tile[i * TILE..i * TILE + width],
                None => &formed[(start + i) * columns + at..][..width],
            };
            match known {
                Side::Right => {
                    let factor = |k: usize| &input[k * part.column_stride() + at..];
                    dots::<V, K>(row, group, factor, rank, lanes);
                    let next = at + TILE;
                    if next.is_multiple_of(PANEL) || next >= columns {
                        fold(lanes, &mut totals);
                    }
                }
                Side::Left => down::<V>(row, group, &weights, rank, &mut out[at..], part.column_stride()),
            }
        }
        if known == Side::Right {
            let out = &mut out[start * rank..(start + group) * rank];
            out.iter_mut().zip(&totals).for_each(|(out, total)| *out = *total as f32);
        }
    }
}

/// Entries of the left factor for the rows of a group, row by row.
#[inline(always)]
fn weights(input: &[f32], part: &Part, rank: usize, first: usize, group: usize, known: Side) -> [[f32; GROUP]; MOST] {
    from_fn(|k| {
        from_fn(|i| {
            if known == Side::Left && k < rank && i < group { input[k * part.row_stride() + first + i] } else { 0.0 }
        })
    })
}

#[inline(always)]
fn widen(gradient: &Gradient<'_>, start: usize, to: &mut [f32]) {
    match gradient {
        Gradient::F32(x) => to.copy_from_slice(&x[start..start + to.len()]),
        Gradient::F16(x) => {
            to.iter_mut().zip(&x[start..]).for_each(|(to, from)| *to = f16_to_f32(from.to_bits()));
        }
        Gradient::Bf16(x) => {
            to.iter_mut().zip(&x[start..]).for_each(|(to, from)| *to = bf16_to_f32(from.to_bits()));
        }
    }
}

/// Adds the residual to a part of a row of the gradient, and leaves in `sums` what stays behind.
#[inline(always)]
fn add<V: Lanes>(
    row: &mut [f32],
    sums: &mut [f32],
    before: Before,
    left: &[f32; MOST],
    right: &[f32],
    stride: usize,
    rank: usize,
) {
    let residual = |sums: V, at: usize| match before {
        Before::Nothing => V::splat(0.0),
        Before::Sums => sums,
        Before::Rest => sums.sub(entry::<V>(left, right, stride, rank, at)),
    };
    let (rows, rest) = row.as_chunks_mut::<LANES>();
    let (olds, old) = sums.as_chunks_mut::<LANES>();
    let whole = rows.len() * LANES;
    for (at, (row, old)) in rows.iter_mut().zip(olds).enumerate() {
        let residual = residual(V::load(old), at * LANES);
        let sum = V::load(row).add(residual);
        V::kept(sum, residual).store(old);
        sum.store(row);
    }
    if !rest.is_empty() {
        let residual = residual(V::load_part(old), whole);
        let sum = V::load_part(rest).add(residual);
        V::kept(sum, residual).store_part(old);
        sum.store_part(rest);
    }
}

/// Sixteen entries of a row of L R^T.
#[inline(always)]
fn entry<V: Lanes>(left: &[f32; MOST], right: &[f32], stride: usize, rank: usize, at: usize) -> V {
    let column = |k: usize| V::load(vector(&right[k * stride + at..]));
    let mut sum = V::splat(left[0]).mul(column(0));
    for k in 1..rank {
        sum = sum.add(V::splat(left[k % MOST]).mul(column(k)));
    }
    sum
}

/// The first sixteen values of a padded buffer.
#[inline(always)]
fn vector(of: &[f32]) -> &[f32; LANES] {
    const NONE: &[f32; LANES] = &[0.0; LANES];
    of.first_chunk().unwrap_or(NONE)
}

/// Products of a group's rows with every column of a factor, added to the lanes of each row and column.
#[inline(always)]
fn dots<'r, V: Lanes, const K: usize>(
    row: impl Fn(usize) -> &'r [f32],
    group: usize,
    factor: impl Fn(usize) -> &'r [f32],
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let mut i = 0;
    while i < group {
        if i + TOGETHER <= group {
            let rows: [&[f32]; TOGETHER] = from_fn(|r| row(i + r));
            columns_of::<V, TOGETHER, K>(rows, &factor, rank, &mut lanes[i * rank..]);
            i += TOGETHER;
        } else {
            columns_of::<V, 1, K>([row(i)], &factor, rank, &mut lanes[i * rank..]);
            i += 1;
        }
    }
}

#[inline(always)]
fn columns_of<'r, V: Lanes, const R: usize, const K: usize>(
    rows: [&'r [f32]; R],
    factor: &impl Fn(usize) -> &'r [f32],
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let mut k = 0;
    while k < rank {
        if k + K <= rank {
            dot::<V, R, K>(rows, from_fn(|c| factor(k + c)), rank, &mut lanes[k..]);
            k += K;
        } else {
            dot::<V, R, 1>(rows, [factor(k)], rank, &mut lanes[k..]);
            k += 1;
        }
    }
}

#[inline(always)]
fn dot<V: Lanes, const R: usize, const K: usize>(
    rows: [&[f32]; R],
    factors: [&[f32]; K],
    rank: usize,
    lanes: &mut [[f32; LANES]],
) {
    let mut sums: [[V; K]; R] = from_fn(|r| from_fn(|k| V::load(&lanes[r * rank + k])));
    let width = rows[0].len();
    let whole = width / LANES;
    let vectors: [&[[f32; LANES]]; R] = from_fn(|r| &rows[r].as_chunks().0[..whole]);
    // The factors are padded, so that there is one more vector where a row has a remainder.
    let columns: [&[[f32; LANES]]; K] = from_fn(|k| &factors[k].as_chunks().0[..width.div_ceil(LANES)]);
    for j in 0..whole {
        let m: [V; R] = from_fn(|r| V::load(&vectors[r][j]));
        for k in 0..K {
            let q = V::load(&columns[k][j]);
            for r in 0..R {
                sums[r][k] = sums[r][k].add(m[r].mul(q));
            }
        }
    }
    if whole * LANES < width {
        for r in 0..R {
            let m = V::load_part(&rows[r][whole * LANES..]);
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
fn fold(lanes: &mut [[f32; LANES]], totals: &mut [f64]) {
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
fn down<'r, V: Lanes>(
    row: impl Fn(usize) -> &'r [f32],
    group: usize,
    weights: &[[f32; GROUP]; MOST],
    rank: usize,
    out: &mut [f32],
    stride: usize,
) {
    if group == GROUP {
        let rows: [&[f32]; GROUP] = from_fn(&row);
        rows_down::<V, GROUP>(rows, |k, r| weights[k % MOST][r], rank, out, stride);
        return;
    }
    for i in 0..group {
        rows_down::<V, 1>([row(i)], |k, _| weights[k % MOST][i], rank, out, stride);
    }
}

#[inline(always)]
fn rows_down<V: Lanes, const R: usize>(
    rows: [&[f32]; R],
    weight: impl Fn(usize, usize) -> f32,
    rank: usize,
    out: &mut [f32],
    stride: usize,
) {
    let width = rows[0].len();
    let whole = width / LANES;
    let vectors: [&[[f32; LANES]]; R] = from_fn(|r| &rows[r].as_chunks().0[..whole]);
    let mut each = |m: [V; R], at: usize| {
        for k in 0..rank {
            let Some(out) = out.get_mut(k * stride + at..).and_then(|out| out.first_chunk_mut()) else { continue };
            let mut sum = V::load(out);
            for r in 0..R {
                sum = sum.add(m[r].mul(V::splat(weight(k, r))));
            }
            sum.store(out);
        }
    };
    for j in 0..whole {
        each(from_fn(|r| V::load(&vectors[r][j])), j * LANES);
    }
    if whole * LANES < width {
        each(from_fn(|r| V::load_part(&rows[r][whole * LANES..])), whole * LANES);
    }
}

/// Writes rows of L R^T, from the row `first` of the matrix on.
#[inline(always)]
pub(super) fn expand<V: Lanes>(part: Part, rank: usize, first: usize, left: &[f32], right: &[f32], out: &mut [f32]) {
    for (i, row) in out.chunks_exact_mut(part.columns).enumerate() {
        let scale = from_fn(|k| if k < rank { left[k * part.row_stride() + first + i] } else { 0.0 });
        let (vectors, rest) = row.as_chunks_mut::<LANES>();
        let whole = vectors.len() * LANES;
        for (j, to) in vectors.iter_mut().enumerate() {
            entry::<V>(&scale, right, part.column_stride(), rank, j * LANES).store(to);
        }
        if !rest.is_empty() {
            entry::<V>(&scale, right, part.column_stride(), rank, whole).store_part(rest);
        }
    }
}

/// Where in a slab gradient + residual is first not finite.
#[inline(always)]
pub(super) fn first_not_finite<V: Lanes>(slab: Slab<'_>, sums: &[f32]) -> Option<usize> {
    let Rows::Form { gradient, before, left, right, .. } = slab.rows else { return None };
    let (part, columns) = (slab.part, slab.part.columns);
    let (mut row, mut old) = ([0.0; TILE], [0.0; TILE]);
    for (i, line) in sums.chunks_exact(columns).enumerate() {
        let scale = from_fn(|k| if k < slab.rank { left[k * part.row_stride() + slab.first + i] } else { 0.0 });
        for at in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - at);
            let (row, old) = (&mut row[..width], &mut old[..width]);
            widen(&gradient, i * columns + at, row);
            old.copy_from_slice(&line[at..at + width]);
            add::<V>(row, old, before, &scale, &right[at..], part.column_stride(), slab.rank);
            // One pass over the row without a branch; where it tells of something, another that finds it.
            if row.iter().fold(false, |bad, v| bad | (v.to_bits() & INF_BITS == INF_BITS)) {
                return row.iter().position(|v| !v.is_finite()).map(|j| i * columns + at + j);
            }
        }
    }
    None
}
