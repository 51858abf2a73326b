//! Counts of small kernels, against counts by hand.

use super::common::run;

#[test]
fn a_copy_of_words() {
    let body =
        "add.s64 %rd4, %rd1, %rd3;\nld.global.u32 %r2, [%rd4];\nadd.s64 %rd5, %rd2, %rd3;\nst.global.u32 [%rd5], %r2;";
    let input: Vec<u32> = (100..164).collect();
    let ran = run(body, 1, 64, &input).expect("no fault");
    assert_eq!(ran.words, input);
    let c = &ran.counts;
    assert_eq!((c.loads.requests, c.loads.sectors, c.loads.needed, c.loads.least), (2, 8, 256, 8));
    assert_eq!(c.stores, c.loads);
    assert_eq!(c.global().moved(), 512);
    // Six instructions in front of the body, four in it, and the return; two warps.
    assert_eq!(c.instructions, 22);
    let lines: Vec<&str> = c.sites.iter().map(|s| s.text.as_str()).collect();
    assert_eq!(lines, ["ld.global.u32 %r2, [%rd4]", "st.global.u32 [%rd5], %r2"]);
}

#[test]
fn a_strided_read_and_an_idle_half() {
    let body = "setp.ge.u32 %p1, %r1, 8;\n@%p1 bra $L;\nmul.wide.u32 %rd4, %r1, 32;\nadd.s64 %rd4, %rd1, %rd4;\n\
                ld.global.u32 %r2, [%rd4];\n$L:";
    let c = run(body, 1, 32, &[1; 64]).expect("no fault").counts;
    assert_eq!((c.loads.requests, c.loads.sectors, c.loads.needed, c.loads.least), (1, 8, 32, 1));
}

#[test]
fn shared_banks_and_barriers() {
    let body = ".shared .align 4 .b8 buf[4096];\nmov.u32 %r2, buf;\nshl.b32 %r3, %r1, 7;\nadd.s32 %r4, %r2, %r3;\n\
                st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r5, [%r2];";
    let c = run(body, 2, 32, &[0; 8]).expect("no fault").counts;
    assert_eq!((c.shared_requests, c.bank_conflicts, c.barriers), (4, 2 * 31, 2));
    assert_eq!(c.global().requests, 0);
}

#[test]
fn both_sides_of_a_branch_are_executed_once() {
    let body = "and.b32 %r2, %r1, 1;\nsetp.eq.u32 %p1, %r2, 0;\nmov.u32 %r3, 5;\n@%p1 bra $L;\nadd.u32 %r3, %r3, %r1;\n$L:\n\
                add.s64 %rd5, %rd2, %rd3;\nst.global.u32 [%rd5], %r3;";
    let ran = run(body, 1, 32, &[0; 32]).expect("no fault");
    let expected: Vec<u32> = (0..32).map(|i| if i % 2 == 0 { 5 } else { 5 + i }).collect();
    assert_eq!(ran.words, expected);
    assert_eq!(ran.counts.stores.requests, 1, "the sides meet before the store");
}

#[test]
fn a_loop_whose_lanes_leave_one_by_one() {
    let body = "mov.u32 %r2, 0;\nmov.u32 %r3, 0;\n$L:\nadd.u32 %r3, %r3, %r2;\nadd.u32 %r2, %r2, 1;\n\
                setp.le.u32 %p1, %r2, %r1;\n@%p1 bra $L;\nadd.s64 %rd5, %rd2, %rd3;\nst.global.u32 [%rd5], %r3;";
    let ran = run(body, 1, 32, &[0; 32]).expect("no fault");
    let expected: Vec<u32> = (0..32).map(|i| i * (i + 1) / 2).collect();
    assert_eq!(ran.words, expected);
    assert_eq!(ran.counts.stores.requests, 1);
}
