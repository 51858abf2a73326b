//! Planted faults: each detector finds its own, and lets pass what only looks like it.

use super::common::{module, pointer, refusal, run, run_seeded, violation};
use gradwire::backend::cuda::driver::{DevicePtr, Driver, KernelArg, StreamId};
use gradwire_ptx_machine::{Machine, Space, Violation};

const SHARED: &str = ".shared .align 4 .b8 buf[256];\nmov.u32 %r2, buf;\nshl.b32 %r3, %r1, 2;\nadd.s32 %r4, %r2, %r3;";

#[test]
fn a_race_on_global_memory() {
    // Every thread writes its word, and reads its neighbour's.
    let body = |between: &str| {
        format!(
            "add.s64 %rd4, %rd2, %rd3;\nst.global.u32 [%rd4], %r1;\n{between}\nxor.b32 %r2, %r1, 1;\n\
             mul.wide.u32 %rd5, %r2, 4;\nadd.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r3, [%rd6];"
        )
    };
    let found = violation(&body(""), 1, 64);
    assert!(matches!(found, Some(Violation::Race { space: Space::Global, other, .. }) if other.wrote), "{found:?}");
    assert_eq!(violation(&body("bar.sync 0;"), 1, 64), None);
    assert_eq!(violation(&body("bar.warp.sync -1;"), 1, 64), None, "neighbours are of one warp");
    let found = violation(&body("bar.sync 0;"), 2, 32);
    assert!(matches!(found, Some(Violation::Race { .. })), "a barrier orders one block alone: {found:?}");
}

#[test]
fn a_race_on_shared_memory() {
    let body = |between: &str| {
        format!("{SHARED}\nst.shared.u32 [%r4], %r1;\n{between}\nxor.b32 %r5, %r4, 128;\nld.shared.u32 %r6, [%r5];")
    };
    let found = violation(&body("bar.sync 0;"), 1, 64);
    assert_eq!(found, None);
    // Without the barrier, which of the two faults shows depends on which warp is first.
    let kinds: Vec<Violation> =
        (0..20).filter_map(|seed| run_seeded(seed, &body(""), 1, 64, &[0; 64]).err()).map(|f| f.what).collect();
    assert_eq!(kinds.len(), 20);
    assert!(kinds.iter().any(|k| matches!(k, Violation::Race { space: Space::Shared, .. })), "{kinds:?}");
    assert!(kinds.iter().any(|k| matches!(k, Violation::Unwritten { space: Space::Shared, .. })), "{kinds:?}");
}

#[test]
fn a_write_after_a_read_and_two_writes() {
    let found =
        violation("ld.global.u32 %r2, [%rd1];\nsetp.eq.u32 %p1, %r1, 40;\n@%p1 st.global.u32 [%rd1], %r2;", 1, 64);
    assert!(matches!(found, Some(Violation::Race { .. })), "{found:?}");
    let found = violation("st.global.u32 [%rd2], %r1;", 1, 2);
    assert!(matches!(found, Some(Violation::Race { other, .. }) if other.wrote), "{found:?}");
    let found = violation("add.s64 %rd4, %rd2, %rd3;\nst.global.u32 [%rd4], %r1;", 1, 64);
    assert_eq!(found, None, "each its own");
}

#[test]
fn atomics_do_not_race_with_atomics() {
    let add = "atom.global.add.u32 %r2, [%rd2], 1;";
    assert_eq!(run(add, 3, 64, &[0]).expect("no fault").words, [192]);
    let found = violation(&format!("{add}\nld.global.u32 %r3, [%rd2];"), 1, 64);
    assert!(matches!(found, Some(Violation::Race { .. })), "a plain read does: {found:?}");
    assert_eq!(
        violation(&format!("{add}\nld.relaxed.gpu.global.u32 %r3, [%rd2];"), 3, 64),
        None,
        "a strong one does not"
    );
    // The last atomic does not stand for the others, whichever that is.
    let one_reads = format!("{add}\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 ld.global.u32 %r3, [%rd2];");
    for seed in 0..50 {
        assert!(run_seeded(seed, &one_reads, 1, 2, &[0]).is_err(), "seed {seed}");
    }
}

/// Two blocks that write a word each, tell one another by a count, and read the other's word.
fn handed_over(before: &str, counted: &str, waited: &str, after: &str, behind: &str) -> String {
    format!(
        "mov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd4, %r2, 4;\nadd.s64 %rd4, %rd2, %rd4;\nadd.s32 %r3, %r2, 7;\n\
         setp.eq.u32 %p1, %r1, 40;\n@%p1 st.global.u32 [%rd4+16], %r3;\n{before}\n\
         setp.ne.u32 %p2, %r1, 0;\n@%p2 bra LATER;\n{counted}\n\
         WAIT:\n{waited} %r4, [%rd2];\nsetp.lt.u32 %p3, %r4, 2;\n@%p3 bra WAIT;\n{after}\n\
         LATER:\n{behind}\nxor.b32 %r5, %r2, 1;\nmul.wide.u32 %rd5, %r5, 4;\nadd.s64 %rd5, %rd2, %rd5;\n\
         ld.global.u32 %r6, [%rd5+16];\n@%p1 st.global.u32 [%rd4+32], %r6;"
    )
}

#[test]
fn blocks_are_ordered_by_fences_around_a_count() {
    const BARRIER: &str = "bar.sync 0;";
    const COUNTED: &str = "membar.gl;\natom.global.add.u32 %r7, [%rd2], 1;";
    const WAITED: &str = "ld.volatile.global.u32";
    const FENCE: &str = "membar.gl;";
    for seed in 0..10 {
        let body = handed_over(BARRIER, COUNTED, WAITED, FENCE, BARRIER);
        let words = run_seeded(seed, &body, 2, 64, &[0; 16]).expect("no fault").words;
        assert_eq!(words[4..10], [7, 8, 0, 0, 8, 7]);
    }
    let count = "atom.global.add.u32 %r7, [%rd2], 1;";
    let of_block = format!("membar.cta;\n{count}");
    let newer = format!("fence.acq_rel.gpu;\n{count}");
    let races = |before: &str, counted: &str, waited: &str, after: &str, behind: &str| {
        let body = handed_over(before, counted, waited, after, behind);
        let found: Vec<_> =
            (0..20).filter_map(|seed| run_seeded(seed, &body, 2, 64, &[0; 16]).err()).map(|fault| fault.what).collect();
        assert!(found.iter().all(|what| matches!(what, Violation::Race { space: Space::Global, .. })), "{found:?}");
        found.len()
    };
    assert_eq!(races(BARRIER, &newer, "ld.relaxed.gpu.global.u32", "fence.sc.sys;", BARRIER), 0);
    assert_eq!(races(BARRIER, count, WAITED, FENCE, BARRIER), 20, "nothing before the count");
    assert_eq!(races(BARRIER, &of_block, WAITED, FENCE, BARRIER), 20, "of its block alone");
    assert_eq!(races(BARRIER, COUNTED, WAITED, "", BARRIER), 20, "nothing behind the wait");
    assert_eq!(races(BARRIER, COUNTED, "ld.global.u32", FENCE, BARRIER), 20, "a wait that may read once");
    assert_eq!(races("", COUNTED, WAITED, FENCE, BARRIER), 20, "other warps' writes may be under way");
    assert_eq!(races(BARRIER, COUNTED, WAITED, FENCE, ""), 20, "other warps may be ahead");
}

#[test]
fn a_misaligned_access() {
    let found = violation("ld.global.u32 %r2, [%rd1+2];", 1, 1);
    assert!(matches!(found, Some(Violation::Misaligned { space: Space::Global, bytes: 4, .. })), "{found:?}");
    let found = violation("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+8];", 1, 1);
    assert!(matches!(found, Some(Violation::Misaligned { bytes: 16, .. })), "{found:?}");
    assert_eq!(violation("ld.global.v2.u32 {%r2, %r3}, [%rd1+8];", 1, 1), None);
}

#[test]
fn an_access_out_of_bounds() {
    let found = violation("ld.global.u32 %r2, [%rd1+256];", 1, 1);
    assert!(matches!(found, Some(Violation::OutOfBounds { space: Space::Global, .. })), "{found:?}");
    let found = violation("st.global.u32 [%rd2+-4], %r1;", 1, 1);
    assert!(matches!(found, Some(Violation::OutOfBounds { .. })), "below: {found:?}");
    let found = violation("mov.b64 %rd4, 0;\nst.global.u32 [%rd4], %r1;", 1, 1);
    assert!(matches!(found, Some(Violation::OutOfBounds { .. })), "null: {found:?}");
    let found = violation(&format!("{SHARED}\nst.shared.u32 [%r2+256], %r1;"), 1, 1);
    assert!(matches!(found, Some(Violation::OutOfBounds { space: Space::Shared, .. })), "{found:?}");
    let found = violation("ld.param.u32 %r2, [a+8];", 1, 1);
    assert!(matches!(found, Some(Violation::OutOfBounds { space: Space::Param, .. })), "{found:?}");
}

#[test]
fn a_freed_buffer() {
    let machine = Machine::new((7, 0), 0);
    let loaded = machine.load_module(&module("ld.global.u32 %r2, [%rd1];")).expect("it loads");
    let function = machine.function(loaded, "k").expect("it has one");
    let a = machine.alloc(4).expect("there is room");
    let launch = || {
        let args = [pointer(a), pointer(DevicePtr::NULL)];
        // SAFETY: the machine checks every access.
        unsafe { machine.launch(function, 1, 1, &args, StreamId::OWN) }
            .map_err(|_| machine.take_faults().remove(0).what)
    };
    assert!(matches!(launch(), Err(Violation::Unwritten { space: Space::Global, .. })), "nothing was copied in");
    // SAFETY: the machine checks every access.
    unsafe { machine.copy_in(a, &[1, 2, 3, 4], StreamId::OWN).expect("it fits") };
    assert_eq!(launch(), Ok(()));
    // SAFETY: as above.
    unsafe { machine.free(a) };
    let after = launch();
    assert!(matches!(&after, Err(Violation::OutOfBounds { found, .. }) if found.contains("freed")), "{after:?}");
}

#[test]
fn a_read_of_what_nothing_wrote() {
    let found = violation(&format!("{SHARED}\nld.shared.u32 %r5, [%r4];"), 1, 1);
    assert!(matches!(found, Some(Violation::Unwritten { space: Space::Shared, .. })), "{found:?}");
    let partly = format!("{SHARED}\nst.shared.u16 [%r4], %rs1;\nld.shared.u32 %r5, [%r4];")
        .replace("st.shared", "mov.u16 %rs1, 7;\nst.shared");
    let found = violation(&partly, 1, 1);
    assert!(matches!(found, Some(Violation::Unwritten { .. })), "half of it: {found:?}");
    let local = ".local .align 8 .b8 depot[16];\nmov.u64 %rd4, depot;\nst.local.u32 [%rd4+4], %r1;\n";
    assert_eq!(violation(&format!("{local}ld.local.u32 %r2, [%rd4+4];"), 1, 64), None);
    let found = violation(&format!("{local}ld.local.u32 %r2, [%rd4+8];"), 1, 64);
    assert!(matches!(found, Some(Violation::Unwritten { space: Space::Local, .. })), "{found:?}");
}

#[test]
fn shared_memory_of_one_block_is_not_the_next_ones() {
    let write_in_block_0 = format!(
        "{SHARED}\nmov.u32 %r6, %ctaid.x;\nsetp.ne.u32 %p1, %r6, 0;\n@%p1 bra $L;\nst.shared.u32 [%r4], %r1;\n$L:\n\
         ld.shared.u32 %r5, [%r4];"
    );
    let found = violation(&write_in_block_0, 9, 1);
    assert!(matches!(found, Some(Violation::Unwritten { space: Space::Shared, .. })), "{found:?}");
}

#[test]
fn a_barrier_in_divergent_flow() {
    let found = violation("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L;\nbar.sync 0;\n$L:", 1, 32);
    assert!(
        matches!(found, Some(Violation::DivergentBarrier { arrived: 0xffff_0000, started: 0xffff_ffff })),
        "{found:?}"
    );
    // Whole warps that go past it, or come to another one.
    let found = violation("setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L;\nbar.sync 0;\n$L:", 1, 64);
    assert!(matches!(found, Some(Violation::SplitBarrier { what: "has come to its end", .. })), "{found:?}");
    let two = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $A;\nbar.sync 0;\nbra $B;\n$A:\nbar.sync 0;\n$B:";
    let found = violation(two, 1, 64);
    assert!(matches!(found, Some(Violation::SplitBarrier { what: "is at another barrier", .. })), "{found:?}");
    let found = violation("setp.lt.u32 %p1, %r1, 5;\n@%p1 ret;\nbar.sync 0;", 1, 32);
    assert!(matches!(found, Some(Violation::DivergentBarrier { .. })), "threads that left: {found:?}");
    assert_eq!(violation("bar.sync 0;\nbar.sync 1;", 2, 64), None);
}

#[test]
fn a_uniform_branch_that_is_not() {
    let found = violation("setp.lt.u32 %p1, %r1, 7;\n@%p1 bra.uni $L;\nmov.u32 %r2, 1;\n$L:", 1, 32);
    assert!(matches!(found, Some(Violation::DivergentBranch { taking: 0x7f, of: 0xffff_ffff })), "{found:?}");
    assert_eq!(violation("setp.lt.u32 %p1, %r1, 32;\n@%p1 bra.uni $L;\nmov.u32 %r2, 1;\n$L:", 1, 32), None);
}

#[test]
fn a_shuffle_in_divergent_flow() {
    let half = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, MASK;\n$L:";
    let found = violation(&half.replace("MASK", "-1"), 1, 32);
    assert!(
        matches!(found, Some(Violation::DivergentExchange { members: 0xffff_ffff, active: 0xffff_0000 })),
        "{found:?}"
    );
    assert_eq!(violation(&half.replace("MASK", "0xffff0000"), 1, 32), None);
    let found = violation(&half.replace("MASK", "0xffff0000").replace(", 1, 31", ", 16, 31"), 1, 32);
    assert!(matches!(found, Some(Violation::AbsentLane { lane: 16, from: 0 })), "{found:?}");
}

#[test]
fn a_product_of_matrices_without_all_lanes_or_of_other_numbers() {
    let product = "mov.f32 %f1, 0f00000000;\nmma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, \
                   {%r2, %r2, %r2, %r2}, {%r2, %r2}, {%f1, %f1, %f1, %f1};\n";
    let one = "mov.b32 %r2, 0x3f800000;\n";
    let half = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L;\n";
    assert_eq!(violation(&[one, product].concat(), 1, 32), None);
    let found = violation(&[one, half, product, "$L:"].concat(), 1, 32);
    assert!(
        matches!(found, Some(Violation::DivergentExchange { members: 0xffff_ffff, active: 0xffff_0000 })),
        "{found:?}"
    );
    assert!(violation(&[one, product].concat(), 1, 16).is_some(), "a warp of 16 lanes");
    let found = violation(&["mov.b32 %r2, 0x3f801000;\n", product].concat(), 1, 32);
    assert!(matches!(found, Some(Violation::NotTf32 { bits: 0x3f80_1000 })), "{found:?}");
}

#[test]
fn an_order_that_a_kernel_counts_on() {
    // The last block to come writes its number: no race, and no answer either.
    let last = "mov.u32 %r2, %ctaid.x;\natom.global.exch.b32 %r3, [%rd2], %r2;";
    let answers: Vec<u32> =
        (0..8).map(|seed| run_seeded(seed, last, 64, 1, &[0]).expect("no fault").words[0]).collect();
    assert!(answers.iter().any(|a| *a != answers[0]), "{answers:?}");
    let again = run_seeded(3, last, 64, 1, &[0]).expect("no fault").words[0];
    assert_eq!(again, answers[3], "a seed is an order");
}

#[test]
fn texts_that_are_refused() {
    let unknown = refusal(&module("sin.approx.f32 %f1, 0f3F800000;"));
    assert!(unknown.contains("line 20: `sin.approx.f32 %f1, 0f3F800000`") && unknown.contains("not know"), "{unknown}");
    let fused = refusal(&module("mov.b32 %f1, 1;\nadd.f32 %f2, %f1, %f1;"));
    assert!(fused.contains("fuse"), "{fused}");
    let unset = refusal(&module("setp.eq.u32 %p1, %r1, 0;\n@%p1 mov.u32 %r2, 1;\nadd.u32 %r3, %r2, 1;"));
    assert!(unset.contains("nothing has written"), "{unset}");
    let newer = refusal(&module("").replace("sm_70", "sm_90"));
    assert!(newer.contains("sm_90"), "{newer}");
    let external = refusal(".version 7.0\n.target sm_70\n.address_size 64\n.extern .func f;\n");
    assert!(external.contains(".extern"), "{external}");
    for broken in [
        ".shared .align 0 .b8 x[4];",
        ".shared .u64 b[2305843009213693953];",
        ".shared .b8 b[49153];",
        ".reg .b32 %q<18446744073709551615>;",
        ".reg .b32 %q<1000000000000>;",
        &format!("mov.u32 %r2, {};", "[".repeat(20_000)),
    ] {
        refusal(&module(broken));
    }
    refusal(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k();\n}\n");
    refusal(&module("").replace("sm_70", "sm_70a"));
    assert!(refusal(&module("bra $NOWHERE;")).contains("nowhere"));
    assert!(refusal(&module("mov.u32 %r99, 1;")).contains("neither declared nor a number"));
    assert!(refusal(&module("st.global.b128 [%rd1], %rd2;")).contains("type"));
    for of_block in ["atom.relaxed.cta.global.add.u32 %r2, [%rd1], 1;", "ld.relaxed.cta.global.u32 %r2, [%rd1];"] {
        assert!(refusal(&module(of_block)).contains("one block alone"));
    }
}

#[test]
fn launches_and_copies_that_are_refused() {
    let machine = Machine::new((7, 0), 0);
    let loaded = machine.load_module(&module("")).expect("it loads");
    let function = machine.function(loaded, "k").expect("it has one");
    let a = machine.alloc(8).expect("there is room");
    // SAFETY: the machine checks every access.
    unsafe {
        let error = machine.launch(function, 1, 32, &[pointer(a)], StreamId::OWN).expect_err("one parameter less");
        assert!(error.to_string().contains("parameters have [8, 8] bytes, and [8]"), "{error}");
        let args = [pointer(a), KernelArg::Bytes(&[0; 12])];
        machine.launch(function, 1, 32, &args, StreamId::OWN).expect_err("a larger one");
        machine.launch(function, 1, 0, &[pointer(a), pointer(a)], StreamId::OWN).expect_err("no threads");
        machine.launch(function, 0, 0, &[pointer(a), pointer(a)], StreamId::OWN).expect("an empty grid does nothing");
        machine.fill_zero(a, u64::MAX, StreamId::OWN).expect_err("far too long");
        machine.copy_in(a, &[0; 9], StreamId::OWN).expect_err("too long");
        let error = machine.copy_out(&mut [0; 8], a, StreamId::OWN).expect_err("never written");
        assert!(error.to_string().contains("nothing wrote the byte at offset 0"), "{error}");
    }
    machine.unload_module(loaded);
    // SAFETY: as above.
    let error = unsafe { machine.launch(function, 1, 32, &[pointer(a), pointer(a)], StreamId::OWN) };
    error.expect_err("its module is gone");
}

#[test]
fn memory_that_is_touched_before_the_kernel_before_is_waited_for() {
    let (wait, store) = ("griddepcontrol.wait;\n", "add.s64 %rd4, %rd2, %rd3;\nst.global.u32 [%rd4], %r1;\n");
    // A kernel that waits nowhere is one that is launched after all else.
    assert_eq!(violation(store, 1, 64), None);
    let first = format!("griddepcontrol.launch_dependents;\n{wait}{store}");
    assert_eq!(violation(&first, 1, 64), None);
    let touched = Some(Violation::BeforeWait { what: "it touches memory" });
    assert_eq!(violation(&format!("{store}{wait}"), 1, 64), touched);
    // Of some lanes only; at the end of others.
    let some = format!("setp.lt.u32 %p1, %r1, 16;\n@%p1 {wait}");
    assert_eq!(violation(&format!("{some}{store}"), 1, 64), touched);
    assert_eq!(violation(&some, 1, 64), Some(Violation::BeforeWait { what: "it ends" }));
}
