//! The passes of PowerSGD over a slab: neighbouring rows of a matrix, with all their columns.
//!
//! Sums are in one order, whatever the vector width: along a row sixteen lanes, folded in f64 every [`PANEL`] columns;
//! down a slab row after row. `form.rs` forms the rows, and writes those of L R^T; `product.rs` multiplies them.

mod form;
mod product;

use gradwire_kernels::arith::powersgd::MOST_RANK;

use self::form::{Term, add};
pub(super) use self::form::{expand, first_not_finite};
use self::product::{Lines, dots, down, fold};
use super::lanes::{LANES, Lanes, Line};
use crate::gradient::Gradient;
use crate::plan::{Part, Side};

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

/// Columns of a tile of a matrix, padding included: fewer where the rank is large, so that the factors' tiles are in
/// the first-level cache too.
pub(super) fn tile_width(part: &Part, rank: usize) -> usize {
    let most = match rank {
        0..=8 => TILE,
        9..=16 => TILE / 2,
        _ => TILE / 4,
    };
    part.column_stride().min(most)
}

/// A right factor in tiles: all columns of the factor for the first columns of the matrix, then for the next. Entries
/// that are used together lie together; as columns they might be a power of two apart, and share a few lines of the
/// cache.
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
