//! Rows of gradient + residual, and of L R^T.

use gradwire_kernels::arith::float::{INF_BITS, bf16_to_f32, f16_to_f32};

use super::super::lanes::{LANES, Lanes, Line};
use super::parts::{
    Before, Form, GROUP, MOST, Rows, SPREAD, STRIDE, Scales, Slab, TILE, TOGETHER, group_of, scale, scales_of,
    tile_width,
};
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
    pub(super) scales: &'a Scales,
    /// The lines of the tile's columns in the right factor.
    pub(super) right: &'a [f32],
    pub(super) rank: usize,
}

/// Where a tile is in its slab.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) from: usize,
    /// From a row to the next.
    pub(super) columns: usize,
    pub(super) width: usize,
    pub(super) group: usize,
}

/// Forms gradient + residual in a tile, and leaves in the sums what stays behind. Returns what is to be fetched
/// while the tile is multiplied.
#[inline(always)]
pub(super) fn add<'a, V: Lanes>(tile: &mut [f32], form: &mut Form<'a>, term: &Term<'_>, place: Place) -> Ahead<'a> {
    let Form { gradient, sums, aside, before, .. } = form;
    let Place { from, columns, width, group } = place;
    // Few terms take no longer than the fetching.
    let spread = *before == Before::Rest && term.rank >= SPREAD;
    if *before == Before::Rest {
        let next = sums.get(from + width..).unwrap_or_default();
        let old = aside.map_or(&[][..], |aside| aside.get(from + width..).unwrap_or_default());
        let ahead = if spread { Ahead { rows: [next, old], columns } } else { Ahead::NOTHING };
        expand_rows::<V>(term, group, tile, STRIDE, width, ahead);
    }
    let (mut wide, mut kept) = ([0.0; TILE], [0.0; TILE]);
    for (i, row) in tile.chunks_exact_mut(STRIDE).take(group).enumerate() {
        let from = from + i * columns;
        let (sums, next) = sums[from..].split_at_mut(width);
        let (old, next) = match aside {
            Some(aside) => (&aside[from..][..width], aside.get(from + width..).unwrap_or_default()),
            None => {
                kept[..width].copy_from_slice(sums);
                (&kept[..width], &*next)
            }
        };
        let later = [behind(gradient, from, width), next];
        let gradient = widen(gradient, from, &mut wide[..width]);
        add_row::<V>(&mut row[..width], gradient, old, sums, *before, if spread { [&[]; 2] } else { later });
    }
    if spread { Ahead { rows: [behind(gradient, from, width), &[]], columns } } else { Ahead::NOTHING }
}

/// Rows that are fetched while others are worked on, a few lines at a time: more than a core has requests for would
/// wait for one another. The hardware's own prefetching does not follow rows that it sees in pieces.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    rows: [&'a [f32]; 2],
    columns: usize,
}

impl<'a> Ahead<'a> {
    pub(super) const NOTHING: Self = Self { rows: [&[]; 2], columns: 0 };

    /// What is after the first `width` columns of rows.
    #[inline(always)]
    pub(super) fn of(rows: &'a [f32], columns: usize, width: usize) -> Self {
        Self { rows: [rows.get(width..).unwrap_or_default(), &[]], columns }
    }

    #[inline(always)]
    pub(super) fn fetch<V: Lanes>(&self, row: usize, at: usize) {
        V::prefetch(self.rows[0], row * self.columns + at);
        V::prefetch(self.rows[1], row * self.columns + at);
    }
}

/// What is after a part of a row of a gradient of f32.
#[inline(always)]
fn behind<'a>(gradient: &Gradient<'a>, from: usize, width: usize) -> &'a [f32] {
    match gradient {
        Gradient::F32(x) => x.get(from + width..).unwrap_or_default(),
        Gradient::F16(_) | Gradient::Bf16(_) => &[],
    }
}

#[inline(always)]
fn add_row<V: Lanes>(
    row: &mut [f32],
    gradient: &[f32],
    old: &[f32],
    sums: &mut [f32],
    before: Before,
    later: [&[f32]; 2],
) {
    let (rows, row) = row.as_chunks_mut::<LANES>();
    let (all_sums, sums) = sums.as_chunks_mut::<LANES>();
    let ((olds, old), (gradients, gradient)) = (old.as_chunks::<LANES>(), gradient.as_chunks::<LANES>());
    for (j, (((row, gradient), old), sums)) in rows.iter_mut().zip(gradients).zip(olds).zip(all_sums).enumerate() {
        V::prefetch(later[0], j * LANES);
        V::prefetch(later[1], j * LANES);
        let (sum, left) = sum_of::<V>(V::load(gradient), V::load(old), V::load(row), before);
        sum.store(row);
        left.store(sums);
    }
    if !row.is_empty() {
        let (sum, left) = sum_of::<V>(V::load_part(gradient), V::load_part(old), V::load_part(row), before);
        sum.store_part(row);
        left.store_part(sums);
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

/// Writes a part of a group's rows of L R^T, `stride` apart. The lines of sixteen columns stay in the nearest cache
/// for all rows.
#[inline(always)]
fn expand_rows<V: Lanes>(
    term: &Term<'_>,
    group: usize,
    out: &mut [f32],
    stride: usize,
    width: usize,
    ahead: Ahead<'_>,
) {
    let lines = term.right.as_chunks::<LANES>().0.chunks_exact(term.rank);
    for (j, lines) in lines.enumerate() {
        let (at, here) = (j * LANES, LANES.min(width - j * LANES));
        for (block, scales) in (0..group).step_by(TOGETHER).zip(term.scales) {
            let rows = block..group.min(block + TOGETHER);
            for row in rows.clone() {
                ahead.fetch::<V>(row, at);
            }
            let sums = match rows.len() {
                // The look for what is not finite takes a row at a time.
                1 => [entries::<V, 1>(lines, scales)[0]; TOGETHER],
                _ => entries::<V, TOGETHER>(lines, scales),
            };
            for (row, sum) in rows.zip(sums) {
                let out = &mut out[row * stride + at..][..here];
                match out.first_chunk_mut() {
                    Some(out) => sum.store(out),
                    None => sum.store_part(out),
                }
            }
        }
    }
}

/// Sixteen columns of rows of L R^T. A sum begins with -0, which changes no other number.
#[inline(always)]
fn entries<V: Lanes, const R: usize>(lines: &[[f32; LANES]], scales: &[[f32; TOGETHER]; MOST]) -> [V; R] {
    let mut sums = [V::splat(-0.0); R];
    let (pairs, last) = lines.as_chunks::<2>();
    for (lines, scales) in pairs.iter().zip(scales.as_chunks::<2>().0) {
        add_term(&mut sums, &lines[0], &scales[0]);
        add_term(&mut sums, &lines[1], &scales[1]);
    }
    for (line, scales) in last.iter().zip(&scales[lines.len() / 2 * 2..]) {
        add_term(&mut sums, line, scales);
    }
    sums
}

#[inline(always)]
fn add_term<V: Lanes, const R: usize>(sums: &mut [V; R], line: &[f32; LANES], scales: &[f32; TOGETHER]) {
    let column = V::load(line);
    for r in 0..R {
        sums[r] = sums[r].add(V::splat(scales[r]).mul(column));
    }
}

/// Writes rows of L R^T, from the row `first` of the matrix on; the right factor is in lines.
#[inline(always)]
pub(in super::super) fn expand<V: Lanes>(
    part: Part,
    rank: usize,
    first: usize,
    left: &[f32],
    right: &[f32],
    out: &mut [f32],
) {
    let columns = part.columns;
    let most = group_of(&part, rank);
    let mut tile = vec![Line::default(); if most > GROUP { most * STRIDE / LANES } else { 0 }];
    let tile = bytemuck::cast_slice_mut::<_, f32>(&mut tile);
    let mut scales = scales_of(most);
    for (g, rows) in out.chunks_mut(most * columns).enumerate() {
        let group = rows.len() / columns;
        scale(left, &part, rank, first + g * most, group, &mut scales);
        for at in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - at);
            let right = &right[at * rank..(at + width).next_multiple_of(LANES) * rank];
            let term = Term { scales: &scales, right, rank };
            if group <= GROUP {
                expand_rows::<V>(&term, group, &mut rows[at..], columns, width, Ahead::NOTHING);
                continue;
            }
            // Rows may lie a power of two apart, where more than eight of them drive one another out of the cache.
            expand_rows::<V>(&term, group, tile, STRIDE, width, Ahead::of(&rows[at..], columns, 0));
            for (row, from) in rows.chunks_exact_mut(columns).zip(tile.chunks_exact(STRIDE)) {
                row[at..at + width].copy_from_slice(&from[..width]);
            }
        }
    }
}

/// Where in a slab gradient + residual is first not finite.
#[inline(always)]
pub(in super::super) fn first_not_finite<V: Lanes>(slab: Slab<'_>, sums: &[f32]) -> Option<usize> {
    let Rows::Form(Form { gradient, before, left, right, .. }) = slab.rows else { return None };
    let (part, columns, step) = (slab.part, slab.part.columns, tile_width(&slab.part));
    let (mut tile, mut room) = ([0.0; STRIDE], [0.0; TILE]);
    let mut scales = scales_of(1);
    for (i, line) in sums.chunks_exact(columns).enumerate() {
        let rank = if before == Before::Rest { slab.rank } else { 0 };
        scale(left, &part, rank, slab.first + i, 1, &mut scales);
        for at in (0..columns).step_by(step) {
            let width = step.min(columns - at);
            let right = &right[at * rank..(at + width).next_multiple_of(LANES) * rank];
            let gradient = gradient.part(i * columns + at, width);
            let aside = Some(&line[at..at + width]);
            let mut form = Form { gradient, sums: &mut room[..width], aside, before, left, right };
            let term = Term { scales: &scales, right, rank };
            add::<V>(&mut tile, &mut form, &term, Place { from: 0, columns: width, width, group: 1 });
            // One pass over the row without a branch; if it tells of something, another that finds it.
            if tile[..width].iter().fold(false, |bad, v| bad | (v.to_bits() & INF_BITS == INF_BITS)) {
                return tile[..width].iter().position(|v| !v.is_finite()).map(|j| i * columns + at + j);
            }
        }
    }
    None
}
