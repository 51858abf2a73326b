//! The entry points of the bucketed quantizers: nine for each row of the table of codecs, or four where no
//! tensor may be one bucket, and the contract of each, once.
//!
//! `encode` below is the entry point `qsgd_encode` of QSGD, `uniform_encode` of uniform quantization, and so on.

use super::tile::Buffers;
use super::{bucketed, combine, decode};
use crate::arith;
use crate::bucketed_codecs;
use crate::params::{DecodeParams, EncodeParams};

/// Kernels of a codec that takes tensors which are one bucket: nothing for another.
macro_rules! of_whole_tensors {
    (true $($kernel:tt)+) => {
        $($kernel)+
    };
    (false $($kernel:tt)+) => {};
}

macro_rules! entries {
    ($($(#[$doc:meta])* $codec:ident {
        file: $file:literal,
        shaders: $shaders:tt,
        texts: $texts:tt,
        whole: $whole:tt,
        formula: $formula:ty,
        tag: $tag:literal,
        name: $name:literal,
        widths: [$($width:literal),+], $widths:literal,
        sign_bits: $sign:literal,
        flags: $flags:expr,
        variance: $variance:expr,
        entries: $stats:ident, $combine:ident, $encode:ident, $decode:ident, $encode_segments:ident,
            $decode_segments:ident, $stats_segments:ident, $combine_segments:ident, $encode_tensors:ident,
    })+) => {$(
        of_whole_tensors! { $whole kernel! {
            /// The statistics of a tensor that is one bucket, span by span.
            ///
            /// # What
            /// For block `b`, the `b`-th partial statistic of the workspace is that of its span: what the formula's
            /// [`Quantizer::partial`](crate::arith::quantizer::Quantizer::partial) makes of it.
            ///
            /// # Arguments
            /// * `p`: `n`, `dtype` and `flags` are read.
            /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
            /// * `residual`: with feedback, `n` f32. Read. Else null.
            /// * `workspace`: a partial statistic of four or eight words per block. Written.
            /// * `scalars`, `codes`, `status`: not used.
            ///
            /// # Thread mapping
            /// A block takes 8192 elements, a warp 1024 of them as four units of 256, each lane 32 in registers; slot
            /// `j` of lane `i` of a unit is its element `32 j + i`, so that every load of a warp is consecutive.
            ///
            /// # Shared memory
            /// Static: a statistic per warp, at most 256 bytes.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31. Memory after the last element is not
            /// read.
            ///
            /// # Traffic
            /// 4 bytes per element (2 for the half types), 4 more with feedback: every element once. A partial
            /// statistic per block.
            ///
            /// # Determinism
            /// Backend to backend: extremes and sums of integers do not depend on order.
            ///
            /// # Edge cases
            /// A NaN or an infinity shows in the statistic, and stays through every fold.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above.
            fn $stats(
                p: EncodeParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                // SAFETY: the kernel's contract.
                unsafe { bucketed::stats::<$formula>(p, b) }
            }
        } }

        of_whole_tensors! { $whole kernel! {
            /// Folds the statistics of a tensor that is one bucket into one, and writes the wire's scalars.
            ///
            /// # What
            /// The tensor's statistic, two words, becomes `workspace[0]` and `workspace[1]`; the scalars on the wire
            /// are what the encoder that it makes has.
            ///
            /// # Arguments
            /// * `p`: `partials`, `levels`, `fraction`, `beta` and `flags` are read.
            /// * `workspace`: 64 words, then `partials` partial statistics, aligned to 16 bytes. The statistics
            ///   are read, the first two words written.
            /// * `scalars`: the bucket's f32. Written.
            /// * `input`, `residual`, `codes`, `status`: not used.
            ///
            /// # Thread mapping
            /// Thread `t` folds the statistics `t`, `t + 256`, ..., eight of them on their way at a time; then the
            /// block folds what its threads have.
            ///
            /// # Shared memory
            /// Static: a statistic per warp, at most 256 bytes.
            ///
            /// # Launch contract
            /// One block of 256 threads, `partials` from 1 to 2^18.
            ///
            /// # Traffic
            /// 16 or 32 bytes per span of 8192 elements, and once more where a codec looks twice: 0.002 to 0.008 bytes
            /// per element. Uncoalesced: some words of a statistic may not be used, and come along. Eight loads per
            /// thread at a time, which repeat the last statistic where there are fewer.
            ///
            /// # Determinism
            /// Backend to backend: integers do not depend on the order in which they are folded.
            ///
            /// # Edge cases
            /// A NaN or an infinity anywhere: every scalar is the one NaN.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above.
            fn $combine(
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
                unsafe { combine::combine::<$formula>(&p, &b) }
            }
        } }

        kernel! {
            /// Encodes.
            ///
            /// # What
            /// The codec's file in [`crate::arith`] has the formula to the bit, and its source: the statistic of a
            /// bucket of elements (plus residuals), the scalars on the wire, and the code of an element by its draw.
            /// With feedback, the residual becomes the element plus the residual minus what the code decodes to.
            ///
            /// # Arguments
            /// * `p`: all but `partials` is read.
            /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
            /// * `residual`: with feedback, `n` f32, of which none is the input's. Read, and written where the bucket
            ///   is not poisoned. Else null.
            /// * `scalars`: one or two f32 per bucket. Written, unless the tensor is one bucket.
            /// * `codes`: `ceil(n / 256)` units of `32 bits` bytes, aligned to 4. Written, all of them.
            /// * `workspace`: where the tensor is one bucket, the combined statistic. Read. Else null.
            /// * `status`: where the launch is guarded, a word: unless it is zero, nothing is written. Read. Else null.
            ///
            /// # Thread mapping
            /// A block takes 8192 elements, a warp 1024 of them as four units of 256, each lane 32 in registers; slot
            /// `j` of lane `i` of a unit is its element `32 j + i`, so that every load of a warp is consecutive, and a
            /// lane's eight codes leave as whole words. Buckets up to 1024 are folded by a warp, larger ones by the
            /// block.
            ///
            /// # Shared memory
            /// Static: a statistic per warp, at most 256 bytes. Used for buckets above 1024.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31; the first element starts a unit and a
            /// bucket. Memory after the last element is not read.
            ///
            /// # Traffic
            /// f32: 4 bytes per element in, `bits / 8` out, and the scalars: the least there is. Half types 2 in. With
            /// feedback 8 more: the residual in and out. A tensor that is one bucket costs what the statistics kernel
            /// reads on top. Uncoalesced: of two scalars per bucket each is a store of its own, so that small buckets
            /// write a sector twice.
            ///
            /// # Determinism
            /// Backend to backend: a draw depends on seed, step, tensor and element, a statistic on no order, and
            /// each operation on floats is rounded once.
            ///
            /// # Edge cases
            /// A bucket with a NaN or an infinity has the one NaN as every scalar and codes of zero, and its residual
            /// stays as it was. Codes after the last element are zero. The formula's file has the others.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above; `bits`, `levels`
            /// and `fraction` belong together.
            fn $encode(
                p: EncodeParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                // SAFETY: the kernel's contract.
                unsafe { bucketed::encode::<$formula>(p, b) }
            }
        }

        kernel! {
            /// Decodes a payload, or a weighted sum of some.
            ///
            /// # What
            /// The codec's file in [`crate::arith`] has the value of a code. Without `WEIGHTED` the output is the
            /// value. With it, the output is `((start + w v0) + w v1) + ...` in the order of the payloads, where
            /// `start` is what the output held with `ACCUMULATE`, and 0 without.
            ///
            /// # Arguments
            /// * `p`: all of it is read.
            /// * `scalars`: `payloads` times one or two f32 per bucket, `scalar_stride` words apart. Read.
            /// * `codes`: `payloads` times `ceil(n / 256)` units of `32 bits` bytes, aligned to 4, `code_stride` words
            ///   apart. Read.
            /// * `output`: `n` f32. Read with `ACCUMULATE`; written.
            ///
            /// # Thread mapping
            /// A block takes 2048 elements, a warp a unit of 256 of them, each lane 8: slot `j` of lane `i` is element
            /// `32 j + i`, so that every access of a warp is consecutive. Lane `8 k + j` makes the decoder of row `j`
            /// for the `k`-th of four payloads. Codes of up to 5 bits in buckets of 256 and more are looked up: lane
            /// `i` holds the value of code `i`; where the codec's one width is a bit or two, that of code `i % 2^bits`
            /// of the payload `i >> bits` of eight.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, `ceil(n / 2048)` of them, 1 <= n <= 2^31; the first element starts a unit and a
            /// bucket.
            ///
            /// # Traffic
            /// `bits / 8` bytes per element and payload in, and the scalars; 4 out, 4 in with `ACCUMULATE`: the least
            /// there is. Uncoalesced: of several payloads, a warp reads the scalars with one load, and each payload's
            /// lie a stride apart, so that each takes a sector of 32 bytes. The warps after it in the bucket, or in the
            /// next, use the same sectors.
            ///
            /// # Determinism
            /// Backend to backend: the order of the sum is fixed, and each operation is rounded once.
            ///
            /// # Edge cases
            /// Scalars that no encoder writes decode to the one NaN, whatever the codes; no code decodes to more than
            /// the largest of a bucket's values.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above. Scalars and codes
            /// may be any bytes.
            fn $decode(
                p: DecodeParams,
                scalars: *const u32,
                codes: *const u8,
                output: *mut f32,
            ) {
                // SAFETY: the kernel's contract.
                unsafe {
                    decode::decode::<$formula, { decode::narrow_width(&[$($width),+]) }>(
                        p,
                        decode::Buffers { scalars, codes, output },
                    )
                }
            }
        }

        kernel! {
            /// Encodes many tensors that lie in one buffer.
            ///
            /// # What
            /// What `encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from
            /// the table, and the table's step added to that of the parameters.
            ///
            /// # Arguments
            /// * `p`: `partials` is the first item; `base`, `n` and `first_unit` are not read, the rest is as `encode`
            ///   has it.
            /// * `input`, `residual`: as `encode` has them, of the flat buffer.
            /// * `scalars`, `codes`: those of all tensors. Written.
            /// * `workspace`: the table of [`item`](crate::params::item). Read.
            /// * `status`: as `encode` has it.
            ///
            /// # Thread mapping
            /// A block takes an item; within it as `encode`.
            ///
            /// # Shared memory
            /// As `encode`.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, as many as items from `partials` on; buckets of 32 to 8192 elements.
            ///
            /// # Traffic
            /// As `encode`, and 32 bytes of the table an item.
            ///
            /// # Determinism
            /// Backend to backend, as `encode`.
            ///
            /// # Edge cases
            /// As `encode`.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items
            /// share an element.
            fn $encode_segments(
                p: EncodeParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                // SAFETY: the kernel's contract.
                unsafe { bucketed::encode_item::<$formula>(p, b) }
            }
        }

        kernel! {
            /// Decodes payloads of many tensors that lie in one buffer, or a weighted sum of some.
            ///
            /// # What
            /// What `decode` makes of each tensor alone.
            ///
            /// # Arguments
            /// * `p`: `first_item` is the first item; `n` is not read, the rest is as `decode` has it.
            /// * `scalars`, `codes`: those of all tensors, payload after payload, a stride apart. Read.
            /// * `output`: the flat buffer. Read with `ACCUMULATE`; written.
            /// * `table`: that of [`item`](crate::params::item). Read.
            ///
            /// # Thread mapping
            /// Four blocks take an item; within it as `decode`.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, four for each item from `first_item` on; buckets of 32 to 8192 elements, or
            /// a whole tensor each, whose scalars the table names for each of its items.
            ///
            /// # Traffic
            /// As `decode`, and 16 bytes of the table a block. Uncoalesced: the scalars of several payloads, as there.
            ///
            /// # Determinism
            /// Backend to backend, as `decode`.
            ///
            /// # Edge cases
            /// As `decode`.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items
            /// share an element.
            fn $decode_segments(
                p: DecodeParams,
                scalars: *const u32,
                codes: *const u8,
                output: *mut f32,
                table: *const u32,
            ) {
                // SAFETY: the kernel's contract.
                unsafe {
                    decode::decode_item::<$formula, { decode::narrow_width(&[$($width),+]) }>(
                        p,
                        decode::Buffers { scalars, codes, output },
                        table,
                    )
                }
            }
        }

        of_whole_tensors! { $whole kernel! {
            /// The statistics of many tensors that lie in one buffer and are one bucket each, item by item.
            ///
            /// # What
            /// What `stats` makes of each tensor alone: spans are counted from a tensor's first element. That of item
            /// `i` is the `i`-th partial statistic from word 64 of what begins with the status on.
            ///
            /// # Arguments
            /// * `p`: `partials` is the first item; `dtype` and `flags` are read.
            /// * `input`, `residual`: as `stats` has them, of the flat buffer.
            /// * `workspace`: the table of [`item`](crate::params::item). Read.
            /// * `status`: 64 words, and a partial statistic per item of the table, aligned to 16 bytes. The launch's
            ///   items' are written.
            /// * `scalars`, `codes`: not used.
            ///
            /// # Thread mapping
            /// A block takes an item; within it as `stats`.
            ///
            /// # Shared memory
            /// As `stats`.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, as many as items from `partials` on.
            ///
            /// # Traffic
            /// As `stats`, and 32 bytes of the table an item.
            ///
            /// # Determinism
            /// Backend to backend, as `stats`.
            ///
            /// # Edge cases
            /// As `stats`; what lies between tensors is not looked at.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above.
            fn $stats_segments(
                p: EncodeParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                // SAFETY: the kernel's contract.
                unsafe { bucketed::stats_item::<$formula>(p, b) }
            }
        } }

        of_whole_tensors! { $whole kernel! {
            /// Folds the statistics of many tensors that are one bucket each, and writes the wire's scalars.
            ///
            /// # What
            /// What `combine` makes of each tensor alone, with the factor of the scalars from the table.
            ///
            /// # Arguments
            /// * `p`: `partials` is the first tensor, `base` the word of the table at which tensors begin; `levels`,
            ///   `fraction` and `flags` are read.
            /// * `workspace`: the table, which has the tensors of [`whole`](crate::params::whole) after its items.
            ///   Read.
            /// * `status`: as `stats_segments` left it, and two words per tensor after it. The statistics are read,
            ///   those words written.
            /// * `scalars`: one or two f32 per tensor. Written.
            /// * `input`, `residual`, `codes`: not used.
            ///
            /// # Thread mapping
            /// A block takes a tensor; within it as `combine`.
            ///
            /// # Shared memory
            /// As `combine`.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, as many as tensors from `partials` on; each has one to 2^18 partial statistics.
            ///
            /// # Traffic
            /// As `combine`, and 32 bytes of the table a tensor.
            ///
            /// # Determinism
            /// Backend to backend, as `combine`.
            ///
            /// # Edge cases
            /// As `combine`. Tensors without elements are not in the table, and have no scalars.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above.
            fn $combine_segments(
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
                unsafe { combine::combine_tensor::<$formula>(&p, &b) }
            }
        } }

        of_whole_tensors! { $whole kernel! {
            /// Encodes many tensors that lie in one buffer and are one bucket each.
            ///
            /// # What
            /// What `encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from
            /// the table, and the table's step added to that of the parameters.
            ///
            /// # Arguments
            /// * `p`: `partials` is the first item; `base`, `n`, `first_unit` and `bucket_log2` are not read, the rest
            ///   is as `encode` has it.
            /// * `input`, `residual`: as `encode` has them, of the flat buffer.
            /// * `codes`: those of all tensors. Written.
            /// * `workspace`: the table of [`item`](crate::params::item). Read.
            /// * `status`: as `combine_segments` left it; where the launch is guarded and its first word is not zero,
            ///   nothing is written. Read.
            /// * `scalars`: not used.
            ///
            /// # Thread mapping
            /// A block takes an item; within it as `encode`.
            ///
            /// # Shared memory
            /// None.
            ///
            /// # Launch contract
            /// Blocks of 256 threads, as many as items from `partials` on.
            ///
            /// # Traffic
            /// As `encode`, and 32 bytes of the table an item.
            ///
            /// # Determinism
            /// Backend to backend, as `encode`.
            ///
            /// # Edge cases
            /// As `encode`.
            ///
            /// # Safety
            /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items
            /// share an element.
            fn $encode_tensors(
                p: EncodeParams,
                input: *const u8,
                residual: *mut f32,
                scalars: *mut u32,
                codes: *mut u8,
                workspace: *mut u32,
                status: *mut u32,
            ) {
                let b = Buffers { input, residual, scalars, codes, workspace, status };
                // SAFETY: the kernel's contract.
                unsafe { bucketed::encode_tensor_item::<$formula>(p, b) }
            }
        } }
    )+};
}
bucketed_codecs!(entries);
