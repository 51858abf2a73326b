//! Rows of gradient + residual, and of L R^T.

use gradwire_kernels::arith::float::{INF_BITS, bf16_to_f32, f16_to_f32};

use super::super::lanes::{LANES, Lanes};
use super::{Before, GROUP, MOST, Rows, Slab, TILE, TOGETHER, tile_width, weights};
use crate::gradient::Gradient;
use crate::plan::Part;

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
pub(super) struct Term<'a> {
    pub(super) before: Before,
    pub(super) scale: &'a [[f32; GROUP]; MOST],
    /// A tile of the right factor, and from a column of it to the next.
    pub(super) right: &'a [f32],
    pub(super) stride: usize,
    pub(super) rank: usize,
}

/// Forms gradient + residual in a tile, and leaves in `sums` what stays behind.
#[expect(clippy::too_many_arguments, reason = "each is a number of the tile")]
#[inline(always)]
pub(super) fn add<V: Lanes>(
    tile: &mut [f32],
    gradient: &Gradient<'_>,
    from: usize,
    sums: &mut [f32],
    columns: usize,
    width: usize,
    group: usize,
    term: &Term<'_>,
) {
    let spread = term.before == Before::Rest && term.rank >= SPREAD;
    if term.before == Before::Rest {
        let mut i = 0;
        while i < group {
            let ahead = if spread {
                ahead_of(gradient, from + i * columns, &sums[i * columns..], columns, width)
            } else {
                Ahead::NOTHING
            };
            if i + TOGETHER <= group {
                expand_rows::<V, TOGETHER>(term, i, &mut tile[i * TILE..], TILE, width, ahead);
                i += TOGETHER;
            } else {
                expand_rows::<V, 1>(term, i, &mut tile[i * TILE..], TILE, width, ahead);
                i += 1;
            }
        }
    }
    let mut wide = [0.0; TILE];
    for (i, row) in tile.chunks_exact_mut(TILE).take(group).enumerate() {
        // Few terms take no longer than the fetching.
        let ahead = if spread { Ahead::NOTHING } else { ahead_of(gradient, from + i * columns, &[], columns, width) };
        let gradient = widen(gradient, from + i * columns, &mut wide[..width]);
        let (old, next) = sums[i * columns..].split_at_mut(width);
        add_row::<V>(
            &mut row[..width],
            gradient,
            old,
            term.before,
            Ahead { sums: if spread { &[] } else { next }, ..ahead },
        );
    }
}

/// Terms from which on the next tile is fetched between them.
const SPREAD: usize = 8;

/// What the next tile needs is fetched while this one is worked on, a few lines at a time: more than a core has
/// requests for would wait for one another. The hardware's own prefetching does not follow rows that it sees in pieces.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    gradient: &'a [f32],
    sums: &'a [f32],
    columns: usize,
}

impl Ahead<'_> {
    const NOTHING: Self = Self { gradient: &[], sums: &[], columns: 0 };
}

#[inline(always)]
fn ahead_of<'a>(gradient: &Gradient<'a>, from: usize, sums: &'a [f32], columns: usize, width: usize) -> Ahead<'a> {
    let gradient = match gradient {
        Gradient::F32(x) => x.get(from + width..).unwrap_or_default(),
        Gradient::F16(_) | Gradient::Bf16(_) => &[],
    };
    Ahead { gradient, sums: sums.get(width..).unwrap_or_default(), columns }
}

#[inline(always)]
fn add_row<V: Lanes>(row: &mut [f32], gradient: &[f32], old: &mut [f32], before: Before, ahead: Ahead<'_>) {
    let (rows, row) = row.as_chunks_mut::<LANES>();
    let (olds, old) = old.as_chunks_mut::<LANES>();
    let (gradients, gradient) = gradient.as_chunks::<LANES>();
    for (j, ((row, gradient), old)) in rows.iter_mut().zip(gradients).zip(olds).enumerate() {
        V::prefetch(ahead.gradient, j * LANES);
        V::prefetch(ahead.sums, j * LANES);
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
fn expand_rows<V: Lanes, const R: usize>(
    term: &Term<'_>,
    i: usize,
    out: &mut [f32],
    stride: usize,
    width: usize,
    ahead: Ahead<'_>,
) {
    let whole = width / LANES;
    let mut rows: [&mut [[f32; LANES]]; R] = [(); R].map(|()| Default::default());
    let mut rests: [&mut [f32]; R] = [(); R].map(|()| Default::default());
    for ((row, rest), line) in rows.iter_mut().zip(&mut rests).zip(out.chunks_mut(stride)) {
        (*row, *rest) = line[..width].as_chunks_mut();
    }
    for j in 0..whole {
        if term.rank >= SPREAD {
            for r in 0..R {
                V::prefetch(ahead.gradient, r * ahead.columns + j * LANES);
                V::prefetch(ahead.sums, r * ahead.columns + j * LANES);
            }
        }
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

/// Writes rows of L R^T, from the row `first` of the matrix on; the right factor is in tiles.
#[inline(always)]
pub(in super::super) fn expand<V: Lanes>(
    part: Part,
    rank: usize,
    first: usize,
    left: &[f32],
    right: &[f32],
    out: &mut [f32],
) {
    let (columns, step) = (part.columns, tile_width(&part, rank));
    for (g, rows) in out.chunks_mut(TOGETHER * columns).enumerate() {
        let group = rows.len() / columns;
        let scale = weights(left, &part, rank, first + g * TOGETHER, group);
        for (at, right) in (0..columns).step_by(step).zip(right.chunks_exact(step * rank)) {
            let width = step.min(columns - at);
            let term = Term { before: Before::Rest, scale: &scale, right, stride: step, rank };
            if group == TOGETHER {
                expand_rows::<V, TOGETHER>(&term, 0, &mut rows[at..], columns, width, Ahead::NOTHING);
                continue;
            }
            for i in 0..group {
                expand_rows::<V, 1>(&term, i, &mut rows[i * columns + at..], columns, width, Ahead::NOTHING);
            }
        }
    }
}

/// Where in a slab gradient + residual is first not finite.
#[inline(always)]
pub(in super::super) fn first_not_finite<V: Lanes>(slab: Slab<'_>, sums: &[f32]) -> Option<usize> {
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
