//! The CPU backend: runs passes on the calling machine's cores, with the widest vectors it has.
//!
//! Threads and vector width change the time and nothing else: every element's code depends on its bucket and its
//! index alone, and every statistic is a sum or an extreme of integers.

mod base3;
mod bucketed;
mod compress;
mod dct;
mod dense;
mod device;
mod elias;
mod filter;
mod gram;
mod lanes;
mod orthonormal;
mod packing;
mod places;
mod powersgd;
mod quantile;
mod rotate;
mod rows;
mod run;
mod session;
mod simd;
mod slab;
mod tasks;
mod topk;
mod vote;
mod work;

pub(crate) use self::dense::EncodeMemory;
pub use self::device::Cpu;
pub use self::run::CpuWork;
pub use self::session::CpuSession;
pub use self::simd::Simd;
