//! The passes of PowerSGD over a slab: neighbouring rows of a matrix, with all their columns.
//!
//! Sums are in one order, whatever the vector width: along a row sixteen lanes, folded in f64 every [`PANEL`] columns;
//! down a slab row after row. `form.rs` forms the rows, and writes those of L R^T; `product.rs` multiplies them.

mod form;
mod product;

use gradwire_kernels::arith::powersgd::MOST_RANK;

use self::form::{Ahead, Place, Term, add};
pub(super) use self::form::{expand, first_not_finite};
use self::product::{Lines, dots, down, fold};
use super::lanes::{LANES, Lanes, Line};
use crate::gradient::Gradient;
use crate::plan::{Part, Side};

/// Rows that are worked on together, with a small right factor and with a large one.
const GROUP: usize = 8;
const LARGE_GROUP: usize = 32;
/// Entries of a right factor that are many: more than a near cache holds. They are read, or written, once per group.
const LARGE: usize = 1 << 14;
/// The rank from which on products take longer than memory: what the next tile needs is fetched between the terms of
/// this one.
const SPREAD: usize = 8;
/// Rows of a group whose sums along the row are in registers together.
const TOGETHER: usize = 4;
/// Columns of a tile. Eight rows of one stay in the first-level cache, and a large group's in the second.
const TILE: usize = 512;
/// From a row of a tile to the next: no power of two, so that a column of a tile does not share a few lines of the
/// cache.
const STRIDE: usize = TILE + LANES;
/// Columns after which sums along a row go over to f64. A multiple of the tile.
const PANEL: usize = 2048;
const MOST: usize = MOST_RANK as usize;

/// Rows that are worked on together. No bit depends on it.
pub(super) const fn group_of(part: &Part, rank: usize) -> usize {
    if rank < SPREAD || part.columns * rank < LARGE { GROUP } else { LARGE_GROUP }
}

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
    /// To be formed.
    Form(Form<'a>),
}

/// What gradient + residual is formed from, and where it is left.
pub(super) struct Form<'a> {
    pub(super) gradient: Gradient<'a>,
    pub(super) sums: &'a mut [f32],
    /// The sums of the step before, where they are not in `sums`.
    pub(super) aside: Option<&'a [f32]>,
    pub(super) before: Before,
    pub(super) left: &'a [f32],
    /// In lines.
    pub(super) right: &'a [f32],
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
    /// With the right factor known, `rank` entries of each row; else the slab's share of the right factor, in lines.
    pub(super) out: &'a mut [f32],
}

/// Columns of a tile of a matrix, padding included.
fn tile_width(part: &Part) -> usize {
    part.column_stride().min(TILE)
}

/// A right factor in tiles, for sums along rows: all columns of the factor for the first columns of the matrix, then
/// for the next. Entries that are used together lie together; as columns they might be a power of two apart, and share
/// a few lines of the cache.
pub(super) fn tile(part: &Part, rank: usize, factor: &[f32], tiles: &mut [Line]) {
    let width = tile_width(part);
    for (t, tile) in bytemuck::cast_slice_mut::<_, f32>(tiles).chunks_exact_mut(width * rank).enumerate() {
        for (k, to) in tile.chunks_exact_mut(width).enumerate() {
            let from = &factor[k * part.column_stride() + t * width..];
            let here = width.min(part.column_stride() - t * width);
            to[..here].copy_from_slice(&from[..here]);
        }
    }
}

/// Lines that those tiles take: zeros, since the last tile may be wider than what is left.
pub(super) fn tiles_of(part: &Part, rank: usize) -> usize {
    let width = tile_width(part);
    part.columns.div_ceil(width) * width / LANES * rank
}

/// A right factor in lines, for sums of its columns: sixteen entries of each of its columns, then the next sixteen.
pub(super) fn line_up(part: &Part, rank: usize, factor: &[f32], lines: &mut [Line]) {
    for (j, lines) in lines.chunks_exact_mut(rank).enumerate() {
        for (k, line) in lines.iter_mut().enumerate() {
            line.0.copy_from_slice(&factor[k * part.column_stride() + j * LANES..][..LANES]);
        }
    }
}

/// Lines that it takes so.
pub(super) fn lines_of(part: &Part, rank: usize) -> usize {
    part.column_stride() / LANES * rank
}

/// Entries of some rows in a left factor as L R^T takes them: of four rows, for each column of the factor, a number a
/// row.
type Scales = [[[f32; TOGETHER]; MOST]];

/// Room for those of a group.
fn scales_of(group: usize) -> Vec<[[f32; TOGETHER]; MOST]> {
    vec![[[0.0; TOGETHER]; MOST]; group.div_ceil(TOGETHER)]
}

/// Reads those of a group. Rows that the group does not have keep what was there.
#[inline(always)]
fn scale(factor: &[f32], part: &Part, rank: usize, first: usize, group: usize, scales: &mut Scales) {
    for (k, column) in factor.chunks(part.row_stride()).take(rank).enumerate() {
        for (rows, weights) in scales.iter_mut().zip(column[first..][..group].chunks(TOGETHER)) {
            rows[k % MOST][..weights.len()].copy_from_slice(weights);
        }
    }
}

/// The same as M^T P takes them: of K columns of the factor, for each row, a number a column. What is left over of K
/// columns comes one by one.
type Weights<const K: usize> = [[[f32; K]; LARGE_GROUP]];

#[inline(always)]
fn weigh<const K: usize>(
    factor: &[f32],
    part: &Part,
    rank: usize,
    first: usize,
    group: usize,
    weights: &mut Weights<K>,
) {
    for (k, column) in factor.chunks(part.row_stride()).take(rank).enumerate() {
        let (block, place) = if k < rank / K * K { (k / K, k % K) } else { (rank / K + k % K, 0) };
        for (to, weight) in weights[block].iter_mut().zip(&column[first..][..group]) {
            to[place] = *weight;
        }
    }
}

/// M Q of the slab's rows, or their share of M^T P. K columns of the factor are in registers together where sums go
/// along the rows, and D where they go down.
#[inline(always)]
pub(super) fn multiply<V: Lanes, const K: usize, const D: usize>(slab: Slab<'_>) {
    let Slab { part, rank, first, rows, input, known, out } = slab;
    let (columns, step) = (part.columns, tile_width(&part));
    let most = group_of(&part, rank);
    // Of the heap: a thread's stack may be small.
    let mut tile = vec![Line::default(); most * STRIDE / LANES];
    let tile = bytemuck::cast_slice_mut::<_, f32>(&mut tile);
    let sums = if known == Side::Right { most * rank } else { 0 };
    let (mut lanes, mut totals) = (vec![[0.0; LANES]; sums], vec![0.0; sums]);
    let blocks = if known == Side::Left { rank / D + rank % D } else { 0 };
    let (mut scales, mut weights) = (scales_of(most), vec![[[0.0; D]; LARGE_GROUP]; blocks]);
    let (formed, mut form) = match rows {
        Rows::Formed(m) => (m, None),
        Rows::Form(form) => (&[][..], Some(form)),
    };
    let count = form.as_ref().map_or(formed.len(), |form| form.sums.len()) / columns;
    for start in (0..count).step_by(most) {
        let group = most.min(count - start);
        let sums = lanes.len().min(group * rank);
        let (lanes, totals) = (&mut lanes[..sums], &mut totals[..sums]);
        totals.fill(0.0);
        if known == Side::Left {
            weigh(input, &part, rank, first + start, group, &mut weights);
        }
        if let Some(Form { before: Before::Rest, left, .. }) = &form {
            scale(left, &part, rank, first + start, group, &mut scales);
        }
        for (t, at) in (0..columns).step_by(step).enumerate() {
            let width = step.min(columns - at);
            let from = start * columns + at;
            let lines = at * rank..(at + width).next_multiple_of(LANES) * rank;
            let formed_here = formed.get(from..).unwrap_or_default();
            let (source, stride, ahead) = if let Some(form) = &mut form {
                let right = if form.before == Before::Rest { &form.right[lines.clone()] } else { &[] };
                let term = Term { scales: &scales, right, rank };
                let ahead = add::<V>(tile, form, &term, Place { from, columns, width, group });
                (&tile[..], STRIDE, ahead)
            } else if known == Side::Left && group > GROUP {
                // Rows may lie a power of two apart, where more than eight of them drive one another out of the cache.
                for (row, from) in tile.chunks_exact_mut(STRIDE).zip(formed_here.chunks(columns)).take(group) {
                    row[..width].copy_from_slice(&from[..width]);
                }
                (&tile[..], STRIDE, Ahead::of(formed_here, columns, width))
            } else {
                (formed_here, columns, Ahead::of(formed_here, columns, width))
            };
            let rows = Lines { source, stride, width, count: group, ahead };
            match known {
                Side::Right => {
                    dots::<V, K>(rows, &input[t * step * rank..], step, rank, lanes);
                    let next = at + step;
                    if next.is_multiple_of(PANEL) || next >= columns {
                        fold(lanes, totals);
                    }
                }
                Side::Left => down::<V, D>(rows, &weights, rank, &mut out[lines], start == 0),
            }
        }
        if known == Side::Right {
            let out = &mut out[start * rank..(start + group) * rank];
            out.iter_mut().zip(&*totals).for_each(|(out, total)| *out = *total as f32);
        }
    }
}
