//! The kernels that take many tensors at once, by a table: one launch for a model instead of one a layer.

use super::tile::Buffers;
use super::{bucketed, decode};
use crate::arith::qsgd::Qsgd;
use crate::arith::uniform::Uniform;
use crate::params::{DecodeParams, EncodeParams};

kernel! {
    /// Encodes many tensors that lie in one buffer, with Qsgd.
    ///
    /// # What
    /// What `qsgd_encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from the
    /// table, and the table's step added to that of the parameters.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `base`, `n` and `first_unit` are not read, the rest is as `qsgd_encode` has it.
    /// * `input`, `residual`: as `qsgd_encode` has them, of the flat buffer.
    /// * `scalars`, `codes`: those of all tensors. Written.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: as `qsgd_encode` has it.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `qsgd_encode`.
    ///
    /// # Shared memory
    /// As `qsgd_encode`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on; buckets of 32 to 8192 elements.
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
    fn qsgd_encode_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode_item::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Decodes payloads of many tensors that lie in one buffer, or a weighted sum of some, with Qsgd.
    ///
    /// # What
    /// What `qsgd_decode` makes of each tensor alone.
    ///
    /// # Arguments
    /// * `p`: `first_item` is the first item; `n` is not read, the rest is as `qsgd_decode` has it.
    /// * `scalars`, `codes`: those of all tensors, payload after payload, a stride apart. Read.
    /// * `output`: the flat buffer. Read with `ACCUMULATE`; written.
    /// * `table`: that of [`item`](crate::params::item). Read.
    ///
    /// # Thread mapping
    /// Four blocks take an item; within it as `qsgd_decode`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, four for each item from `first_item` on; buckets of 32 to 8192 elements, or
    /// a whole tensor each, whose scalars the table names for each of its items.
    ///
    /// # Traffic
    /// As `qsgd_decode`, and 16 bytes of the table a block. Uncoalesced: the scalars of several payloads, as there.
    ///
    /// # Determinism
    /// Backend to backend, as `qsgd_decode`.
    ///
    /// # Edge cases
    /// As `qsgd_decode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items share an element.
    fn qsgd_decode_segments(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
        table: *const u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode_item::<Qsgd>(p, decode::Buffers { scalars, codes, output }, table) }
    }
}

kernel! {
    /// Encodes many tensors that lie in one buffer, with Uniform.
    ///
    /// # What
    /// What `uniform_encode` makes of each tensor alone, with the tensor of the seed and the factor of the scalars from the
    /// table, and the table's step added to that of the parameters.
    ///
    /// # Arguments
    /// * `p`: `partials` is the first item; `base`, `n` and `first_unit` are not read, the rest is as `uniform_encode` has it.
    /// * `input`, `residual`: as `uniform_encode` has them, of the flat buffer.
    /// * `scalars`, `codes`: those of all tensors. Written.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: as `uniform_encode` has it.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `uniform_encode`.
    ///
    /// # Shared memory
    /// As `uniform_encode`.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on; buckets of 32 to 8192 elements.
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
    fn uniform_encode_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode_item::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    /// Decodes payloads of many tensors that lie in one buffer, or a weighted sum of some, with Uniform.
    ///
    /// # What
    /// What `uniform_decode` makes of each tensor alone.
    ///
    /// # Arguments
    /// * `p`: `first_item` is the first item; `n` is not read, the rest is as `uniform_decode` has it.
    /// * `scalars`, `codes`: those of all tensors, payload after payload, a stride apart. Read.
    /// * `output`: the flat buffer. Read with `ACCUMULATE`; written.
    /// * `table`: that of [`item`](crate::params::item). Read.
    ///
    /// # Thread mapping
    /// Four blocks take an item; within it as `uniform_decode`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, four for each item from `first_item` on; buckets of 32 to 8192 elements, or
    /// a whole tensor each, whose scalars the table names for each of its items.
    ///
    /// # Traffic
    /// As `uniform_decode`, and 16 bytes of the table a block. Uncoalesced: the scalars of several payloads, as there.
    ///
    /// # Determinism
    /// Backend to backend, as `uniform_decode`.
    ///
    /// # Edge cases
    /// As `uniform_decode`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above; no two items share an element.
    fn uniform_decode_segments(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
        table: *const u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode_item::<Uniform>(p, decode::Buffers { scalars, codes, output }, table) }
    }
}
