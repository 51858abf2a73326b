//! QSGD: see [`crate::arith::qsgd`] for the formula and its source.

use super::bucketed;
use super::combine;
use super::decode;
use super::quantizer::{Measured, Partials};
use super::statistic::{Grouping, Max, Sum, high, join, low};
use super::tile::{Buffers, Place, Tile};
use crate::arith::float::{INF_BITS, MAGNITUDE, NAN_BITS};
use crate::arith::norm;
use crate::arith::qsgd::Qsgd;
use crate::params::{DecodeParams, EncodeParams, encode_flags};

/// First word of shared memory for the largest magnitudes.
const MAXIMA: u32 = 0;
/// First word of shared memory for the sums.
const SUMS: u32 = 8;

impl Measured for Qsgd {
    #[inline(always)]
    unsafe fn statistic(p: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4] {
        // NaN is above infinity, and infinity above every number.
        // SAFETY: the caller brings all threads here.
        let largest = unsafe { grouping.fold(place, p.n, tile, None, MAXIMA, |v, _| Max(v & MAGNITUDE)) }.0;
        if !p.has(encode_flags::L2) {
            return [largest, 0, 0, 0];
        }
        let square = |v, alignment| {
            // A poisoned bucket's sum is not looked at, but its values would not be integers.
            let kept = if alignment < norm::alignment(INF_BITS) { v & MAGNITUDE } else { 0 };
            // SAFETY: the magnitude is finite, and the alignment that of the bucket's largest.
            Sum(norm::square(unsafe { norm::Aligner::new(alignment).aligned(f32::from_bits(kept)) }))
        };
        // SAFETY: as above; the flag is the same for all threads.
        let sum = unsafe { grouping.fold(place, p.n, tile, Some(norm::alignment(largest)), SUMS, square) }.0;
        let sum = if largest < INF_BITS { sum } else { 0 };
        [largest, low(sum), high(sum), 0]
    }

    #[inline(always)]
    unsafe fn fold(p: &EncodeParams, partials: Partials) -> [u32; 2] {
        let place = Place::here();
        // SAFETY: the caller brings all threads of the block here, and the partials are there.
        let largest = unsafe {
            let of_thread = combine::fold_thread(partials, |[largest, ..]| Max(largest));
            combine::fold_block(place, MAXIMA, of_thread).0
        };
        let norm = if largest >= INF_BITS {
            NAN_BITS
        } else if largest == 0 || !p.has(encode_flags::L2) {
            largest
        } else {
            let alignment = norm::alignment(largest);
            let shifted = |[largest, low, high, _]: [u32; 4]| {
                join([low, high]) >> (2 * (alignment - norm::alignment(largest)).min(31))
            };
            let halves = |partial| (Sum(low(shifted(partial)).into()), Sum(high(shifted(partial)).into()));
            // A sum of 2^18 integers below 2^61 takes 79 bits. Its halves are summed apart, each in 64 bits.
            // SAFETY: as above; the largest magnitude is the same for all threads.
            let (Sum(below), Sum(above)) = unsafe {
                let of_thread = combine::fold_thread(partials, halves);
                combine::fold_block(place, SUMS, of_thread)
            };
            let (sum, halvings) = norm::reduce(u128::from(below) + (u128::from(above) << 32));
            norm::from_sum(sum, halvings, alignment).to_bits()
        };
        [norm, 0]
    }

    #[inline(always)]
    fn finish(p: &EncodeParams, [largest, low, high, _]: [u32; 4]) -> [u32; 2] {
        if !p.has(encode_flags::L2) {
            return [if largest >= INF_BITS { NAN_BITS } else { largest }, 0];
        }
        let norm = norm::from_sum(join([low, high]), 0, norm::alignment(largest)).to_bits();
        let norm = if largest == 0 { 0 } else { norm };
        [if largest >= INF_BITS { NAN_BITS } else { norm }, 0]
    }
}

kernel! {
    /// The statistics of a tensor that is one bucket, span by span.
    ///
    /// # What
    /// For block `b`, `workspace[4 b..]` is (M, sum low, sum high, 0): M the bits of the largest magnitude of its span,
    /// and with the `L2` flag the sum of the squares of its magnitudes, each as a multiple of one unit in the last
    /// place of M's binade ([`norm::aligned`]); without the flag the sum is 0.
    ///
    /// # Arguments
    /// * `p`: `n`, `dtype` and `flags` are read.
    /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
    /// * `residual`: with feedback, `n` f32. Read. Else null.
    /// * `workspace`: four words per block. Written.
    /// * `scalars`, `codes`, `status`: not used.
    ///
    /// # Thread mapping
    /// A block takes 8192 elements, a warp 1024 of them as four units of 256, each lane 32 in registers; slot `j` of
    /// lane `i` of a unit is its element `32 j + i`, so that every load of a warp is consecutive.
    ///
    /// # Shared memory
    /// 192 bytes, static: a statistic a warp.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31. What is behind the last element is not read.
    ///
    /// # Traffic
    /// 4 bytes per element (2 for the half types), 4 more with feedback: every element once. 16 bytes per block.
    ///
    /// # Determinism
    /// Backend to backend: maxima and sums of integers do not depend on order.
    ///
    /// # Edge cases
    /// NaN is above infinity, and infinity above every number; for a span that holds either, the sum is 0.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn qsgd_stats(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Folds the statistics of a tensor that is one bucket into one, and writes the wire's scalars.
    ///
    /// # What
    /// M is the largest of the partial M. Without the `L2` flag the norm is M; with it, the root of the sum of the
    /// partial sums, each shifted to M's binade, by [`norm::reduce`] and [`norm::from_sum`]. `workspace[0]` is the
    /// norm's bits, and `scalars[0]` what goes on the wire: the norm times `beta`.
    ///
    /// # Arguments
    /// * `p`: `partials`, `levels`, `fraction`, `beta` and `flags` are read.
    /// * `workspace`: 64 words, then `partials` partial statistics of four words, aligned to 16 bytes. The statistics
    ///   are read, the first two words written.
    /// * `scalars`: one f32. Written.
    /// * `input`, `residual`, `codes`, `status`: not used.
    ///
    /// # Thread mapping
    /// Thread `t` folds the statistics `t`, `t + 256`, ..., eight of them on their way at a time; then the block folds
    /// what its threads have.
    ///
    /// # Shared memory
    /// 192 bytes, static: a statistic a warp.
    ///
    /// # Launch contract
    /// One block of 256 threads, `partials` from 1 to 2^18.
    ///
    /// # Traffic
    /// 16 bytes per span of 8192 elements: 0.002 bytes per element, twice for an L2 norm. Uncoalesced: where only a part of
    /// the 16 bytes is used, the rest comes along. Eight loads a thread at a time, which repeat the last statistic where
    /// there are fewer.
    ///
    /// # Determinism
    /// Backend to backend: integers do not depend on the order in which they are folded.
    ///
    /// # Edge cases
    /// All zero: the norm is 0. A NaN or an infinity anywhere: norm and scalar are the one NaN.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn qsgd_combine(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract; all threads are here.
        unsafe { combine::combine::<Qsgd>(&p, &b) };
    }
}

kernel! {
    /// Encodes.
    ///
    /// # What
    /// With v the element (plus the residual), N its bucket's norm and s the levels, the code is the level
    /// `floor(|v| s / N + u)`, u uniform over [0, 1), and the sign of v in the top bit; [`crate::arith::qsgd`] has the
    /// formula to the bit, and its source. The scalar is N `beta`. With feedback, the residual becomes v minus what the
    /// code decodes to.
    ///
    /// # Arguments
    /// * `p`: all but `partials` is read.
    /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
    /// * `residual`: with feedback, `n` f32, of which none is the input's. Read, and written where the bucket is not
    ///   poisoned. Else null.
    /// * `scalars`: one f32 a bucket. Written, unless the tensor is one bucket.
    /// * `codes`: `ceil(n / 256)` units of `32 bits` bytes, aligned to 4. Written, all of them.
    /// * `workspace`: where the tensor is one bucket, the combined statistic. Read. Else null.
    /// * `status`: where the launch is guarded, a word: unless it is zero, nothing is written. Read. Else null.
    ///
    /// # Thread mapping
    /// A block takes 8192 elements, a warp 1024 of them as four units of 256, each lane 32 in registers; slot `j` of
    /// lane `i` of a unit is its element `32 j + i`, so that every load of a warp is consecutive, and a lane's eight
    /// codes leave as whole words. Buckets up to 1024 are folded by a warp, larger ones by the block.
    ///
    /// # Shared memory
    /// 192 bytes, static: a statistic a warp. Used for buckets above 1024.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31; the first element starts a unit and a bucket.
    /// What is behind the last element is not read.
    ///
    /// # Traffic
    /// f32: 4 bytes per element in, `bits / 8` out, and the scalars: the least there is. Half types 2 in. With feedback
    /// 8 more: the residual in and out. A tensor that is one bucket costs what the statistics kernel reads on top.
    ///
    /// # Determinism
    /// Backend to backend: a draw depends on seed, step, tensor and element, a statistic on no order, and
    /// each operation on floats is rounded once.
    ///
    /// # Edge cases
    /// -0.0 keeps its sign. A bucket of zeros has a scalar of 0 and levels of 0. Subnormal buckets are lifted by 2^64
    /// first. A bucket with a NaN or an infinity has the one NaN as its scalar and codes of zero, and its residual
    /// stays as it was. Codes behind the last element are zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; `bits`, `levels` and
    /// `fraction` belong together.
    fn qsgd_encode(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Decodes a payload, or a weighted sum of some.
    ///
    /// # What
    /// The value of a code is its level times norm / s, at most the norm, with the code's sign: [`crate::arith::qsgd`].
    /// Without `WEIGHTED` the output is the value. With it, the output is `((start + w v0) + w v1) + ...` in the order
    /// of the payloads, where `start` is what the output held with `ACCUMULATE`, and 0 without.
    ///
    /// # Arguments
    /// * `p`: all of it is read.
    /// * `scalars`: `payloads` times one f32 a bucket, `scalar_stride` words apart. Read.
    /// * `codes`: `payloads` times `ceil(n / 256)` units of `32 bits` bytes, aligned to 4, `code_stride` words apart.
    ///   Read.
    /// * `output`: `n` f32. Read with `ACCUMULATE`; written.
    ///
    /// # Thread mapping
    /// A block takes 2048 elements, a warp a unit of 256 of them, each lane 8: slot `j` of lane `i` is element `32 j +
    /// i`, so that every access of a warp is consecutive. Lane `8 k + j` makes the decoder of row `j` for the `k`-th of
    /// four payloads. Codes of up to 5 bits in buckets of 256 and more are looked up: lane `i` holds the value of code
    /// `i`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 2048)` of them, 1 <= n <= 2^31; the first element starts a unit and a bucket.
    ///
    /// # Traffic
    /// `bits / 8` bytes per element and payload in, and the scalars; 4 out, 4 in with `ACCUMULATE`: the least there is.
    /// Uncoalesced: of several payloads, a warp reads the scalars with one load, and each payload's lie a stride apart, so
    /// that each takes a sector of 32 bytes. The warps after it in the bucket, or in the next, use the same sectors.
    ///
    /// # Determinism
    /// Backend to backend: the order of the sum is fixed, and each operation is rounded once.
    ///
    /// # Edge cases
    /// A scalar that no encoder writes (negative, infinite, NaN) decodes to the one NaN, whatever the codes; levels
    /// above the last decode to the norm.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above. Scalars and codes may be
    /// any bytes.
    fn qsgd_decode(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode::<Qsgd>(p, decode::Buffers { scalars, codes, output }) }
    }
}
