//! Votes of signs: a unit's counts stay in registers, or in the first-level cache.

use gradwire_kernels::arith::vote::{PLANES, Votes, value};

/// Elements of a unit, words and bytes of its codes.
const UNIT: usize = 256;
const WORDS: usize = 8;
const BYTES: usize = 32;

/// Votes on the units from one on.
#[inline(always)]
pub(super) fn vote(first: usize, codes: &[&[u8]], output: &mut [f32]) {
    if codes.len() < 16 { counted::<4>(first, codes, output) } else { counted::<PLANES>(first, codes, output) }
}

#[inline(always)]
fn counted<const PLANES: usize>(first: usize, codes: &[&[u8]], output: &mut [f32]) {
    for (unit, output) in output.chunks_mut(UNIT).enumerate() {
        let mut votes = [Votes::<PLANES>::NONE; WORDS];
        for codes in codes {
            let unit = &codes[(first + unit) * BYTES..][..BYTES];
            for (votes, word) in votes.iter_mut().zip(unit.chunks_exact(4)) {
                votes.add(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
        // A lane's byte has the bits of its slots.
        let (mut above, mut equal) = ([0; BYTES], [0; BYTES]);
        for (word, votes) in votes.iter().enumerate() {
            let [more, same] = votes.outcome(codes.len() as u32);
            above[4 * word..][..4].copy_from_slice(&more.to_le_bytes());
            equal[4 * word..][..4].copy_from_slice(&same.to_le_bytes());
        }
        for (slot, row) in output.chunks_mut(BYTES).enumerate() {
            for ((out, above), equal) in row.iter_mut().zip(&above).zip(&equal) {
                *out = value(u32::from(*above) >> slot, u32::from(*equal) >> slot);
            }
        }
    }
}
