//! The products of a slab.

use super::form::{Ahead, Place, Term, add};
use super::parts::{
    Before, Form, GROUP, LARGE_GROUP, PANEL, Rows, STRIDE, Slab, group_of, scale, scales_of, tile_width, weigh,
};
use super::product::{Lines, dots, down, fold};
use crate::backend::cpu::lanes::{LANES, Lanes, Line};
use crate::plan::Side;

/// M Q of the slab's rows, or their share of M^T P. K columns of the factor are in registers together where sums go
/// along the rows, and D where they go down.
#[inline(always)]
pub(in crate::backend::cpu) fn multiply<V: Lanes, const K: usize, const D: usize>(slab: Slab<'_>) {
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
