//! Uniform quantization: see [`crate::arith::uniform`] for the formula and its source.

use super::bucketed;
use super::combine;
use super::decode;
use super::quantizer::{Measured, Partials};
use super::statistic::{Grouping, Max, Min};
use super::tile::{Buffers, Place, Tile};
use crate::arith::float::{from_key, to_key};
use crate::arith::uniform::Uniform;
use crate::params::{DecodeParams, EncodeParams};

/// First word of shared memory for the ranges.
const RANGES: u32 = 0;

impl Measured for Uniform {
    #[inline(always)]
    unsafe fn statistic(p: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4] {
        let of = |v, _| (Min(to_key(v)), Max(to_key(v)));
        // SAFETY: the caller brings all threads here.
        let (low, high) = unsafe { grouping.fold(place, p.n, tile, None, RANGES, of) };
        [low.0, high.0, 0, 0]
    }

    #[inline(always)]
    unsafe fn fold(_: &EncodeParams, partials: Partials) -> [u32; 2] {
        // SAFETY: the caller brings all threads of the block here, and the partials are there.
        let (low, high) = unsafe {
            let of_thread = combine::fold_thread(partials, |[low, high, ..]| (Min(low), Max(high)));
            combine::fold_block(Place::here(), RANGES, of_thread)
        };
        [from_key(low.0), from_key(high.0)]
    }

    #[inline(always)]
    fn finish(_: &EncodeParams, [low, high, ..]: [u32; 4]) -> [u32; 2] {
        [from_key(low), from_key(high)]
    }
}

kernel! {
    /// The statistics of a tensor that is one bucket, span by span.
    ///
    /// # What
    /// For block `b`, `workspace[4 b..]` is (low, high, 0, 0): the smallest and the largest of its span's values, as
    /// keys that order as the numbers do ([`to_key`]).
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
    /// Backend to backend: extremes of integers do not depend on order.
    ///
    /// # Edge cases
    /// -0.0 is below +0.0. A NaN is above infinity or below minus infinity, by its sign.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn uniform_stats(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Folds the statistics of a tensor that is one bucket into one, and writes the wire's scalars.
    ///
    /// # What
    /// Minimum and maximum are the extremes of the partial ones: their bits are `workspace[0]` and `workspace[1]`, and
    /// what goes on the wire, `scalars[0]` and `scalars[1]`, is each times `beta`.
    ///
    /// # Arguments
    /// * `p`: `partials`, `levels`, `fraction`, `beta` and `flags` are read.
    /// * `workspace`: 64 words, then `partials` partial statistics of four words, aligned to 16 bytes. The statistics
    ///   are read, the first two words written.
    /// * `scalars`: two f32. Written.
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
    /// 16 bytes per span of 8192 elements: 0.002 bytes per element. Uncoalesced: half of the 16 bytes is used, and the rest
    /// comes along. Eight loads a thread at a time, which repeat the last statistic where there are fewer.
    ///
    /// # Determinism
    /// Backend to backend: integers do not depend on the order in which they are folded.
    ///
    /// # Edge cases
    /// A NaN or an infinity anywhere: both scalars are the one NaN.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn uniform_combine(
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
        unsafe { combine::combine::<Uniform>(&p, &b) };
    }
}

kernel! {
    /// Encodes.
    ///
    /// # What
    /// With v the element (plus the residual), m and M its bucket's minimum and maximum and L the levels, the code is
    /// `floor((v - m) L / (M - m) + u)`, u uniform over [0, 1), or a half with the `NEAREST` flag;
    /// [`crate::arith::uniform`] has the formula to the bit, and its source. The scalars are m and M, each times
    /// `beta`. With feedback, the residual becomes v minus what the code decodes to.
    ///
    /// # Arguments
    /// * `p`: all but `partials` is read.
    /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
    /// * `residual`: with feedback, `n` f32, of which none is the input's. Read, and written where the bucket is not
    ///   poisoned. Else null.
    /// * `scalars`: two f32 a bucket. Written, unless the tensor is one bucket.
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
    /// A constant bucket has codes of zero. Ranges that overflow are halved, and subnormal ones lifted by 2^64, first.
    /// A bucket with a NaN or an infinity has the one NaN as both scalars and codes of zero, and its residual stays as
    /// it was. Codes behind the last element are zero.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; `bits`, `levels` and
    /// `fraction` belong together.
    fn uniform_encode(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Decodes a payload, or a weighted sum of some.
    ///
    /// # What
    /// The value of a code is minimum + code (maximum - minimum) / L, and the last code's is the maximum:
    /// [`crate::arith::uniform`].
    /// Without `WEIGHTED` the output is the value. With it, the output is `((start + w v0) + w v1) + ...` in the order
    /// of the payloads, where `start` is what the output held with `ACCUMULATE`, and 0 without.
    ///
    /// # Arguments
    /// * `p`: all of it is read.
    /// * `scalars`: `payloads` times two f32 a bucket, `scalar_stride` words apart. Read.
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
    /// Scalars that no encoder writes (not finite, or out of order) decode to the one NaN, whatever the codes; codes
    /// above the last decode to the maximum.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above. Scalars and codes may be
    /// any bytes.
    fn uniform_decode(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode::<Uniform>(p, decode::Buffers { scalars, codes, output }) }
    }
}
