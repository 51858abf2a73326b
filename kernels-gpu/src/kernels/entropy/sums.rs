//! How many words a table names.

use super::{Buffers, Place, before_in_block, own_words};
use crate::device;
use crate::params::EntropyParams;

kernel! {
    /// Leaves the sum of the words that a table names, for each 256 units.
    ///
    /// # What
    /// `workspace[i]` is the sum of the words of units `256 i` to `256 i + 255`.
    ///
    /// # Arguments
    /// * `p`; `values`: the table, `p.table` words. Read.
    /// * `workspace`: a word per block. Written.
    /// * `codes`, `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 256 units, a thread one.
    ///
    /// # Shared memory
    /// 8 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.units / 256)` of them.
    ///
    /// # Traffic
    /// A byte per unit, and 4 for each 256.
    ///
    /// # Determinism
    /// Backend to backend: sums of integers.
    ///
    /// # Edge cases
    /// Bits of the table's last word after the last unit are not read.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_sums(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        // SAFETY: all threads are here; the table is as the contract says, and the word is this block's.
        unsafe {
            let words = own_words(&p, &b, place.unit() + place.lane);
            let (_, sum) = before_in_block(words, place);
            if device::thread() == 0 {
                *b.workspace.add(device::block() as usize) = sum;
            }
        }
    }
}
