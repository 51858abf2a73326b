//! The filter of top-k where a processor compresses a vector, or permutes one by a table: no branch on what is kept.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::{
    __m256i, __m512i, _CMP_UNORD_Q, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_blendv_ps,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_max_epu32, _mm256_min_epu32, _mm256_movemask_ps, _mm256_permutevar8x32_epi32, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_storeu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_cmpge_epu32_mask,
    _mm512_loadu_si512, _mm512_maskz_compress_epi32, _mm512_min_epu32, _mm512_set1_epi32, _mm512_setr_epi32,
    _mm512_storeu_si512,
};

use gradwire_kernels::arith::float::{MAGNITUDE, NAN_BITS, canonical};
use gradwire_kernels::arith::topk::{NAN_KEY, key};

use crate::sparse::Entries;

/// Values of a vector.
const WIDTH: usize = 16;

/// The entries of `values` whose keys are at or above `floor`; the first of them is element `start` of the gradient.
///
/// A residual that is not empty is added to the values, and the sums are written if `sums` is not empty. Entries are
/// appended to `to`.
#[target_feature(enable = "avx512f")]
pub(super) fn filter(values: &[f32], residual: &[f32], sums: &mut [f32], start: usize, floor: u32, to: &mut Entries) {
    let (groups, rest) = values.as_chunks::<WIDTH>();
    let Entries { indices, bits } = to;
    indices.reserve(values.len() + WIDTH);
    bits.reserve(values.len() + WIDTH);
    let mut count = indices.len();
    let (magnitude, top) = (_mm512_set1_epi32(MAGNITUDE as i32), _mm512_set1_epi32(NAN_KEY as i32));
    let floors = _mm512_set1_epi32(floor as i32);
    let mut at = _mm512_add_epi32(
        _mm512_set1_epi32(start as i32),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    );
    for (group, values) in groups.iter().enumerate() {
        let vector = if residual.is_empty() {
            load(values)
        } else {
            let vector = add(values, &residual[group * WIDTH..]);
            if let Some(sums) = sums.get_mut(group * WIDTH..).and_then(<[f32]>::first_chunk_mut::<WIDTH>) {
                // SAFETY: there are 64 bytes to write.
                unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), vector) };
            }
            vector
        };
        let keys = _mm512_min_epu32(_mm512_and_si512(vector, magnitude), top);
        let wanted = _mm512_cmpge_epu32_mask(keys, floors);
        // Most vectors have none where few are kept. Zen 4 compresses into memory far more slowly than into a register.
        if wanted != 0 {
            let (place, kept) = (_mm512_maskz_compress_epi32(wanted, at), _mm512_maskz_compress_epi32(wanted, vector));
            // SAFETY: of `count` entries no more are new than values went by, and there is room for all values and a
            // vector more.
            unsafe {
                _mm512_storeu_si512(indices.as_mut_ptr().add(count).cast(), place);
                _mm512_storeu_si512(bits.as_mut_ptr().add(count).cast(), kept);
            }
            count += wanted.count_ones() as usize;
        }
        at = _mm512_add_epi32(at, _mm512_set1_epi32(WIDTH as i32));
    }
    // SAFETY: as many were written to each.
    unsafe {
        indices.set_len(count);
        bits.set_len(count);
    }
    filter_rest(rest, residual, sums, start, values.len() - rest.len(), floor, to);
}

/// Filters what is left after whole vectors, from element `first` of the run on.
fn filter_rest(
    rest: &[f32],
    residual: &[f32],
    sums: &mut [f32],
    start: usize,
    first: usize,
    floor: u32,
    to: &mut Entries,
) {
    for (i, value) in rest.iter().enumerate() {
        let mut value = *value;
        if let Some(before) = residual.get(first + i) {
            value = canonical(before + value);
            if let Some(sum) = sums.get_mut(first + i) {
                *sum = value;
            }
        }
        if key(value.to_bits()) >= floor {
            to.indices.push((start + first + i) as u32);
            to.bits.push(value.to_bits());
        }
    }
}

/// Values of a vector of AVX2.
const HALF: usize = 8;

/// For each mask of eight lanes, those lanes, lowest first.
static LANES_OF: [[u32; HALF]; 256] = {
    let mut table = [[0; HALF]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < HALF {
            if mask >> lane & 1 == 1 {
                table[mask][count] = lane as u32;
                count += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};

/// As [`filter`], with AVX2.
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn filter_by_table(
    values: &[f32],
    residual: &[f32],
    sums: &mut [f32],
    start: usize,
    floor: u32,
    to: &mut Entries,
) {
    let (groups, rest) = values.as_chunks::<HALF>();
    let Entries { indices, bits } = to;
    indices.reserve(values.len() + HALF);
    bits.reserve(values.len() + HALF);
    let mut count = indices.len();
    let (magnitude, top) = (_mm256_set1_epi32(MAGNITUDE as i32), _mm256_set1_epi32(NAN_KEY as i32));
    let floors = _mm256_set1_epi32(floor as i32);
    let mut at = _mm256_add_epi32(_mm256_set1_epi32(start as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    for (group, values) in groups.iter().enumerate() {
        let vector = if residual.is_empty() {
            load_half(values)
        } else {
            let vector = add_half(values, &residual[group * HALF..]);
            if let Some(sums) = sums.get_mut(group * HALF..).and_then(<[f32]>::first_chunk_mut::<HALF>) {
                // SAFETY: there are 32 bytes to write.
                unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), vector) };
            }
            vector
        };
        let keys = _mm256_min_epu32(_mm256_and_si256(vector, magnitude), top);
        let wanted = _mm256_cmpeq_epi32(_mm256_max_epu32(keys, floors), keys);
        let wanted = _mm256_movemask_ps(_mm256_castsi256_ps(wanted)) as usize & 0xff;
        // SAFETY: the table has 32 bytes for each mask. Of `count` entries no more are new than values went by, and
        // there is room for all values and a vector more.
        unsafe {
            let lanes = _mm256_loadu_si256(LANES_OF[wanted].as_ptr().cast());
            let place = _mm256_permutevar8x32_epi32(at, lanes);
            _mm256_storeu_si256(indices.as_mut_ptr().add(count).cast(), place);
            _mm256_storeu_si256(bits.as_mut_ptr().add(count).cast(), _mm256_permutevar8x32_epi32(vector, lanes));
        }
        count += wanted.count_ones() as usize;
        at = _mm256_add_epi32(at, _mm256_set1_epi32(HALF as i32));
    }
    // SAFETY: as many were written to each.
    unsafe {
        indices.set_len(count);
        bits.set_len(count);
    }
    filter_rest(rest, residual, sums, start, values.len() - rest.len(), floor, to);
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_half(values: &[f32; HALF]) -> __m256i {
    // SAFETY: there are 32 bytes to read.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// Adds the residual, which is as long as the values.
#[target_feature(enable = "avx2")]
#[inline]
fn add_half(values: &[f32; HALF], residual: &[f32]) -> __m256i {
    let Some(before) = residual.first_chunk::<HALF>() else { return load_half(values) };
    // SAFETY: there are 32 bytes to read of each.
    unsafe {
        let sum = _mm256_add_ps(_mm256_loadu_ps(before.as_ptr()), _mm256_loadu_ps(values.as_ptr()));
        let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN_BITS as i32));
        _mm256_castps_si256(_mm256_blendv_ps(sum, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(sum, sum)))
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(values: &[f32; WIDTH]) -> __m512i {
    // SAFETY: there are 64 bytes to read.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// As [`add_half`].
#[target_feature(enable = "avx512f")]
#[inline]
fn add(values: &[f32; WIDTH], residual: &[f32]) -> __m512i {
    let Some(before) = residual.first_chunk::<WIDTH>() else { return load(values) };
    load(&std::array::from_fn(|i| canonical(before[i] + values[i])))
}
