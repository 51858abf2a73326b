//! Cosine transforms: lines beside each other are the lanes of vectors.

use gradwire_kernels::arith::dct::{
    MOST_LOG2, back_2, back_4, back_8, back_16, back_32, back_64, block_of, row_log2, scale_of, second_2, second_4,
    second_8, second_16, second_32, second_64,
};
use gradwire_kernels::arith::float::canonical;
use gradwire_kernels::arith::rotation::scaled;
use gradwire_kernels::params::DctParams;

/// Elements of the largest block.
const MOST: usize = 1 << (2 * MOST_LOG2);

/// Transforms the blocks from element `first` on, `LANES` lines at a time.
#[inline(always)]
pub(super) fn dct<const LANES: usize>(p: &DctParams, first: usize, input: &[f32], output: &mut [f32]) {
    let mut room = [0.0; MOST];
    let mut at = 0;
    while at < input.len() {
        let log2 = block_of((first + at) as u32, p.n, p.block_log2);
        let end = at + (1 << log2);
        let (from, to) = (&input[at..end], &mut output[at..end]);
        let room = &mut room[..1 << log2];
        let (columns_log2, rows_log2) = (row_log2(log2), log2 - row_log2(log2));
        let (columns, rows) = (1 << columns_log2, 1 << rows_log2);
        if p.is_inverse() {
            for (place, (value, y)) in to.iter_mut().zip(from).enumerate() {
                *value = y * scale_of(place as u32, log2);
            }
            lines::<LANES, true>(to, rows_log2, columns);
            transpose(to, room, columns);
            lines::<LANES, true>(room, columns_log2, rows);
            transpose(room, to, rows);
            to.iter_mut().for_each(|value| *value = canonical(*value));
        } else {
            transpose(from, room, columns);
            lines::<LANES, false>(room, columns_log2, rows);
            transpose(room, to, rows);
            lines::<LANES, false>(to, rows_log2, columns);
            for (place, value) in to.iter_mut().enumerate() {
                *value = scaled(*value, scale_of(place as u32, log2));
            }
        }
        at = end;
    }
}

/// Makes columns of rows of `columns` elements.
#[inline(always)]
fn transpose(from: &[f32], to: &mut [f32], columns: usize) {
    let rows = from.len() / columns;
    for (row, values) in from.chunks_exact(columns).enumerate() {
        for (column, value) in values.iter().enumerate() {
            to[column * rows + row] = *value;
        }
    }
}

/// Transforms lines of 2^`log2` elements each, of which `beside` lie beside each other.
#[inline(always)]
fn lines<const LANES: usize, const BACK: bool>(values: &mut [f32], log2: u32, beside: usize) {
    match (log2, BACK) {
        (1, false) => each::<LANES, 2>(values, beside, second_2),
        (2, false) => each::<LANES, 4>(values, beside, second_4),
        (3, false) => each::<LANES, 8>(values, beside, second_8),
        (4, false) => each::<LANES, 16>(values, beside, second_16),
        (5, false) => each::<LANES, 32>(values, beside, second_32),
        (6, false) => each::<LANES, 64>(values, beside, second_64),
        (1, true) => each::<LANES, 2>(values, beside, back_2),
        (2, true) => each::<LANES, 4>(values, beside, back_4),
        (3, true) => each::<LANES, 8>(values, beside, back_8),
        (4, true) => each::<LANES, 16>(values, beside, back_16),
        (5, true) => each::<LANES, 32>(values, beside, back_32),
        (6, true) => each::<LANES, 64>(values, beside, back_64),
        // A line of one element is its own transform.
        _ => {}
    }
}

/// Transforms lines of `N` elements.
#[inline(always)]
fn each<const LANES: usize, const N: usize>(
    values: &mut [f32],
    beside: usize,
    transform: impl Fn([[f32; LANES]; N]) -> [[f32; LANES]; N],
) {
    let mut first = 0;
    while first < beside {
        // A block has fewer lines than lanes if it is small: the other lanes hold zeros.
        let here = LANES.min(beside - first);
        let mut line = [[0.0; LANES]; N];
        for (lanes, row) in line.iter_mut().zip(values.chunks_exact(beside)) {
            lanes[..here].copy_from_slice(&row[first..first + here]);
        }
        let line = transform(line);
        for (lanes, row) in line.iter().zip(values.chunks_exact_mut(beside)) {
            row[first..first + here].copy_from_slice(&lanes[..here]);
        }
        first += LANES;
    }
}
