//! Plans cut into small passes give the bytes of one pass, and the invariants of their shape.

use gradwire::backend::cpu::Cpu;
use gradwire::plan::{Limits, Pass};
use gradwire::session::{Role, Session, Sizes};
use gradwire::{Codec, DecodeMode, DecodePlan, Dtype, EncodePlan, Error, Layout, ModelPlan, Qsgd};
use gradwire_tests::cases::{self, Case};
use gradwire_tests::oracle::Kind;
use gradwire_tests::require;
use proptest::prelude::*;

/// The smallest limits that any part fits: 2^19 elements a pass.
const SMALL: Limits = Limits { binding_bytes: 4 << 19, groups: 1 << 16, ..Limits::NONE };

fn encode(plan: &EncodePlan, x: &[f32], limits: &Limits) -> Vec<Vec<u8>> {
    let sizes = plan.sizes();
    let mut session = Cpu::default().session(sizes).expect("memory");
    session.write(Role::Input, 0, bytemuck::cast_slice(x)).expect("fits");
    // SAFETY: all passes of a plan, in order.
    unsafe { session.run_trusted(&plan.passes(cases::seed(), limits).expect("within limits")) }.expect("runs");
    [Role::Scalars, Role::Codes, Role::Residual]
        .map(|role| {
            let mut out = vec![0; sizes.of(role) as usize];
            session.read(role, 0, &mut out).expect("fits");
            out
        })
        .to_vec()
}

#[test]
fn small_limits_change_the_passes_and_not_the_bytes() {
    let n = (1 << 20) + 12_345;
    let x = cases::normal(n, 12);
    for case in [
        Case::new(Kind::QsgdMax, 4, Some(512)),
        Case::new(Kind::QsgdL2, 3, None),
        Case::new(Kind::Uniform, 7, Some(8192)),
        Case::new(Kind::Uniform, 2, None),
    ] {
        let case = Case { contractive: true, ..case };
        let plan = case.codec().plan(n, Dtype::F32).and_then(|p| p.with_feedback()).expect("a contraction");
        let whole = encode(&plan, &x, &Limits::NONE);
        let parts = encode(&plan, &x, &SMALL);
        assert!(whole == parts, "{}: the cut changes the bytes", case.label());

        for (payloads, mode) in [(1, DecodeMode::Write), (1, DecodeMode::Add(0.7)), (3, DecodeMode::Sum(0.3))] {
            let decode = DecodePlan::new(*plan.header(), payloads);
            let run = |limits: &Limits| {
                let sizes = decode.sizes();
                let mut session = Cpu::default().session(sizes).expect("memory");
                for k in 0..u64::from(payloads) {
                    session.write(Role::Scalars, k * decode.scalar_stride(), &whole[0]).expect("fits");
                    session.write(Role::Codes, k * decode.code_stride(), &whole[1]).expect("fits");
                }
                session.write(Role::Output, 0, bytemuck::cast_slice(&x)).expect("fits");
                session.run(&decode.passes(mode, limits).expect("within limits")).expect("runs");
                let mut out = vec![0; n * 4];
                session.read(Role::Output, 0, &mut out).expect("fits");
                out
            };
            assert!(run(&Limits::NONE) == run(&SMALL), "{}: {mode:?}: the cut changes the bytes", case.label());
        }
    }
}

#[test]
fn limits_below_the_smallest_part_are_a_typed_error() {
    let plan = Qsgd::bits(4).plan(1000, Dtype::F32).expect("valid");
    let error = plan
        .passes(cases::seed(), &Limits { binding_bytes: 1 << 20, groups: 65535, ..Limits::NONE })
        .expect_err("too small");
    assert!(matches!(error, Error::Limit { limit: "max_storage_buffer_binding_size", .. }), "{error:?}");
    let error = plan
        .passes(cases::seed(), &Limits { binding_bytes: 1 << 27, groups: 63, ..Limits::NONE })
        .expect_err("too few");
    assert!(matches!(error, Error::Limit { limit: "max_compute_workgroups_per_dimension", .. }), "{error:?}");
}

#[test]
fn passes_of_a_larger_plan_are_refused_by_a_session() {
    let (small, large) = (Qsgd::bits(4).plan(1000, Dtype::F32), Qsgd::bits(4).plan(2000, Dtype::F32));
    let (small, large) = (small.expect("valid"), large.expect("valid"));
    let mut session = Cpu::default().session(small.sizes()).expect("memory");
    let error = session.run(&large.passes(cases::seed(), &Limits::NONE).expect("no limits")).expect_err("too small");
    assert!(matches!(error, Error::Length { found: 4000, expected: 8000, .. }), "{error:?}");
}

#[test]
fn more_payloads_than_a_sum_takes_are_a_typed_error() {
    let plan = Qsgd::bits(16).bucket(32).plan(1 << 31, Dtype::F32).expect("valid");
    for count in [65_537, u32::MAX] {
        let error =
            DecodePlan::new(*plan.header(), count).passes(DecodeMode::Sum(1.0), &Limits::NONE).expect_err("too many");
        assert!(error.to_string().contains("at most 65536"), "{error}");
    }
    DecodePlan::new(*plan.header(), 65_536)
        .passes(DecodeMode::Sum(1.0), &Limits::NONE)
        .expect("as many as are allowed");
}

#[test]
fn tensors_of_different_settings_are_no_model() {
    /// Wide codes for short tensors, narrow ones for long.
    struct ByLength(fn(usize) -> EncodePlan);
    impl Codec for ByLength {
        fn plan(&self, n: usize, _: Dtype) -> Result<EncodePlan, Error> {
            Ok((self.0)(n))
        }
    }
    let layout = Layout::from_shapes([&[32][..], &[1 << 20]]).expect("two tensors");
    let refused: [(&str, ByLength); 4] = [
        ("code width", ByLength(|n| Qsgd::bits(if n < 100 { 16 } else { 2 }).plan(n, Dtype::F32).expect("valid"))),
        ("type", ByLength(|n| Qsgd::bits(4).plan(n, if n < 100 { Dtype::F16 } else { Dtype::F32 }).expect("valid"))),
        (
            "bucket",
            ByLength(|n| Qsgd::bits(4).bucket(if n < 100 { 32 } else { 64 }).plan(n, Dtype::F32).expect("valid")),
        ),
        (
            "norm",
            ByLength(|n| if n < 100 { Qsgd::bits(4).l2() } else { Qsgd::bits(4) }.plan(n, Dtype::F32).expect("valid")),
        ),
    ];
    for (different, codec) in refused {
        let error = ModelPlan::new(&codec, &layout, Dtype::F32, &Limits::NONE).expect_err("they differ");
        assert!(matches!(error, Error::Uneven { index: 1, what } if what == different), "{error:?}");
    }
    let shorter = ByLength(|n| Qsgd::bits(4).plan(n / 2, Dtype::F32).expect("valid"));
    let error = ModelPlan::new(&shorter, &layout, Dtype::F32, &Limits::NONE).expect_err("of another length");
    assert!(matches!(error, Error::Length { found: 16, expected: 32, .. }), "{error:?}");
}

#[test]
fn sizes_that_no_memory_has_are_typed_errors() {
    for device in require::devices() {
        for bytes in [u64::MAX, u64::MAX - 2, u64::MAX - 3] {
            let opened = device.session(Sizes([bytes, 0, 0, 0, 0, 0, 0, 0, 0]));
            assert!(matches!(opened.err(), Some(Error::Backend { .. } | Error::Limit { .. })), "{device}, {bytes}");
        }
        let mut session = device.session(Sizes([64; 9])).expect("there is room");
        let onto_itself = session.time_copy(Role::Input, Role::Input, 1);
        assert!(matches!(onto_itself, Err(Error::Memory { .. })), "{device}: {onto_itself:?}");
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let settings = cases::settings();
    (0..settings.len()).prop_map(move |i| settings[i])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the length and the limits: bindings stay within the sizes, start on 256 bytes, respect the limits, and
    /// the passes cover every element once.
    #[test]
    fn passes_stay_within_sizes_and_limits(case in any_case(), n in 0usize..40_000_000, half in any::<bool>()) {
        let dtype = if half { Dtype::Bf16 } else { Dtype::F32 };
        let plan = case.codec().plan(n, dtype).expect("valid");
        let limits = Limits { binding_bytes: 128 << 20, groups: 65535, ..Limits::NONE };
        let passes = plan.passes(cases::seed(), &limits).expect("default limits");
        check(&passes, &plan.sizes(), &limits)?;
        let decode = DecodePlan::new(*plan.header(), 3);
        let passes = decode.passes(DecodeMode::Sum(1.0), &limits).expect("default limits");
        check(&passes, &decode.sizes(), &limits)?;
        let covered: u64 = passes.iter().map(|p| p.bindings().output.bytes / 4).sum();
        prop_assert!(covered == n as u64 || covered == 3 * n as u64);
    }
}

fn check(passes: &[Pass], sizes: &Sizes, limits: &Limits) -> Result<(), TestCaseError> {
    for pass in passes {
        let b = pass.bindings();
        let spans = [b.input, b.residual, b.scalars, b.codes, b.workspace, b.status, b.output];
        prop_assert!(pass.groups() >= 1 && pass.groups() <= limits.groups);
        for (role, span) in Role::ALL.into_iter().zip(spans) {
            prop_assert!(span.offset.is_multiple_of(256), "{role:?} of {pass:?}");
            prop_assert!(span.offset + span.bytes <= sizes.of(role), "{role:?} of {pass:?}");
            prop_assert!(span.bytes <= limits.binding_bytes, "{role:?} of {pass:?}");
        }
    }
    Ok(())
}
