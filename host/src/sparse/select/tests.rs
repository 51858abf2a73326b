//! The workspace that a plan lays out, and the launches that it is cut into.

use super::*;
use crate::plan::{Kernel, Limits, Params};

#[test]
fn a_threshold_of_halves_is_the_next_half() {
    for (threshold, expected) in [(1.0f32, 1.0f32), (1.0001, 1.001), (65_504.0, 65_504.0), (0.0, 0.0)] {
        let key = threshold_key(threshold, Dtype::F16, false);
        let value = f16::from_bits(key as u16).to_f32();
        assert!(value >= threshold && (value - expected).abs() <= 0.001, "{threshold}: {value}");
    }
    assert_eq!(threshold_key(1e30, Dtype::F16, false), 0x7c00, "infinity alone reaches it");
    assert_eq!(threshold_key(f32::INFINITY, Dtype::Bf16, false), 0x7f80);
    assert_eq!(threshold_key(1e30, Dtype::F16, true), 1e30f32.to_bits());
}

#[test]
fn the_workspace_is_reached_by_words_of_32_bits() {
    let n = 1u64 << 31;
    let of_one = [1, n / 10, n / 2, n - 1].map(Select::Largest);
    // Segments of little more than a tile have the most histograms beside their candidates.
    let blocks = [8193, 10_000, 12_800, 16_000].map(|elements| Select::Blocks { elements, k: elements / 100 });
    for (select, dtype) in of_one.iter().chain(&blocks).flat_map(|select| [(select, Dtype::F32), (select, Dtype::F16)])
    {
        let plan = SelectPlan::new(select, n, dtype, false, false);
        assert!(plan.workspace_words <= 1 << 32, "{select:?}: {} words", plan.workspace_words);
        let p = plan.base;
        let end = u64::from(p.band) + u64::from(p.capacity) + u64::from(p.capacity_again);
        assert_eq!(end, plan.workspace_words, "{select:?}: an offset has wrapped");
    }
}

#[test]
fn every_tile_is_in_one_chunk_and_bound_there() {
    let segments = [(5u64, 3u64), (20_000, 200), (8192, 8), (100_003, 99), (7, 0), (40_000, 40_000)];
    let segments = segments.map(|(elements, k)| crate::Segment { elements, k });
    let n = segments.iter().map(|s| s.elements).sum();
    let plan = SelectPlan::new(&Select::Segments(segments.into()), n, Dtype::F32, true, true);
    for binding_bytes in [1 << 21, u64::MAX] {
        let limits = Limits { binding_bytes, groups: 7, ..Limits::NONE };
        let passes = plan.passes(&limits).expect("the limits suffice");
        let mut next = 0;
        for pass in passes.iter().filter(|p| p.kernel == Kernel::TopKEmit) {
            let Params::Select(p) = pass.params else { panic!("a selection's parameters") };
            assert_eq!(p.first_tile, next);
            assert!(p.tiles <= 7 && 4 * u64::from(p.bound) <= binding_bytes);
            next += p.tiles;
        }
        assert_eq!(next, plan.base.all_tiles);
        assert!(passes.iter().all(|p| p.groups <= 7 && p.groups > 0));
        // And every word that has to be zero is made so, once.
        let mut zeroed = 0;
        for pass in passes.iter().filter(|p| p.kernel == Kernel::TopKSample) {
            let Params::Select(p) = pass.params else { panic!("a selection's parameters") };
            assert_eq!(p.counted, zeroed);
            zeroed += pass.groups - (p.tiles << p.samples_log2);
            assert_eq!(p.next, plan.base.histograms + 2 * plan.large.len() as u32 * HISTOGRAM_WORDS - plan.base.room);
        }
        assert_eq!(
            zeroed,
            (plan.base.info - plan.base.room - HISTOGRAM_WORDS * plan.large.len() as u32).div_ceil(4096)
        );
        assert!(passes.iter().all(|p| p.bindings.input.offset % 256 == 0 && p.bindings.residual.offset % 256 == 0));
    }
}

#[test]
fn passes_hand_over_within_a_launch_where_they_may() {
    let waits = Limits { forward_progress: true, ..Limits::NONE };
    let kernels = |select: &Select, limits: &Limits| {
        let plan = SelectPlan::new(select, 1 << 20, Dtype::F32, false, true);
        let passes = plan.passes(limits).expect("the limits suffice");
        passes.iter().map(|pass| pass.kernel).collect::<Vec<_>>()
    };
    let largest = Select::Largest(1000);
    let [sample, filter, rest, emit] = [Kernel::TopKSample, Kernel::TopKFilter, Kernel::TopKRest, Kernel::TopKEmit];
    assert_eq!(kernels(&largest, &waits), [sample, filter, rest, emit]);
    // If it is not bound at once, a pass is several launches; a threshold has one pass alone.
    let parts = kernels(&largest, &Limits { binding_bytes: 1 << 21, ..waits });
    assert!(!parts.contains(&rest) && parts.len() > 11, "{parts:?}");
    assert_eq!(kernels(&Select::Above(1.0), &waits), [sample, filter, Kernel::TopKCount, emit]);
    assert_eq!(kernels(&largest, &Limits::NONE).len(), 11);
}
