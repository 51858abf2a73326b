//! The filter of top-k where a processor compresses a vector: no branch on what is kept.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_cmpge_epu32_mask, _mm512_loadu_si512,
    _mm512_mask_compressstoreu_epi32, _mm512_min_epu32, _mm512_set1_epi32, _mm512_setr_epi32,
};

use gradwire_kernels::arith::float::{MAGNITUDE, canonical};
use gradwire_kernels::arith::topk::{NAN_KEY, key};

use super::filter::Entries;

/// Values of a vector.
const WIDTH: usize = 16;

/// The entries of `values` whose keys are at or above `floor`; the first of them is element `start` of the gradient.
///
/// `sums`, if it is not empty, is added to the values, and overwritten by the sums. `scratch` is room that the next run
/// uses again: new room for each would cost more than the filter.
#[target_feature(enable = "avx512f")]
pub(super) fn filter(values: &[f32], sums: &mut [f32], start: usize, floor: u32, scratch: &mut Entries) -> Entries {
    let (groups, rest) = values.as_chunks::<WIDTH>();
    let Entries { indices, bits } = scratch;
    indices.clear();
    bits.clear();
    indices.reserve(values.len() + WIDTH);
    bits.reserve(values.len() + WIDTH);
    let mut count = 0;
    let (magnitude, top) = (_mm512_set1_epi32(MAGNITUDE as i32), _mm512_set1_epi32(NAN_KEY as i32));
    let floors = _mm512_set1_epi32(floor as i32);
    let mut at = _mm512_add_epi32(
        _mm512_set1_epi32(start as i32),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    );
    for (group, values) in groups.iter().enumerate() {
        let vector = if sums.is_empty() { load(values) } else { add(values, &mut sums[group * WIDTH..]) };
        let keys = _mm512_min_epu32(_mm512_and_si512(vector, magnitude), top);
        let wanted = _mm512_cmpge_epu32_mask(keys, floors);
        // SAFETY: `count` entries were written, at most as many as values went by, and there is room for all values and
        // a vector more.
        unsafe {
            _mm512_mask_compressstoreu_epi32(indices.as_mut_ptr().add(count).cast(), wanted, at);
            _mm512_mask_compressstoreu_epi32(bits.as_mut_ptr().add(count).cast(), wanted, vector);
        }
        count += wanted.count_ones() as usize;
        at = _mm512_add_epi32(at, _mm512_set1_epi32(WIDTH as i32));
    }
    // SAFETY: as many were written to each.
    unsafe {
        indices.set_len(count);
        bits.set_len(count);
    }
    let first = values.len() - rest.len();
    for (i, value) in rest.iter().enumerate() {
        let mut value = *value;
        if let Some(sum) = sums.get_mut(first + i) {
            *sum = canonical(*sum + value);
            value = *sum;
        }
        if key(value.to_bits()) >= floor {
            indices.push((start + first + i) as u32);
            bits.push(value.to_bits());
        }
    }
    scratch.clone()
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(values: &[f32; WIDTH]) -> __m512i {
    // SAFETY: there are 64 bytes to read.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn add(values: &[f32; WIDTH], sums: &mut [f32]) -> __m512i {
    let mut vector = [0f32; WIDTH];
    for ((sum, value), out) in sums.iter_mut().zip(values).zip(&mut vector) {
        *sum = canonical(*sum + value);
        *out = *sum;
    }
    load(&vector)
}
