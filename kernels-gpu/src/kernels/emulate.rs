//! Launching the kernels on threads of this machine.

use core::ffi::c_void;
use std::sync::Arc;
use std::thread;

use super::{powersgd, qsgd, scan, segments, sparse, topk, uniform, whole};
use crate::device::emulated::{Block, enter, meet};
use crate::params::{DecodeParams, EncodeParams, LowRankParams, ScatterParams, SelectParams, THREADS};

/// The buffers' addresses, which the threads of a launch share.
#[derive(Clone, Copy)]
struct Addresses([*mut c_void; 6]);

// SAFETY: the threads use the addresses as the kernel's contract says, under which no two write the same element.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

/// Runs a kernel by its name, and waits for it. `params` are the bytes of its argument; `buffers` are those it takes,
/// in its order, and what it does not take is not looked at. Whether there is a kernel of that name.
///
/// # Safety
/// As the kernel asks of a launch of `groups` blocks.
pub unsafe fn launch(name: &str, groups: u32, params: &[u8], buffers: [*mut c_void; 6]) -> bool {
    type Encode = unsafe fn(EncodeParams, *const u8, *mut f32, *mut u32, *mut u8, *mut u32, *mut u32);
    type Decode = unsafe fn(DecodeParams, *const u32, *const u8, *mut f32);
    let encode: Option<Encode> = match name {
        "finite_scan" => Some(scan::finite_scan),
        "finite_scan_segments" => Some(scan::finite_scan_segments),
        "qsgd_encode_segments" => Some(segments::qsgd_encode_segments),
        "uniform_encode_segments" => Some(segments::uniform_encode_segments),
        "qsgd_stats" => Some(qsgd::qsgd_stats),
        "qsgd_combine" => Some(qsgd::qsgd_combine),
        "qsgd_encode" => Some(qsgd::qsgd_encode),
        "uniform_stats" => Some(uniform::uniform_stats),
        "uniform_combine" => Some(uniform::uniform_combine),
        "uniform_encode" => Some(uniform::uniform_encode),
        "qsgd_stats_segments" => Some(whole::qsgd_stats_segments),
        "qsgd_combine_segments" => Some(whole::qsgd_combine_segments),
        "qsgd_encode_tensors" => Some(whole::qsgd_encode_tensors),
        "uniform_stats_segments" => Some(whole::uniform_stats_segments),
        "uniform_combine_segments" => Some(whole::uniform_combine_segments),
        "uniform_encode_tensors" => Some(whole::uniform_encode_tensors),
        _ => None,
    };
    let decode: Option<Decode> = match name {
        "qsgd_decode" => Some(qsgd::qsgd_decode),
        "uniform_decode" => Some(uniform::uniform_decode),
        _ => None,
    };
    type DecodeSegments = unsafe fn(DecodeParams, *const u32, *const u8, *mut f32, *const u32);
    let decode_segments: Option<DecodeSegments> = match name {
        "qsgd_decode_segments" => Some(segments::qsgd_decode_segments),
        "uniform_decode_segments" => Some(segments::uniform_decode_segments),
        _ => None,
    };
    type Select = unsafe fn(SelectParams, *const u8, *mut f32, *mut u32, *mut u32, *mut u32);
    let select: Option<Select> = match name {
        "topk_sample" => Some(topk::topk_sample),
        "topk_filter" => Some(topk::topk_filter),
        "topk_sketch" => Some(topk::topk_sketch),
        "topk_filter_again" => Some(topk::topk_filter_again),
        "topk_histogram" => Some(topk::topk_histogram),
        "topk_count" => Some(topk::topk_count),
        "topk_emit" => Some(topk::topk_emit),
        "topk_block" => Some(topk::topk_block),
        "topk_settle" => Some(topk::topk_settle),
        _ => None,
    };
    type LowRank = unsafe fn(LowRankParams, *const u8, *mut f32, *mut u32, *mut u32, *mut f32, *mut f32);
    let low_rank: Option<LowRank> = match name {
        "powersgd_factor" => Some(powersgd::powersgd_factor),
        "powersgd_left" => Some(powersgd::powersgd_left),
        "powersgd_right" => Some(powersgd::powersgd_right),
        "powersgd_gather" => Some(powersgd::powersgd_gather),
        "powersgd_expand" => Some(powersgd::powersgd_expand),
        "powersgd_plain" => Some(powersgd::powersgd_plain),
        _ => None,
    };
    let scatter = name == "sparse_scatter";
    let addresses = Addresses(buffers);
    if let Some(kernel) = encode {
        let p: EncodeParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([input, residual, scalars, codes, workspace, status]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe {
                kernel(p, input.cast(), residual.cast(), scalars.cast(), codes.cast(), workspace.cast(), status.cast());
            }
        });
    } else if let Some(kernel) = decode {
        let p: DecodeParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([scalars, codes, output, ..]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe { kernel(p, scalars.cast(), codes.cast(), output.cast()) };
        });
    }
    if let Some(kernel) = decode_segments {
        let p: DecodeParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([scalars, codes, output, table, ..]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe { kernel(p, scalars.cast(), codes.cast(), output.cast(), table.cast()) };
        });
    }
    if let Some(kernel) = select {
        let p: SelectParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([input, residual, workspace, indices, values, _]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe { kernel(p, input.cast(), residual.cast(), workspace.cast(), indices.cast(), values.cast()) };
        });
    } else if let Some(kernel) = low_rank {
        let p: LowRankParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([input, residual, workspace, status, output, values]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe {
                kernel(p, input.cast(), residual.cast(), workspace.cast(), status.cast(), output.cast(), values.cast());
            }
        });
    } else if scatter {
        let p: ScatterParams = bytemuck::pod_read_unaligned(params);
        run(groups, move || {
            let Addresses([indices, values, output, ..]) = { addresses };
            // SAFETY: the caller's, word for word.
            unsafe { sparse::sparse_scatter(p, indices.cast(), values.cast(), output.cast()) };
        });
    }
    let bucketed = encode.is_some() || decode.is_some() || decode_segments.is_some();
    bucketed || select.is_some() || low_rank.is_some() || scatter
}

/// One block after another, each on 256 threads.
fn run(groups: u32, kernel: impl Fn() + Sync) {
    let block = Arc::new(Block::new());
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (block, kernel) = (&block, &kernel);
            scope.spawn(move || {
                for group in 0..groups {
                    enter(block, index, group);
                    kernel();
                    meet();
                }
            });
        }
    });
}
