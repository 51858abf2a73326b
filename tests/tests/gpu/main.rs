//! The kernels: on the PTX machine, on a CUDA device where there is one, on stand-ins for the driver, and some of them on
//! WGPU as well.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod decode_presets;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod embed_cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod late;
#[cfg(feature = "cuda")]
mod machine;
mod models;
#[cfg(feature = "cuda")]
mod modules;
#[cfg(feature = "cuda")]
mod overlap;
mod powersgd_gpu;
#[cfg(feature = "cuda")]
mod ptx;
mod resident;
mod settle;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod topk_gpu;
#[cfg(feature = "cuda")]
mod traffic;
