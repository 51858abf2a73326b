//! What each instruction computes, by values worked out from the PTX ISA's words.

use super::common::{module, refusal, run};

/// Runs an instruction on registers `%r2` to `%r4`, `%rs1` and `%rs2`, `%rd5` to `%rd7` filled from words, and returns
/// the word at `%r9`, or the two of `%rd9`.
fn value(instruction: &str, operands: &[u64]) -> u64 {
    let mut input = Vec::new();
    for operand in operands {
        input.extend([*operand as u32, (*operand >> 32) as u32]);
    }
    input.resize(8, 0);
    let loads = "ld.global.u32 %r2, [%rd1];\nld.global.u32 %r3, [%rd1+8];\nld.global.u32 %r4, [%rd1+16];\n\
                 ld.global.u16 %rs1, [%rd1];\nld.global.u16 %rs2, [%rd1+8];\nld.global.u16 %rs3, [%rd1+16];\n\
                 ld.global.u64 %rd5, [%rd1];\nld.global.u64 %rd6, [%rd1+8];\nld.global.u64 %rd7, [%rd1+16];\n\
                 mov.u32 %r9, 0;\nmov.u16 %rs9, 0;\nmov.u64 %rd9, 0;\nsetp.ne.b32 %p1, %r9, 0;\n";
    let stores = "cvt.u32.u16 %r10, %rs9;\nselp.u32 %r11, 1, 0, %p1;\nor.b32 %r9, %r9, %r10;\nor.b32 %r9, %r9, %r11;\n\
                  cvt.u64.u32 %rd10, %r9;\nor.b64 %rd9, %rd9, %rd10;\nst.global.u64 [%rd2], %rd9;";
    let text = format!("{loads}{instruction}\n{stores}").replace("%rs9", "%rs7");
    let ran = run(&text, 1, 1, &input).unwrap_or_else(|fault| panic!("{fault}"));
    u64::from(ran.words[1]) << 32 | u64::from(ran.words[0])
}

fn check(table: &[(&str, &[u64], u64)]) {
    for (instruction, operands, expected) in table {
        let got = value(instruction, operands);
        assert_eq!(got, *expected, "{instruction} of {operands:x?}: {got:#x}, expected {expected:#x}");
    }
}

fn f(value: f32) -> u64 {
    value.to_bits().into()
}

fn d(value: f64) -> u64 {
    value.to_bits()
}

const NAN: u64 = 0x7fff_ffff;

#[test]
fn integers() {
    check(&[
        ("add.s32 %r9, %r2, %r3;", &[0xffff_ffff, 2], 1),
        ("sub.u32 %r9, %r2, %r3;", &[1, 2], 0xffff_ffff),
        ("mul.lo.s32 %r9, %r2, %r3;", &[0x10001, 0x10001], 0x20001),
        ("mul.hi.u32 %r9, %r2, %r3;", &[0xffff_ffff, 0xffff_ffff], 0xffff_fffe),
        ("mul.hi.s32 %r9, %r2, %r3;", &[0xffff_ffff, 5], 0xffff_ffff),
        ("mul.wide.u32 %rd9, %r2, %r3;", &[0xffff_ffff, 2], 0x1_ffff_fffe),
        ("mul.wide.s32 %rd9, %r2, %r3;", &[0xffff_ffff, 2], 0xffff_ffff_ffff_fffe),
        ("mul.wide.u16 %r9, %rs1, %rs2;", &[0xffff, 0xffff], 0xfffe_0001),
        ("mad.lo.s32 %r9, %r2, %r3, %r4;", &[7, 6, 5], 47),
        ("mad.wide.u32 %rd9, %r2, %r3, %rd7;", &[0x8000_0000, 2, 3], 0x1_0000_0003),
        ("mad.lo.s64 %rd9, %rd5, %rd6, %rd7;", &[1 << 40, 1 << 30, 9], 9),
        ("min.s32 %r9, %r2, %r3;", &[0xffff_ffff, 2], 0xffff_ffff),
        ("min.u32 %r9, %r2, %r3;", &[0xffff_ffff, 2], 2),
        ("max.s32 %r9, %r2, %r3;", &[0xffff_ffff, 2], 2),
        ("max.u64 %rd9, %rd5, %rd6;", &[1 << 63, 2], 1 << 63),
        ("min.s64 %rd9, %rd5, %rd6;", &[1 << 63, 2], 1 << 63),
        ("add.s16 %rs9, %rs1, %rs2;", &[0xffff, 3], 2),
        ("min.s16 %rs9, %rs1, %rs2;", &[0xffff, 3], 0xffff),
        ("neg.s32 %r9, %r2;", &[1], 0xffff_ffff),
        ("abs.s32 %r9, %r2;", &[0x8000_0000], 0x8000_0000),
        ("add.cc.s64 %rd8, %rd5, %rd6;\naddc.cc.s64 %rd9, %rd7, 1;", &[u64::MAX, 1, 5], 7),
        ("add.cc.s64 %rd8, %rd5, %rd6;\naddc.s64 %rd9, %rd7, 1;", &[u64::MAX - 1, 1, 5], 6),
        // What leaves the product does not carry; what leaves the sum does.
        ("mad.lo.cc.u32 %r9, %r2, %r3, %r4;\naddc.u32 %r9, %r4, 1;", &[0xc000_0000, 2, 0x7fff_ffff], 0x8000_0000),
        ("mad.lo.cc.u32 %r9, %r2, %r3, %r4;\naddc.u32 %r9, %r4, 1;", &[0xc000_0000, 2, 0x8000_0000], 0x8000_0002),
        ("mad.lo.cc.u32 %r9, %r2, %r3, %r4;", &[0xc000_0001, 2, 0x8000_0003], 5),
    ]);
}

#[test]
fn bits() {
    check(&[
        ("and.b32 %r9, %r2, %r3;", &[12, 10], 8),
        ("xor.b64 %rd9, %rd5, %rd6;", &[12 << 40, 10 << 40], 6 << 40),
        ("not.b16 %rs9, %rs1;", &[1], 0xfffe),
        ("shl.b32 %r9, %r2, %r3;", &[1, 31], 0x8000_0000),
        ("shl.b32 %r9, %r2, %r3;", &[1, 32], 0),
        ("shl.b32 %r9, %r2, %r3;", &[1, 0x8000_0000], 0),
        ("shr.u32 %r9, %r2, %r3;", &[0x8000_0000, 31], 1),
        ("shr.u32 %r9, %r2, %r3;", &[0x8000_0000, 99], 0),
        ("shr.s32 %r9, %r2, %r3;", &[0x8000_0000, 99], 0xffff_ffff),
        ("shr.s16 %rs9, %rs1, %r3;", &[0x8000, 15], 0xffff),
        ("shr.u16 %rs9, %rs1, %r3;", &[0x8000, 15], 1),
        ("xor.b16 %rs4, %rs1, -32768;\nshr.u16 %rs9, %rs4, 8;", &[127], 0x80),
        ("or.b16 %rs4, %rs1, -128;\nshr.b16 %rs9, %rs4, 7;", &[1], 0x1ff),
        ("ld.global.s8 %rs4, [%rd1];\nshr.u16 %rs9, %rs4, 7;", &[0x80], 0x1ff),
        ("mov.u32 %r9, 5;\n.loc 1 7 3\nadd.u32 %r9, %r9, 1;", &[], 6),
        ("shl.b64 %rd9, %rd5, %r3;", &[1, 64], 0),
        ("shr.s64 %rd9, %rd5, %r3;", &[1 << 63, 70], u64::MAX),
        ("shf.l.wrap.b32 %r9, %r2, %r3, %r4;", &[0x8000_0001, 2, 33], 5),
        ("shf.l.clamp.b32 %r9, %r2, %r3, %r4;", &[0x8000_0001, 2, 40], 0x8000_0001),
        ("shf.r.wrap.b32 %r9, %r2, %r3, %r4;", &[4, 3, 2], 0xc000_0001),
        ("shf.r.clamp.b32 %r9, %r2, %r3, %r4;", &[4, 3, 99], 3),
        ("bfe.u32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 8, 8], 0x12),
        ("bfe.u32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 24, 99], 0xab),
        ("bfe.u32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 32, 4], 0),
        ("bfe.s32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 8, 5], 0xffff_fff2),
        ("bfe.s32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 8, 7], 0x12),
        ("bfe.s32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 24, 99], 0xffff_ffab),
        ("bfe.s32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 40, 4], 0xffff_ffff),
        ("bfe.s32 %r9, %r2, %r3, %r4;", &[0xabcd_1234, 5, 0], 0),
        ("popc.b32 %r9, %r2;", &[0xf0f0], 8),
        ("clz.b32 %r9, %r2;", &[0], 32),
        ("clz.b64 %r9, %rd5;", &[1 << 40], 23),
        ("brev.b32 %r9, %r2;", &[1], 0x8000_0000),
        ("bfind.u32 %r9, %r2;", &[0x400], 10),
        ("bfind.u32 %r9, %r2;", &[0], 0xffff_ffff),
        ("prmt.b32 %r9, %r2, %r3, 0x7531;", &[0x4433_2211, 0x8877_6655], 0x8866_4422),
        ("prmt.b32 %r9, %r2, %r3, 0xf080;", &[0x0000_0080, 0x8000_0000], 0xff80_ff80),
        ("mov.b64 {%r8, %r9}, %rd5;", &[5 << 32 | 6], 5),
        ("mov.b64 {_, %r9}, %rd5;", &[5 << 32 | 6], 5),
        ("mov.b64 %rd9, {%r2, %r3};", &[6, 5], 5 << 32 | 6),
        ("mov.b32 {%rs9, _}, %r2;", &[0x1234_5678], 0x5678),
        ("mov.b32 %r9, {%rs1, %rs2};", &[0x5678, 0x1234], 0x1234_5678),
    ]);
}

#[test]
fn comparisons() {
    check(&[
        ("setp.lt.s32 %p1, %r2, %r3;", &[0xffff_ffff, 0], 1),
        ("setp.lt.u32 %p1, %r2, %r3;", &[0xffff_ffff, 0], 0),
        ("setp.lo.u32 %p1, %r2, %r3;", &[0, 1], 1),
        ("setp.ge.s16 %p1, %rs1, %rs2;", &[0x8000, 0], 0),
        ("setp.gt.s64 %p1, %rd5, %rd6;", &[1 << 63, 0], 0),
        ("setp.gt.u64 %p1, %rd5, %rd6;", &[1 << 63, 0], 1),
        ("setp.eq.f32 %p1, %r2, %r3;", &[0x8000_0000, 0], 1),
        ("setp.ne.f32 %p1, %r2, %r3;", &[NAN, 0], 0),
        ("setp.neu.f32 %p1, %r2, %r3;", &[NAN, 0], 1),
        ("setp.equ.f32 %p1, %r2, %r3;", &[NAN, 0], 1),
        ("setp.lt.f32 %p1, %r2, %r3;", &[1, 2], 1),
        ("setp.ge.f32 %p1, %r2, %r3;", &[0, NAN], 0),
        ("setp.leu.f32 %p1, %r2, %r3;", &[f(2.0), f(1.0)], 0),
        ("setp.nan.f32 %p1, %r2, %r3;", &[0, NAN], 1),
        ("setp.num.f64 %p1, %rd5, %rd6;", &[0, d(f64::NAN)], 0),
        ("setp.eq.u32 %p2, %r2, %r3;\nnot.pred %p1, %p2;", &[1, 2], 1),
        ("setp.eq.u32 %p2, %r2, %r3;\nsetp.eq.u32 %p3, %r2, 1;\nand.pred %p1, %p2, %p3;", &[1, 2], 0),
        ("setp.eq.u32 %p2, %r2, %r3;\nselp.b64 %rd9, %rd5, %rd6, %p2;", &[1, 2], 2),
        ("setp.eq.u32 %p2, %r2, 1;\n@!%p2 mov.u32 %r9, 5;\n@%p2 mov.u32 %r9, 6;", &[1], 6),
    ]);
}

#[test]
fn floats() {
    let least = 1; // the smallest subnormal number
    check(&[
        ("add.rn.f32 %r9, %r2, %r3;", &[f(16_777_216.0), f(1.0)], f(16_777_216.0)),
        ("add.rn.f32 %r9, %r2, %r3;", &[f(16_777_218.0), f(1.0)], f(16_777_220.0)),
        ("add.rn.f32 %r9, %r2, %r3;", &[least, least], 2),
        ("add.rn.f32 %r9, %r2, %r3;", &[0x7f80_0000, 0xff80_0000], NAN),
        ("sub.rn.f32 %r9, %r2, %r3;", &[f(f32::MIN), f(f32::MAX)], 0xff80_0000),
        ("mul.rn.f32 %r9, %r2, %r3;", &[f(f32::MIN_POSITIVE), f(0.5)], 0x0040_0000),
        ("mul.rn.f32 %r9, %r2, %r3;", &[0x7fc1_2345, f(1.0)], NAN),
        ("div.rn.f32 %r9, %r2, %r3;", &[f(1.0), f(3.0)], 0x3eaa_aaab),
        ("div.rn.f32 %r9, %r2, %r3;", &[f(1.0), 0x8000_0000], 0xff80_0000),
        ("fma.rn.f32 %r9, %r2, %r3, %r4;", &[f(1.000_244_1), f(1.000_244_1), f(-1.000_488_3)], f(5.960_464_5e-8)),
        ("sqrt.rn.f32 %r9, %r2;", &[f(2.0)], 0x3fb5_04f3),
        ("sqrt.rn.f32 %r9, %r2;", &[f(-1.0)], NAN),
        ("min.f32 %r9, %r2, %r3;", &[0, 0x8000_0000], 0x8000_0000),
        ("max.f32 %r9, %r2, %r3;", &[0x8000_0000, 0], 0),
        ("min.f32 %r9, %r2, %r3;", &[NAN, f(3.0)], f(3.0)),
        ("max.f32 %r9, %r2, %r3;", &[f(3.0), 0x7fc0_0000], f(3.0)),
        ("min.f32 %r9, %r2, %r3;", &[0x7fc0_0000, 0xffc0_0000], NAN),
        ("abs.f32 %r9, %r2;", &[f(-2.5)], f(2.5)),
        ("neg.f32 %r9, %r2;", &[0], 0x8000_0000),
        ("add.rn.f64 %rd9, %rd5, %rd6;", &[d(0.1), d(0.2)], d(0.30000000000000004)),
        ("fma.rn.f64 %rd9, %rd5, %rd6, %rd7;", &[d(3.0), d(4.0), d(5.0)], d(17.0)),
        ("sqrt.rn.f64 %rd9, %rd5;", &[d(2.0)], d(std::f64::consts::SQRT_2)),
        ("add.rn.f64 %rd9, %rd5, %rd6;", &[d(f64::NAN), 0], 0x7fff_ffff_ffff_ffff),
        ("add.rn.f16 %rs9, %rs1, %rs2;", &[0x3c00, 0x1000], 0x3c00),
        ("add.rn.f16 %rs9, %rs1, %rs2;", &[0x3c01, 0x1000], 0x3c02),
        ("mul.rn.f16 %rs9, %rs1, %rs2;", &[0x0400, 0x3800], 0x0200),
        ("mul.rn.f16 %rs9, %rs1, %rs2;", &[0x7bff, 0x4000], 0x7c00),
        ("fma.rn.f16 %rs9, %rs1, %rs2, %rs3;", &[0x3c01, 0x3c01, 0xbc02], 0x0010),
        ("sub.rn.bf16 %rs9, %rs1, %rs2;", &[0x3f80, 0x3f81], 0xbc00),
        ("mul.rn.bf16 %rs9, %rs1, %rs2;", &[0x3f81, 0x3f81], 0x3f82),
        ("neg.f16 %rs9, %rs1;", &[0x7e01], 0x7fff),
    ]);
}

#[test]
fn conversions() {
    check(&[
        ("cvt.u32.u16 %r9, %rs1;", &[0xffff], 0xffff),
        ("cvt.s32.s16 %r9, %rs1;", &[0xffff], 0xffff_ffff),
        ("cvt.u16.u32 %rs9, %r2;", &[0x1_2345], 0x2345),
        ("cvt.s32.s8 %r9, %r2;", &[0x180], 0xffff_ff80),
        ("cvt.u32.u8 %r9, %r2;", &[0x180], 0x80),
        ("cvt.u64.u32 %rd9, %r2;", &[0xffff_ffff], 0xffff_ffff),
        ("cvt.s64.s32 %rd9, %r2;", &[0xffff_ffff], u64::MAX),
        ("cvt.u32.u64 %r9, %rd5;", &[0x5_0000_0006], 6),
        ("cvt.rn.f32.u32 %r9, %r2;", &[0xffff_ffff], f(4_294_967_296.0)),
        ("cvt.rn.f32.s32 %r9, %r2;", &[0xffff_ffff], f(-1.0)),
        ("cvt.rn.f32.u64 %r9, %rd5;", &[(1 << 40) + 1], f(1_099_511_627_776.0)),
        ("cvt.rn.f64.u64 %rd9, %rd5;", &[u64::MAX], d(18_446_744_073_709_551_616.0)),
        ("cvt.rzi.s32.f32 %r9, %r2;", &[f(-1.9)], 0xffff_ffff),
        ("cvt.rzi.s32.f32 %r9, %r2;", &[f(3e9)], 0x7fff_ffff),
        ("cvt.rzi.u32.f32 %r9, %r2;", &[f(-5.0)], 0),
        ("cvt.rzi.u32.f32 %r9, %r2;", &[NAN], 0),
        ("cvt.rni.s32.f32 %r9, %r2;", &[f(2.5)], 2),
        ("cvt.rmi.s32.f32 %r9, %r2;", &[f(-2.5)], 0xffff_fffd),
        ("cvt.rpi.s32.f32 %r9, %r2;", &[f(2.1)], 3),
        ("cvt.rzi.u32.f64 %r9, %rd5;", &[d(4e9)], 4_000_000_000),
        ("cvt.rzi.u32.f64 %r9, %rd5;", &[d(f64::NAN)], 0x8000_0000),
        ("cvt.rzi.u64.f32 %rd9, %r2;", &[NAN], 1 << 63),
        ("cvt.f32.f16 %r9, %rs1;", &[0x0001], f(5.960_464_5e-8)),
        ("cvt.f32.f16 %r9, %rs1;", &[0xfc00], 0xff80_0000),
        ("cvt.f32.f16 %r9, %rs1;", &[0x7e00], NAN),
        ("cvt.f32.bf16 %r9, %rs1;", &[0x3fc0], f(1.5)),
        ("cvt.rn.f16.f32 %rs9, %r2;", &[f(65520.0)], 0x7c00),
        ("cvt.rn.f16.f32 %rs9, %r2;", &[f(1.000_488_3)], 0x3c00),
        ("cvt.rn.bf16.f32 %rs9, %r2;", &[f(1.005_859_4)], 0x3f81),
        ("cvt.f64.f32 %rd9, %r2;", &[f(0.1)], d(f64::from(0.1f32))),
        ("cvt.rn.f32.f64 %r9, %rd5;", &[d(0.1)], f(0.1)),
    ]);
}

#[test]
fn memory() {
    check(&[
        ("st.global.v2.u32 [%rd2+8], {%r2, %r3};\nld.global.v2.u32 {%r8, %r9}, [%rd2+8];", &[7, 9], 9),
        ("st.global.u8 [%rd2+8], %r2;\nld.global.s8 %r9, [%rd2+8];", &[0x1ff], 0xffff_ffff),
        ("st.global.u8 [%rd2+8], %r2;\nld.global.u8 %r9, [%rd2+8];", &[0x1ff], 0xff),
        (
            "st.global.u64 [%rd2+8], %rd5;\nld.global.v4.u16 {%rs4, %rs5, %rs6, %rs9}, [%rd2+8];",
            &[0x1234 << 48],
            0x1234,
        ),
        ("ld.global.L1::no_allocate.u32 %r9, [%rd1];", &[77], 77),
        ("ld.volatile.global.u32 %r9, [%rd1];", &[77], 77),
        (
            ".shared .align 8 .b8 buf[16];\nmov.u64 %rd8, buf;\ncvta.shared.u64 %rd8, %rd8;\nst.b32 [%rd8+4], %r2;\n\
             cvta.to.shared.u64 %rd8, %rd8;\nld.shared.b32 %r9, [%rd8+4];",
            &[5],
            5,
        ),
        (
            ".local .align 8 .b8 depot[16];\nmov.u64 %rd8, depot;\ncvta.local.u64 %rd8, %rd8;\nst.u64 [%rd8+8], %rd5;\n\
             ld.u64 %rd9, [%rd8+8];",
            &[5 << 40],
            5 << 40,
        ),
        (
            "st.global.u32 [%rd2+8], %r2;\natom.global.cas.b32 %r8, [%rd2+8], %r3, %r4;\nld.volatile.global.u32 %r9, [%rd2+8];",
            &[5, 5, 9],
            9,
        ),
        ("st.global.u32 [%rd2+8], %r2;\natom.global.cas.b32 %r9, [%rd2+8], %r3, %r4;", &[5, 6, 9], 5),
        (
            "st.global.u32 [%rd2+8], %r2;\natom.relaxed.gpu.global.max.s32 %r8, [%rd2+8], %r3;\nld.global.u32 %r9, [%rd2+8];",
            &[0xffff_ffff, 3],
            3,
        ),
        (
            "st.global.u64 [%rd2+8], %rd5;\nred.global.add.u64 [%rd2+8], %rd6;\nld.global.u64 %rd9, [%rd2+8];",
            &[1 << 40, 3],
            (1 << 40) + 3,
        ),
    ]);
}

#[test]
fn lanes() {
    let each = |body: &str| {
        let store = "add.s64 %rd5, %rd2, %rd3;\nst.global.u32 [%rd5], %r9;";
        run(&format!("{body}\n{store}"), 1, 32, &[0; 32]).unwrap_or_else(|fault| panic!("{fault}")).words
    };
    let expect = |of: fn(u32) -> u32| (0..32).map(of).collect::<Vec<u32>>();
    assert_eq!(each("shfl.sync.bfly.b32 %r9, %r1, 5, 31, -1;"), expect(|i| i ^ 5));
    assert_eq!(each("shfl.sync.idx.b32 %r9, %r1, 37, 31, -1;"), expect(|_| 5));
    assert_eq!(each("shfl.sync.up.b32 %r9, %r1, 3, 0, -1;"), expect(|i| if i < 3 { i } else { i - 3 }));
    assert_eq!(each("shfl.sync.down.b32 %r9, %r1, 3, 31, -1;"), expect(|i| if i > 28 { i } else { i + 3 }));
    // Segments of eight lanes: c is the clamp, 7, below and the segment mask, 24, above.
    assert_eq!(each("shfl.sync.down.b32 %r9, %r1, 3, 0x1807, -1;"), expect(|i| if i % 8 > 4 { i } else { i + 3 }));
    assert_eq!(each("shfl.sync.idx.b32 %r9, %r1, 2, 0x1807, -1;"), expect(|i| i / 8 * 8 + 2));
    let valid = "shfl.sync.up.b32 %r8|%p1, %r1, 3, 0, -1;\nselp.u32 %r9, 1, 0, %p1;";
    assert_eq!(each(valid), expect(|i| u32::from(i >= 3)));
    let odd = "and.b32 %r2, %r1, 1;\nsetp.ne.u32 %p1, %r2, 0;\n";
    assert_eq!(each(&format!("{odd}vote.sync.ballot.b32 %r9, %p1, -1;")), expect(|_| 0xaaaa_aaaa));
    for (mode, holds) in [("all", 0), ("any", 1), ("uni", 0)] {
        let vote = format!("{odd}vote.sync.{mode}.pred %p2, %p1, -1;\nselp.u32 %r9, 1, 0, %p2;");
        assert_eq!(each(&vote), vec![holds; 32], "{mode}");
    }
    assert_eq!(each("redux.sync.add.s32 %r9, %r1, -1;"), expect(|_| 496));
    assert_eq!(each("sub.u32 %r2, %r1, 7;\nredux.sync.min.s32 %r9, %r2, -1;"), expect(|_| 7u32.wrapping_neg()));
    assert_eq!(each("redux.sync.max.u32 %r9, %r1, -1;"), expect(|_| 31));
    assert_eq!(each("redux.sync.xor.b32 %r9, %r1, -1;"), expect(|_| 0));
    assert_eq!(each("activemask.b32 %r9;"), expect(|_| !0));
    assert_eq!(each("mov.u32 %r2, %laneid;\nmov.u32 %r3, %ntid.x;\nadd.u32 %r9, %r2, %r3;"), expect(|i| i + 32));
}

#[test]
fn what_is_not_determined_is_not_executed() {
    for instruction in [
        "add.f32 %r9, %r2, %r3;",
        "mul.f16 %rs4, %rs1, %rs2;",
        "add.rn.ftz.f32 %r9, %r2, %r3;",
        "div.full.f32 %r9, %r2, %r3;",
        "ex2.approx.f32 %r9, %r2;",
        "call f;",
        "ld.global.nc.u32 %r9, [%rd1];",
        "cvt.s16.s32 %r9, %r2;",
        "bar.sync 16;",
        "mov.u32 %r9, 010;",
        "addc.s64 %rd5, %rd1, %rd1;",
        "addc.u32 %r9, %r2, %r3;",
        "selp.u32 %r9, 1, 0, %p3;",
        "bar.sync 0, 64;",
        "bar.warp.sync 1;",
        "cvt.sat.f32.f32 %r9, %r2;",
        "div.u32 %r9, %r2, %r3;",
    ] {
        let log = refusal(&module(&format!(
            "mov.u32 %r2, 1;\nmov.u32 %r3, 1;\nmov.u16 %rs1, 1;\nmov.u16 %rs2, 1;\n{instruction}"
        )));
        assert!(log.starts_with("line 24:"), "{instruction}: {log}");
    }
}

#[test]
fn tf32_is_rounded_to_nearest_away_from_zero() {
    let convert = |bits: u32| {
        let body = "ld.global.f32 %f1, [%rd1];\ncvt.rna.tf32.f32 %r9, %f1;\nst.global.u32 [%rd2], %r9;";
        run(body, 1, 1, &[bits]).unwrap_or_else(|fault| panic!("{fault}")).words[0]
    };
    for (from, to) in [
        (0x3f80_0fff, 0x3f80_0000),
        (0x3f80_1000, 0x3f80_2000),
        (0xbf80_1000, 0xbf80_2000),
        (0x3f80_2000, 0x3f80_2000),
        (0x3fff_f000, 0x4000_0000),
        (0x7f7f_f000, 0x7f80_0000),
        (0xff80_0000, 0xff80_0000),
        (0x8000_0000, 0x8000_0000),
        (0x0000_1000, 0x0000_2000),
        (0x7fc0_0001, 0x7fff_e000),
    ] {
        assert_eq!(convert(from), to, "{from:#010x}");
    }
}

/// Loads the fragments of a product of matrices: a lane's four words of A, two of B and four of the accumulator, one
/// after another.
const FRAGMENTS: &str = "mul.wide.u32 %rd4, %r1, 40;\nadd.s64 %rd5, %rd1, %rd4;\nadd.s64 %rd6, %rd2, %rd4;\n\
    ld.global.b32 %r2, [%rd5];\nld.global.b32 %r3, [%rd5+4];\nld.global.b32 %r4, [%rd5+8];\nld.global.b32 %r5, [%rd5+12];\n\
    ld.global.b32 %r6, [%rd5+16];\nld.global.b32 %r7, [%rd5+20];\nld.global.f32 %f1, [%rd5+24];\n\
    ld.global.f32 %f2, [%rd5+28];\nld.global.f32 %f3, [%rd5+32];\nld.global.f32 %f4, [%rd5+36];\n";
const MULTIPLY: &str = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r2, %r3, %r4, %r5}, \
    {%r6, %r7}, {%f1, %f2, %f3, %f4};\n";
const KEEP: &str = "st.global.f32 [%rd6], %f1;\nst.global.f32 [%rd6+4], %f2;\nst.global.f32 [%rd6+8], %f3;\n\
    st.global.f32 [%rd6+12], %f4;";

/// The layout of the ISA's figures, by numbers of which no two are the same.
#[test]
fn a_product_of_matrices() {
    let a = |row: usize, k: usize| (1 + row * 8 + k) as f32;
    let b = |k: usize, column: usize| (3 + 5 * column + 41 * k) as f32;
    let c = |row: usize, column: usize| 0.25 + (row * 8 + column) as f32;
    let mut words = vec![0; 320];
    for (lane, words) in words.chunks_exact_mut(10).enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        let mine = [
            a(g, t),
            a(g + 8, t),
            a(g, t + 4),
            a(g + 8, t + 4),
            b(t, g),
            b(t + 4, g),
            c(g, 2 * t),
            c(g, 2 * t + 1),
            c(g + 8, 2 * t),
            c(g + 8, 2 * t + 1),
        ];
        words.copy_from_slice(&mine.map(f32::to_bits));
    }
    let found = run(&[FRAGMENTS, MULTIPLY, KEEP].concat(), 1, 32, &words).unwrap_or_else(|fault| panic!("{fault}"));
    for (lane, words) in found.words.chunks_exact(10).enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for (i, (row, column)) in
            [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)].into_iter().enumerate()
        {
            // All of it is exact.
            let expected = (0..8).fold(c(row, column), |sum, k| sum + a(row, k) * b(k, column));
            assert_eq!(f32::from_bits(words[i]), expected, "row {row}, column {column}");
        }
    }
}

#[test]
fn a_store_takes_the_low_bytes_of_a_wider_register() {
    check(&[("st.global.b32 [%rd2], %rd5;\nld.global.u32 %r9, [%rd2];", &[0x1_2345_6789], 0x2345_6789)]);
}
