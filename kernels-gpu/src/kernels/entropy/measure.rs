//! How long the Elias codes of each unit are.

use super::{Buffers, Place, leave_words, lengths, load};
use crate::device;
use crate::params::EntropyParams;

kernel! {
    /// Leaves the words that each unit's Elias codes take, and their sum for each 256 units.
    ///
    /// # What
    /// Byte `u` of the table is the number of words of unit `u`, minus 1; `workspace[i]` is the sum of the words of
    /// units `256 i` to `256 i + 255`.
    ///
    /// # Arguments
    /// * `p`; `codes`: `p.units` units of codes of `p.bits` bits. Read.
    /// * `values`: the table, `p.table` words. Written.
    /// * `workspace`: a word per block. Written.
    /// * `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a warp 32 of them in turn, a lane 8 codes of each.
    ///
    /// # Shared memory
    /// 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them.
    ///
    /// # Traffic
    /// The codes once; a byte per unit, and 4 for each 256.
    ///
    /// # Determinism
    /// Backend to backend: sums of integers.
    ///
    /// # Edge cases
    /// Bytes of the table's last word that no unit has are zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn elias_measure(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let mut own = 0;
        for k in 0..place.count(&p) {
            // SAFETY: the unit is there.
            let (_, exponents) = unsafe { load(&p, &b, place.unit() + k, place.lane) };
            let (unary, rests) = lengths(&exponents);
            // SAFETY: the number of units is the warp's, so all of its lanes are here.
            let bits = unsafe { device::fold_sum(unary + rests) };
            own = if place.lane == k { bits.div_ceil(32) } else { own };
        }
        // SAFETY: all threads are here.
        unsafe { leave_words(&p, &b, place, own) };
    }
}
