//! A slab, what it is formed from, and how factors lie for its products.

use gradwire_kernels::arith::powersgd::MOST_RANK;

use crate::backend::cpu::lanes::{LANES, Line};
use crate::gradient::Gradient;
use crate::plan::{Part, Side};

/// Rows that are worked on together, with a small right factor and with a large one.
pub(super) const GROUP: usize = 8;
pub(super) const LARGE_GROUP: usize = 32;
/// Entries of a right factor that are many: more than a near cache holds. They are read, or written, once per group.
pub(super) const LARGE: usize = 1 << 14;
/// The rank from which on products take longer than memory: what the next tile needs is fetched between the terms of
/// this one.
pub(super) const SPREAD: usize = 8;
/// Rows of a group whose sums along the row are in registers together.
pub(super) const TOGETHER: usize = 4;
/// Columns of a tile. Eight rows of one stay in the first-level cache, and a large group's in the second.
pub(super) const TILE: usize = 512;
/// From a row of a tile to the next: no power of two, so that a column of a tile does not share a few lines of the
/// cache.
pub(super) const STRIDE: usize = TILE + LANES;
/// Columns after which sums along a row go over to f64. A multiple of the tile.
pub(super) const PANEL: usize = 2048;
pub(super) const MOST: usize = MOST_RANK as usize;

/// Rows that are worked on together. No bit depends on it.
pub(in crate::backend::cpu) const fn group_of(part: &Part, rank: usize) -> usize {
    if rank < SPREAD || part.columns * rank < LARGE { GROUP } else { LARGE_GROUP }
}

/// What the residual is, beside the sums of the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) enum Before {
    /// There is none.
    Nothing,
    /// The sums: nothing was sent.
    Sums,
    /// The sums less L R^T.
    Rest,
}

/// The rows of a slab.
pub(in crate::backend::cpu) enum Rows<'a> {
    /// Gradient + residual as an earlier pass left it.
    Formed(&'a [f32]),
    /// To be formed.
    Form(Form<'a>),
}

/// What gradient + residual is formed from, and where it is left.
pub(in crate::backend::cpu) struct Form<'a> {
    pub(in crate::backend::cpu) gradient: Gradient<'a>,
    pub(in crate::backend::cpu) sums: &'a mut [f32],
    /// The sums of the step before, if they are not in `sums`.
    pub(in crate::backend::cpu) aside: Option<&'a [f32]>,
    pub(in crate::backend::cpu) before: Before,
    pub(in crate::backend::cpu) left: &'a [f32],
    /// In lines.
    pub(in crate::backend::cpu) right: &'a [f32],
}

/// A slab, and the factor that it is multiplied by.
pub(in crate::backend::cpu) struct Slab<'a> {
    pub(in crate::backend::cpu) part: Part,
    pub(in crate::backend::cpu) rank: usize,
    /// Its first row in the matrix.
    pub(in crate::backend::cpu) first: usize,
    pub(in crate::backend::cpu) rows: Rows<'a>,
    /// The matrix's factor of the side `known`: a left one padded, a right one in tiles.
    pub(in crate::backend::cpu) input: &'a [f32],
    pub(in crate::backend::cpu) known: Side,
    /// With the right factor known, `rank` entries of each row; else the slab's share of the right factor, in lines.
    pub(in crate::backend::cpu) out: &'a mut [f32],
}

/// Columns of a tile of a matrix, padding included.
pub(super) fn tile_width(part: &Part) -> usize {
    part.column_stride().min(TILE)
}

/// A right factor in tiles, for sums along rows: all columns of the factor for the first columns of the matrix, then
/// for the next. Entries that are used together lie together; as columns they might be a power of two apart, and share
/// a few lines of the cache.
pub(in crate::backend::cpu) fn tile(part: &Part, rank: usize, factor: &[f32], tiles: &mut [Line]) {
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
pub(in crate::backend::cpu) fn tiles_of(part: &Part, rank: usize) -> usize {
    let width = tile_width(part);
    part.columns.div_ceil(width) * width / LANES * rank
}

/// A right factor in lines, for sums of its columns: sixteen entries of each of its columns, then the next sixteen.
pub(in crate::backend::cpu) fn line_up(part: &Part, rank: usize, factor: &[f32], lines: &mut [Line]) {
    for (j, lines) in lines.chunks_exact_mut(rank).enumerate() {
        for (k, line) in lines.iter_mut().enumerate() {
            line.0.copy_from_slice(&factor[k * part.column_stride() + j * LANES..][..LANES]);
        }
    }
}

/// Lines that it takes so.
pub(in crate::backend::cpu) fn lines_of(part: &Part, rank: usize) -> usize {
    part.column_stride() / LANES * rank
}

/// Entries of some rows in a left factor as L R^T takes them: of four rows, for each column of the factor, a number a
/// row.
pub(super) type Scales = [[[f32; TOGETHER]; MOST]];

/// Room for those of a group.
pub(super) fn scales_of(group: usize) -> Vec<[[f32; TOGETHER]; MOST]> {
    vec![[[0.0; TOGETHER]; MOST]; group.div_ceil(TOGETHER)]
}

/// Reads those of a group. Rows that the group does not have keep what was there.
#[inline(always)]
pub(super) fn scale(factor: &[f32], part: &Part, rank: usize, first: usize, group: usize, scales: &mut Scales) {
    for (k, column) in factor.chunks(part.row_stride()).take(rank).enumerate() {
        for (rows, weights) in scales.iter_mut().zip(column[first..][..group].chunks(TOGETHER)) {
            rows[k % MOST][..weights.len()].copy_from_slice(weights);
        }
    }
}

/// The same as M^T P takes them: of K columns of the factor, for each row, a number a column. What is left over of K
/// columns comes one by one.
pub(super) type Weights<const K: usize> = [[[f32; K]; LARGE_GROUP]];

#[inline(always)]
pub(super) fn weigh<const K: usize>(
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
