//! A `libnccl` whose ranks are threads of one process, over the memory of the stand-in for `libcuda`.
//!
//! Programs that use NCCL load it in its place. Operations are queued: a call returns at once, a thread of the
//! communicator's own does the work, and the CUDA stream is held until that is done. As with NCCL, a rank that does not
//! come leaves the others waiting, until their communicators are aborted.
//!
//! It checks more than NCCL: operations, sizes and roots have to be the same on all ranks, and sizes of messages on
//! both. Where they are not, the communicators get the error `ncclInvalidArgument`, where NCCL would hang or damage
//! memory. Sums are added in the reverse order of ranks, since NCCL's order is its own.
//!
//! `gradwire_nccl_fault` makes a rank hang, fail or end. `gradwire_nccl_driver` names the stand-in for `libcuda`, which
//! is `libcuda.so.1` otherwise. All ranks may share the one device of that, which NCCL refuses; with
//! `GRADWIRE_NCCL_ONE_EACH` in the environment, the stand-in refuses it too.

#![allow(non_snake_case, reason = "the names are those of nccl.h")]
#![allow(clippy::missing_safety_doc, reason = "every function is as safe as the one of that name in nccl.h")]

mod codes;
mod comm;
mod driver;
mod faults;
mod group;
mod hub;
mod lifetime;
mod operations;
mod work;
