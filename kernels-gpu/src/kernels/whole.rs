//! The kernels that take many tensors at once, each of them one bucket: what `segments` has for smaller buckets, and the
//! statistics and their folding besides, so that the launches do not depend on the number of tensors.

use super::tile::Buffers;
use super::{bucketed, combine};
use crate::arith::qsgd::Qsgd;
use crate::arith::uniform::Uniform;
use crate::params::EncodeParams;

kernel! {
    /// The statistics of many tensors that lie in one buffer and are one Qsgd bucket each, item by item.
    ///
    /// # What
    /// What `qsgd_stats` makes of each tensor alone: spans are counted from a tensor's first element. That of item `i` goes to
    /// words `64 + 4 i` to `64 + 4 i + 3` of what begins with the status.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `dtype` and `flags` are read.
    /// * `input`, `residual`: as `qsgd_stats` has them, of the flat buffer.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: 64 words, and four an item of the table, aligned to 16 bytes. The launch's items' are written.
    /// * `scalars`, `codes`: not used.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `qsgd_stats`.
    ///
    /// # Shared memory
    /// As `qsgd_stats`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `qsgd_stats`, and 32 bytes of the table an item.
    ///
    /// # Determinism
    /// Backend to backend, as `qsgd_stats`.
    ///
    /// # Edge cases
    /// As `qsgd_stats`; what lies between tensors is not looked at.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn qsgd_stats_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats_item::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Folds the statistics of many tensors that are one Qsgd bucket each, and writes the wire's scalars.
    ///
    /// # What
    /// What `qsgd_combine` makes of each tensor alone, with the factor of the scalars from the table.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first tensor, `base` the word of the table at which tensors begin; `levels`, `fraction` and
    ///   `flags` are read.
    /// * `workspace`: the table, which has the tensors of [`whole`](crate::params::whole) behind its items. Read.
    /// * `status`: as `qsgd_stats_segments` left it, and two words per tensor behind it. The statistics are read, those words
    ///   written.
    /// * `scalars`: one f32 a tensor. Written.
    /// * `input`, `residual`, `codes`: not used.
    ///
    /// # Thread mapping
    /// A block takes a tensor; within it as `qsgd_combine`.
    ///
    /// # Shared memory
    /// As `qsgd_combine`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as tensors from `partials` on; each has one to 2^18 partial statistics.
    ///
    /// # Traffic
    /// As `qsgd_combine`, and 32 bytes of the table a tensor.
    ///
    /// # Determinism
    /// Backend to backend, as `qsgd_combine`.
    ///
    /// # Edge cases
    /// As `qsgd_combine`. Tensors without elements are not in the table, and have no scalars.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn qsgd_combine_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract; all threads are here.
        unsafe {
            combine::combine_tensor::<Qsgd>(&p, &Buffers { input, residual, scalars, codes, workspace, status });
        }
    }
}

kernel! {
    /// Encodes many tensors that lie in one buffer and are one Qsgd bucket each.
    ///
    /// # What
    /// What `qsgd_encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from the
    /// table, and the table's step added to that of the parameters.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `base`, `n`, `first_unit` and `bucket_log2` are not read, the rest is as
    ///   `qsgd_encode` has it.
    /// * `input`, `residual`: as `qsgd_encode` has them, of the flat buffer.
    /// * `codes`: those of all tensors. Written.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: as `qsgd_combine_segments` left it; where the launch is guarded and its first word is not zero, nothing is
    ///   written. Read.
    /// * `scalars`: not used.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `qsgd_encode`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `qsgd_encode`, and 32 bytes of the table an item.
    ///
    /// # Determinism
    /// Backend to backend, as `qsgd_encode`.
    ///
    /// # Edge cases
    /// As `qsgd_encode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items share an element.
    fn qsgd_encode_tensors(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe {
            bucketed::encode_tensor_item::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status });
        }
    }
}

kernel! {
    /// The statistics of many tensors that lie in one buffer and are one Uniform bucket each, item by item.
    ///
    /// # What
    /// What `uniform_stats` makes of each tensor alone: spans are counted from a tensor's first element. That of item `i` goes to
    /// words `64 + 4 i` to `64 + 4 i + 3` of what begins with the status.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `dtype` and `flags` are read.
    /// * `input`, `residual`: as `uniform_stats` has them, of the flat buffer.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: 64 words, and four an item of the table, aligned to 16 bytes. The launch's items' are written.
    /// * `scalars`, `codes`: not used.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `uniform_stats`.
    ///
    /// # Shared memory
    /// As `uniform_stats`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `uniform_stats`, and 32 bytes of the table an item.
    ///
    /// # Determinism
    /// Backend to backend, as `uniform_stats`.
    ///
    /// # Edge cases
    /// As `uniform_stats`; what lies between tensors is not looked at.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn uniform_stats_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats_item::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Folds the statistics of many tensors that are one Uniform bucket each, and writes the wire's scalars.
    ///
    /// # What
    /// What `uniform_combine` makes of each tensor alone, with the factor of the scalars from the table.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first tensor, `base` the word of the table at which tensors begin; `levels`, `fraction` and
    ///   `flags` are read.
    /// * `workspace`: the table, which has the tensors of [`whole`](crate::params::whole) behind its items. Read.
    /// * `status`: as `uniform_stats_segments` left it, and two words per tensor behind it. The statistics are read, those words
    ///   written.
    /// * `scalars`: two f32 a tensor. Written.
    /// * `input`, `residual`, `codes`: not used.
    ///
    /// # Thread mapping
    /// A block takes a tensor; within it as `uniform_combine`.
    ///
    /// # Shared memory
    /// As `uniform_combine`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as tensors from `partials` on; each has one to 2^18 partial statistics.
    ///
    /// # Traffic
    /// As `uniform_combine`, and 32 bytes of the table a tensor.
    ///
    /// # Determinism
    /// Backend to backend, as `uniform_combine`.
    ///
    /// # Edge cases
    /// As `uniform_combine`. Tensors without elements are not in the table, and have no scalars.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn uniform_combine_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract; all threads are here.
        unsafe {
            combine::combine_tensor::<Uniform>(&p, &Buffers { input, residual, scalars, codes, workspace, status });
        }
    }
}

kernel! {
    /// Encodes many tensors that lie in one buffer and are one Uniform bucket each.
    ///
    /// # What
    /// What `uniform_encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from the
    /// table, and the table's step added to that of the parameters.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `base`, `n`, `first_unit` and `bucket_log2` are not read, the rest is as
    ///   `uniform_encode` has it.
    /// * `input`, `residual`: as `uniform_encode` has them, of the flat buffer.
    /// * `codes`: those of all tensors. Written.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: as `uniform_combine_segments` left it; where the launch is guarded and its first word is not zero, nothing is
    ///   written. Read.
    /// * `scalars`: not used.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `uniform_encode`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `uniform_encode`, and 32 bytes of the table an item.
    ///
    /// # Determinism
    /// Backend to backend, as `uniform_encode`.
    ///
    /// # Edge cases
    /// As `uniform_encode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items share an element.
    fn uniform_encode_tensors(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe {
            bucketed::encode_tensor_item::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status });
        }
    }
}
