use super::*;
use crate::codec::powersgd::{Matrix, PowerSgd};
use crate::seed::Seed;

const MODEL: [Matrix; 5] =
    [Matrix::new(300, 700), Matrix::vector(33), Matrix::new(9, 5000), Matrix::new(1000, 257), Matrix::new(256, 256)];

fn plan(dtype: Dtype) -> LowRankPlan {
    let state = PowerSgd::rank(3).state(&MODEL, Seed::new(1)).expect("valid");
    LowRankPlan::new(&state.table, dtype, true, false)
}

fn stream() -> Stream {
    Stream { key: [1, 2], tensor: 3, step: [4, 5] }
}

#[test]
fn every_tile_is_in_one_pass_and_bound_there() {
    for (dtype, binding_bytes, groups) in [(Dtype::F32, u64::MAX, u32::MAX), (Dtype::Bf16, 6 << 20, 5)] {
        let (plan, limits) = (plan(dtype), Limits { binding_bytes, groups, ..Limits::NONE });
        let passes = plan.begin(Side::Right, stream(), &limits).expect("the limits suffice");
        let mut next = 0;
        for pass in passes.iter().filter(|pass| pass.kernel == Kernel::PowerSgdLeft) {
            let Params::LowRank(p) = pass.params else { panic!("PowerSGD's parameters") };
            assert_eq!(p.first_tile, next);
            for tile in &plan.tiles[next as usize..(next + pass.groups) as usize] {
                assert!(u64::from(p.first) <= tile.start && tile.end <= u64::from(p.first) + u64::from(p.bound));
            }
            next += pass.groups;
        }
        assert_eq!(next as usize, plan.tiles.len());
        let sizes = plan.sizes();
        for pass in &passes {
            assert!(pass.groups > 0 && pass.groups <= groups);
            for role in crate::session::Role::ALL {
                let span = pass.bindings.of(role);
                assert!(span.offset % ALIGNMENT == 0 && span.bytes <= binding_bytes, "{role:?}");
                assert!(span.offset + span.bytes <= sizes.of(role).next_multiple_of(4), "{role:?}");
            }
        }
    }
    // 300 x 700, 9 x 5000, 1000 x 257 and 256 x 256, in tiles of 256 by 256.
    assert_eq!(plan(Dtype::F32).tiles.len(), 2 * 3 + 20 + 4 * 2 + 1);
}

#[test]
fn every_element_that_is_not_compressed_is_in_one_pass_and_bound_there() {
    let tensors = [Matrix::vector(5000), Matrix::new(300, 700), Matrix::vector(0), Matrix::vector(70_001)];
    let state = PowerSgd::rank(3).state(&tensors, Seed::new(1)).expect("valid");
    let plan = LowRankPlan::new(&state.table, Dtype::Bf16, true, true);
    let start = Start { is_last: true, guarded: true };
    for (binding_bytes, groups) in [(u64::MAX, u32::MAX), (2 << 20, 5)] {
        let limits = Limits { binding_bytes, groups, ..Limits::NONE };
        let begin = plan.begin_resident(Side::Right, stream(), start, &limits).expect("the limits suffice");
        let finish = plan.finish(Side::Left, &limits).expect("the limits suffice");
        assert!(
            begin.iter().all(|pass| pass.bindings.workspace.bytes <= 4 * plan.layout.status),
            "no word is bound twice"
        );
        // A look at all, the forming, and the taking of means.
        let all = [begin, finish].concat();
        let passes: Vec<&Pass> = all.iter().filter(|pass| pass.kernel == Kernel::PowerSgdPlain).collect();
        let mut covered = vec![0u8; plan.elements as usize];
        for pass in passes {
            let Params::LowRank(p) = pass.params else { panic!("PowerSGD's parameters") };
            for tile in &plan.plain_tiles[p.first_tile as usize..][..pass.groups as usize] {
                assert!(u64::from(p.first) <= tile.start && tile.end <= u64::from(p.first) + u64::from(p.bound));
                covered[tile.start as usize..tile.end as usize].iter_mut().for_each(|times| *times += 1);
            }
            assert!(pass.groups <= groups && pass.bindings.residual.bytes <= binding_bytes);
        }
        let expected = |element: usize| if (5000..215_000).contains(&element) { 0 } else { 3 };
        assert!(covered.iter().enumerate().all(|(element, times)| *times == expected(element)));
    }
    // The list of these tiles is where the parameters say.
    let at = plan.layout.plain_tiles as usize;
    assert_eq!(plan.table[at..at + 4], [1, 0, 2048, 0], "the matrix comes first");
    assert_eq!(plan.table.len() as u64, plan.layout.plain_tiles + 4 * (3 + 35));
}

#[test]
fn parts_of_the_workspace_do_not_meet() {
    let (plan, limits) = (plan(Dtype::F32), Limits::NONE);
    let l = &plan.layout;
    let places = [0, l.tiles, l.marks, l.kept[0], l.kept[1], l.work[0], l.work[1], l.shares, l.words];
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(places.iter().all(|at| at % (ALIGNMENT / 4) == 0));
    // The table is a word list that ends where the marks begin, or before.
    assert!(plan.table.len() as u64 <= l.marks);
    for (passes, product) in [(plan.advance(Side::Left, &limits), true), (plan.finish(Side::Right, &limits), false)] {
        let kernels: Vec<Kernel> = passes.expect("no limits").iter().map(|pass| pass.kernel).collect();
        let expected: &[Kernel] = if product {
            &[Kernel::PowerSgdProducts, Kernel::PowerSgdFactor, Kernel::PowerSgdRight, Kernel::PowerSgdGather]
        } else {
            &[Kernel::PowerSgdProducts, Kernel::PowerSgdExpand]
        };
        assert_eq!(kernels, expected);
    }
}

#[test]
fn limits_below_a_tiles_rows_are_named() {
    let limits = Limits { binding_bytes: 1 << 19, groups: 100, ..Limits::NONE };
    let error = plan(Dtype::F32).begin(Side::Right, stream(), &limits).expect_err("256 rows of 700 are 716800 bytes");
    assert!(matches!(error, Error::Limit { found: 524_288, .. }), "{error:?}");
}
