//! The passes of PowerSGD over a slab: neighbouring rows of a matrix, with all their columns.
//!
//! Sums are in one order, whatever the vector width: along a row sixteen lanes, folded in f64 every [`PANEL`] columns; down a
//! slab row after row.

use gradwire_kernels::arith::float::{INF_BITS, bf16_to_f32, f16_to_f32};
use gradwire_kernels::arith::powersgd::MOST_RANK;

use super::lanes::{LANES, Lanes, Line};
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
    /// To be formed, and left in `sums`. The right factor is in tiles.
    Form { gradient: Gradient<'a>, sums: &'a mut [f32], before: Before, left: &'a [f32], right: &'a [f32] },
}

/// A slab, and the factor that it is multiplied by.
pub(super) struct Slab<'a> {
    pub(super) part: Part,
    pub(super) rank: usize,
    /// Its first row in the matrix.
    pub(super) first: usize,
    pub(super) rows: Rows<'a>,
    /// The matrix's factor of the side `known`: a left one padded, a right one in tiles.
    pub(super) input: &'a [f32],
    pub(super) known: Side,
    /// With the right factor known, `rank` entries of each row; else the slab's share of the right factor, in tiles.
    pub(super) out: &'a mut [f32],
}

/// Columns of a tile of a matrix, padding included: fewer where the rank is large, so that the factors' tiles are in the
/// first-level cache too.
pub(super) fn tile_width(part: &Part, rank: usize) -> usize {
    let most = match rank {
        0..=8 => TILE,
        9..=16 => TILE / 2,
        _ => TILE / 4,
    };
    part.column_stride().min(most)
}

/// A right factor in tiles: all columns of the factor for the first columns of the matrix, then for the next. Entries that are
/// used together lie together; as columns they might be a power of two apart, and share a few lines of the cache.
pub(super) fn tiled(part: &Part, rank: usize, factor: &[f32]) -> Vec<Line> {
    let width = tile_width(part, rank);
    let mut tiles = vec![Line::default(); part.columns.div_ceil(width) * width / LANES * rank];
    for (t, tile) in bytemuck::cast_slice_mut::<_, f32>(&mut tiles).chunks_exact_mut(width * rank).enumerate() {
        for (k, to) in tile.chunks_exact_mut(width).enumerate() {
            let from = &factor[k * part.column_stride() + t * width..];
            let here = width.min(part.column_stride() - t * width);
            to[..here].copy_from_slice(&from[..here]);
        }
    }
    tiles
}

/// M Q of the slab's rows, or their share of M^T P.
#[inline(always)]
pub(super) fn multiply<V: Lanes, const K: usize>(slab: Slab<'_>) {
    let Slab { part, rank, first, rows, input, known, out } = slab;
    let (columns, step) = (part.columns, tile_width(&part, rank));
    let mut tile = [Line::default(); GROUP * TILE / LANES];
    let tile = bytemuck::cast_slice_mut::<_, f32>(&mut tile);
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
        let rows_of_input = match known {
            Side::Left => weights(input, &part, rank, first + start, group),
            Side::Right => [[0.0; GROUP]; MOST],
        };
        let scale = match &form {
            Some((.., left, _)) => weights(left, &part, rank, first + start, group),
            None => [[0.0; GROUP]; MOST],
        };
        for (t, at) in (0..columns).step_by(step).enumerate() {
            let width = step.min(columns - at);
            let tiles = t * step * rank..(t + 1) * step * rank;
            if let Some((gradient, sums, before, _, right)) = &mut form {
                let from = start * columns + at;
                let right = if *before == Before::Rest { &right[tiles.clone()] } else { &[] };
                let term = Term { before: *before, scale: &scale, right, stride: step, rank };
                add::<V>(tile, gradient, from, &mut sums[from..], columns, width, group, &term);
            }
            let (source, stride) = match form {
                Some(_) => (&tile[..], TILE),
                None => (&formed[start * columns + at..], columns),
            };
            let rows = Lines { source, stride, width, count: group };
            match known {
                Side::Right => {
                    dots::<V, K>(rows, &input[tiles], step, rank, lanes);
                    let next = at + step;
                    if next.is_multiple_of(PANEL) || next >= columns {
                        fold(lanes, &mut totals);
                    }
                }
                Side::Left => down::<V>(rows, &rows_of_input, rank, &mut out[tiles], step),
            }
        }
        if known == Side::Right {
            let out = &mut out[start * rank..(start + group) * rank];
            out.iter_mut().zip(&totals).for_each(|(out, total)| *out = *total as f32);
        }
    }
}

/// Entries of a left factor for the rows of a group: for each column of the factor, a number a row.
#[inline(always)]
fn weights(factor: &[f32], part: &Part, rank: usize, first: usize, group: usize) -> [[f32; GROUP]; MOST] {
    let mut weights = [[0.0; GROUP]; MOST];
    for (k, weights) in weights[..rank].iter_mut().enumerate() {
        weights[..group].copy_from_slice(&factor[k * part.row_stride() + first..][..group]);
    }
    weights
}

/// A part of a row of the gradient, as f32.
#[inline(always)]
fn widen<'g>(gradient: &Gradient<'g>, from: usize, to: &'g mut [f32]) -> &'g [f32] {
    match gradient {
        Gradient::F32(x) => return &x[from..from + to.len()],
        Gradient::F16(x) => {
            to.iter_mut().zip(&x[from..]).for_each(|(to, from)| *to = f16_to_f32(from.to_bits()));
        }
        Gradient::Bf16(x) => {
            to.iter_mut().zip(&x[from..]).for_each(|(to, from)| *to = bf16_to_f32(from.to_bits()));
        }
    }
    to
}

/// What is taken off the sums.
struct Term<'a> {
    before: Before,
    scale: &'a [[f32; GROUP]; MOST],
    /// A tile of the right factor, and from a column of it to the next.
    right: &'a [f32],
    stride: usize,
    rank: usize,
}

/// Forms gradient + residual in a tile, and leaves in `sums` what stays behind.
#[expect(clippy::too_many_arguments, reason = "each is a number of the tile")]
#[inline(always)]
fn add<V: Lanes>(
    tile: &mut [f32],
    gradient: &Gradient<'_>,
    from: usize,
    sums: &mut [f32],
    columns: usize,
    width: usize,
    group: usize,
    term: &Term<'_>,
) {
    if term.before == Before::Rest {
        let mut i = 0;
        while i < group {
            if i + TOGETHER <= group {
                expand_rows::<V, TOGETHER>(term, i, &mut tile[i * TILE..], TILE, width);
                i += TOGETHER;
            } else {
                expand_rows::<V, 1>(term, i, &mut tile[i * TILE..], TILE, width);
                i += 1;
            }
        }
    }
    let mut wide = [0.0; TILE];
    for (i, row) in tile.chunks_exact_mut(TILE).take(group).enumerate() {
        let next = match gradient {
            Gradient::F32(x) => x.get(from + i * columns + width..).unwrap_or_default(),
            Gradient::F16(_) | Gradient::Bf16(_) => &[],
        };
        let gradient = widen(gradient, from + i * columns, &mut wide[..width]);
        let (old, next_sums) = sums[i * columns..].split_at_mut(width);
        add_row::<V>(&mut row[..width], gradient, old, term.before, [next, next_sums]);
    }
}

#[inline(always)]
fn add_row<V: Lanes>(row: &mut [f32], gradient: &[f32], old: &mut [f32], before: Before, next: [&[f32]; 2]) {
    let (rows, row) = row.as_chunks_mut::<LANES>();
    let (olds, old) = old.as_chunks_mut::<LANES>();
    let (gradients, gradient) = gradient.as_chunks::<LANES>();
    for (j, ((row, gradient), old)) in rows.iter_mut().zip(gradients).zip(olds).enumerate() {
        // What the next tile needs is fetched while this one is worked on; the hardware's own prefetching does not follow rows
        // that it sees in pieces.
        V::prefetch(next[0], j * LANES);
        V::prefetch(next[1], j * LANES);
        let (sum, left) = sum_of::<V>(V::load(gradient), V::load(old), V::load(row), before);
        sum.store(row);
        left.store(old);
    }
    if !row.is_empty() {
        let (sum, left) = sum_of::<V>(V::load_part(gradient), V::load_part(old), V::load_part(row), before);
        sum.store_part(row);
        left.store_part(old);
    }
}

/// Gradient + residual, and what of it stays behind.
#[inline(always)]
fn sum_of<V: Lanes>(gradient: V, old: V, less: V, before: Before) -> (V, V) {
    let residual = match before {
        Before::Nothing => V::splat(0.0),
        Before::Sums => old,
        Before::Rest => old.sub(less),
    };
    let sum = gradient.add(residual);
    (sum, V::kept(sum, residual))
}

/// Writes a part of some rows of L R^T, from row `i` of the group on; `stride` apart.
#[inline(always)]
fn expand_rows<V: Lanes, const R: usize>(term: &Term<'_>, i: usize, out: &mut [f32], stride: usize, width: usize) {
    let whole = width / LANES;
    let mut rows: [&mut [[f32; LANES]]; R] = [(); R].map(|()| Default::default());
    let mut rests: [&mut [f32]; R] = [(); R].map(|()| Default::default());
    for ((row, rest), line) in rows.iter_mut().zip(&mut rests).zip(out.chunks_mut(stride)) {
        (*row, *rest) = line[..width].as_chunks_mut();
    }
    for j in 0..whole {
        let sums = entries::<V, R>(term, i, j);
        for (sum, row) in sums.into_iter().zip(&mut rows) {
            sum.store(&mut row[j]);
        }
    }
    if whole * LANES < width {
        let sums = entries::<V, R>(term, i, whole);
        for r in 0..R {
            sums[r].store_part(rests[r]);
        }
    }
}

/// Sixteen entries of rows of L R^T, from row `i` of the group on.
#[inline(always)]
fn entries<V: Lanes, const R: usize>(term: &Term<'_>, i: usize, j: usize) -> [V; R] {
    let (right, stride) = (term.right.as_chunks::<LANES>().0, term.stride / LANES);
    let mut sums = [V::splat(0.0); R];
    let column = V::load(&right[j]);
    for (r, sum) in sums.iter_mut().enumerate() {
        *sum = V::splat(term.scale[0][(i + r) % GROUP]).mul(column);
    }
    for k in 1..term.rank {
        let (column, scale) = (V::load(&right[k * stride + j]), &term.scale[k % MOST]);
        for r in 0..R {
            sums[r] = sums[r].add(V::splat(scale[(i + r) % GROUP]).mul(column));
        }
    }
    sums
}

/// Parts of neighbouring rows. Nothing here is a closure: one that is not inlined would be compiled for the narrowest vectors.
#[derive(Clone, Copy)]
struct Lines<'a> {
    source: &'a [f32],
    /// From a row to the next.
    stride: usize,
    width: usize,
    count: usize,
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
fn dots<V: Lanes, const K: usize>(
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
fn down<V: Lanes>(lines: Lines<'_>, weights: &[[f32; GROUP]; MOST], rank: usize, out: &mut [f32], stride: usize) {
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

/// Writes rows of L R^T, from the row `first` of the matrix on; the right factor is in tiles.
#[inline(always)]
pub(super) fn expand<V: Lanes>(part: Part, rank: usize, first: usize, left: &[f32], right: &[f32], out: &mut [f32]) {
    let (columns, step) = (part.columns, tile_width(&part, rank));
    for (g, rows) in out.chunks_mut(TOGETHER * columns).enumerate() {
        let group = rows.len() / columns;
        let scale = weights(left, &part, rank, first + g * TOGETHER, group);
        for (at, right) in (0..columns).step_by(step).zip(right.chunks_exact(step * rank)) {
            let width = step.min(columns - at);
            let term = Term { before: Before::Rest, scale: &scale, right, stride: step, rank };
            if group == TOGETHER {
                expand_rows::<V, TOGETHER>(&term, 0, &mut rows[at..], columns, width);
                continue;
            }
            for i in 0..group {
                expand_rows::<V, 1>(&term, i, &mut rows[i * columns + at..], columns, width);
            }
        }
    }
}

/// Where in a slab gradient + residual is first not finite.
#[inline(always)]
pub(super) fn first_not_finite<V: Lanes>(slab: Slab<'_>, sums: &[f32]) -> Option<usize> {
    let Rows::Form { gradient, before, left, right, .. } = slab.rows else { return None };
    let (part, columns, step) = (slab.part, slab.part.columns, tile_width(&slab.part, slab.rank));
    let (mut tile, mut old) = ([0.0; TILE], [0.0; TILE]);
    for (i, line) in sums.chunks_exact(columns).enumerate() {
        let rank = if before == Before::Rest { slab.rank } else { 0 };
        let scale = weights(left, &part, rank, slab.first + i, 1);
        for (t, at) in (0..columns).step_by(step).enumerate() {
            let width = step.min(columns - at);
            old[..width].copy_from_slice(&line[at..at + width]);
            let right = &right[t * step * rank..(t + 1) * step * rank];
            let term = Term { before, scale: &scale, right, stride: step, rank };
            add::<V>(&mut tile, &gradient, i * columns + at, &mut old, width, width, 1, &term);
            // One pass over the row without a branch; where it tells of something, another that finds it.
            if tile[..width].iter().fold(false, |bad, v| bad | (v.to_bits() & INF_BITS == INF_BITS)) {
                return tile[..width].iter().position(|v| !v.is_finite()).map(|j| i * columns + at + j);
            }
        }
    }
    None
}
