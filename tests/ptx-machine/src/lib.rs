//! A machine that runs PTX on a CPU, slowly and strictly, to test the kernels that ship where there is no GPU.
//!
//! It executes the text that `rustc` wrote, launch by launch, behind the seam through which the CUDA backend talks to
//! NVIDIA's driver. A kernel that does what not every device promises to bear is an error, with the line, the block and
//! the thread: see [`Violation`]. What it costs is counted, see [`Counts`].
//!
//! | it runs | as |
//! | --- | --- |
//! | divergent lanes | a stack; they meet at the branch's immediate postdominator |
//! | warps, blocks, the sides of a branch | in a random order, decided by a seed |
//! | `f32`, `f64`, `f16`, `bf16` | IEEE 754, round to nearest even, subnormal numbers kept; one NaN, whose bits a device need not share |
//! | memory | in program order; only barriers order two threads, and atomics and strong accesses do not race with each other |
//! | a barrier | all threads that were started come to it, and at the same instruction: stricter than the ISA, which lets threads that have exited be missing |
//!
//! It finds no overrun from one shared or local variable into the next, and no misalignment that the layout happens to
//! hide. Scopes are not told apart, and conflicts of atomics on shared memory are not counted.
//!
//! What it does not have: generations' differences in what they schedule, caches, `.ftz` and approximate instructions,
//! textures, clusters, tensor cores, calls, grids of more than one dimension. An instruction it does not know is an
//! error that names it, when the module is loaded.

mod count;
mod fault;
mod flow;
mod kernel;
mod lower;
mod machine;
mod memory;
mod module;
mod operand;
mod parse;
mod run;
mod text;
mod warp;

pub use count::{Counts, SECTOR, Site, Traffic};
pub use fault::{Fault, Party, Rejected, Space, Violation};
pub use machine::{Launched, Machine};
