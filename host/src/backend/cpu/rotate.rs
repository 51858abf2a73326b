//! Rotations: a block is one thread's, and stays in its first-level cache.

use gradwire_kernels::arith::rotation::{MOST_LOG2, ROW_LOG2, block_log2, flip, scale, scaled, signs};
use gradwire_kernels::params::RotateParams;

/// Elements of a row.
const ROW: usize = 1 << ROW_LOG2;

/// Rotates the blocks from row `first` on.
#[inline(always)]
pub(super) fn rotate(p: &RotateParams, first: usize, input: &[f32], output: &mut [f32]) {
    // What an inverse works in, since its output may end within a block.
    let mut room = [0.0; 1 << MOST_LOG2];
    let mut at = 0;
    while at < input.len().max(output.len()) {
        let row = (first + at / ROW) as u32;
        let log2 = block_log2(row, p.rows, p.block_log2);
        let end = at + (1usize << log2);
        let from = &input[at..end.min(input.len())];
        let call = p.first_call + row / 4;
        if p.is_inverse() {
            let to = end.min(output.len());
            let block = &mut room[..from.len()];
            block.copy_from_slice(from);
            butterflies(block, log2);
            let block = &mut block[..to - at];
            change_signs(p, row, call, block);
            finish(block, scale(log2));
            output[at..to].copy_from_slice(block);
        } else {
            let block = &mut output[at..end];
            block[..from.len()].copy_from_slice(from);
            block[from.len()..].fill(0.0);
            change_signs(p, row, call, block);
            butterflies(block, log2);
            finish(block, scale(log2));
        }
        at = end;
    }
}

/// Gives a block its signs, before [`finish`], which makes each NaN the one.
#[inline(always)]
fn change_signs(p: &RotateParams, row: u32, call: u32, block: &mut [f32]) {
    // A block of 32 or 64 elements may begin within a draw.
    let skipped = row as usize % 4;
    let mut words = signs(p.stream(), call);
    for (index, values) in block.chunks_mut(ROW).enumerate() {
        let place = (skipped + index) % 4;
        if place == 0 && index > 0 {
            words = signs(p.stream(), call + ((skipped + index) / 4) as u32);
        }
        for (i, value) in values.iter_mut().enumerate() {
            *value = flip(*value, words[place] >> i);
        }
    }
}

/// Multiplies a block, and makes each NaN the one.
#[inline(always)]
fn finish(block: &mut [f32], scale: f32) {
    block.iter_mut().for_each(|value| *value = scaled(*value, scale));
}

/// All levels of a block of 2^`log2` elements, 32 at least.
#[inline(always)]
fn butterflies(block: &mut [f32], log2: u32) {
    for sixteen in block.as_chunks_mut::<16>().0 {
        small::<1>(sixteen);
        small::<2>(sixteen);
        small::<4>(sixteen);
        small::<8>(sixteen);
    }
    let mut level = 4;
    // Two levels at a time, so that an element is read and written half as often.
    while level + 1 < log2 {
        two_levels(block, 1 << level);
        level += 2;
    }
    if level < log2 {
        let distance = 1 << level;
        for pair in block.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
    }
}

/// The level of a distance within a vector or two.
#[inline(always)]
fn small<const DISTANCE: usize>(values: &mut [f32; 16]) {
    let before = *values;
    for (i, value) in values.iter_mut().enumerate() {
        let other = before[i ^ DISTANCE];
        *value = if i & DISTANCE == 0 { before[i] + other } else { other - before[i] };
    }
}

/// The levels of a distance and of twice that.
#[inline(always)]
fn two_levels(block: &mut [f32], distance: usize) {
    for four in block.chunks_exact_mut(4 * distance) {
        let (low, high) = four.split_at_mut(2 * distance);
        let ((a, b), (c, d)) = (low.split_at_mut(distance), high.split_at_mut(distance));
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            let (ab, cd) = ([*a + *b, *a - *b], [*c + *d, *c - *d]);
            [*a, *b, *c, *d] = [ab[0] + cd[0], ab[1] + cd[1], ab[0] - cd[0], ab[1] - cd[1]];
        }
    }
}
