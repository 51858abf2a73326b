//! The ways to hand things over: codecs behind a box, payloads that are borrowed, buffers that are kept, sums of sparse
//! payloads.

use gradwire::{
    Codec, DecodeMode, Device, Dtype, Error, Gradient, Layout, NonFinite, Payload, PayloadError, PayloadView, Qsgd,
    Seed, SparsePayload, TopK, Uniform,
};
use gradwire_tests::cases;
use gradwire_tests::low_rank::bits;
use gradwire_tests::meter;
use gradwire_tests::sparse;

#[test]
fn a_codec_behind_a_box_encodes() {
    let device = Device::cpu();
    let (x, seed) = (cases::normal(1000, 1), cases::seed());
    let codecs: [Box<dyn Codec>; 2] = [Box::new(Qsgd::bits(8)), Box::new(Uniform::bits(8))];
    let expected = [device.encode(&Qsgd::bits(8), &x, seed), device.encode(&Uniform::bits(8), &x, seed)];
    for (codec, expected) in codecs.iter().zip(expected) {
        let codec: &dyn Codec = &**codec;
        assert_eq!(device.encode(codec, &x, seed).expect("valid"), expected.expect("valid"));
        device.encode_with_feedback(codec, &x, &mut vec![0.0; 1000], seed).expect("valid");
        let layout = Layout::packed([1000]).expect("valid");
        device.model_plan(codec, &layout, Dtype::F32).expect("valid");
    }
}

#[test]
fn what_is_held_mutably_is_a_gradient() {
    let (device, codec, seed) = (Device::cpu(), Qsgd::bits(4), cases::seed());
    let mut x = [0.5f32; 64];
    let expected = device.encode(&codec, &x, seed).expect("valid");
    assert_eq!(device.encode(&codec, &mut x, seed).expect("valid"), expected);
    assert_eq!(device.encode(&codec, &mut x[..], seed).expect("valid"), expected);
    assert_eq!(device.encode(&codec, &mut x.to_vec(), seed).expect("valid"), expected);
    let mut halves = vec![half::f16::ONE; 3];
    assert_eq!(Gradient::from(&mut halves).dtype(), Dtype::F16);
}

#[test]
fn a_borrowed_payload_is_read_as_an_owned_one() {
    let device = Device::cpu();
    let (x, y) = (cases::normal(3000, 1), cases::normal(3000, 2));
    let [a, b] = [&x, &y].map(|g| device.encode(&Qsgd::bits(5).bucket(128), g, cases::seed()).expect("valid"));
    let view = PayloadView::from_bytes(a.as_bytes()).expect("valid");
    assert_eq!((view, view.len(), view.header()), (a.view(), 3000, a.header()));
    let decoded = device.decode(&a).expect("valid");
    assert_eq!(bits(&device.decode(&view).expect("valid")), bits(&decoded));
    let (mut of_owned, mut of_views) = (x.clone(), x.clone());
    device.decode_add(&a, 0.25, &mut of_owned).expect("valid");
    device.decode_add(&view, 0.25, &mut of_views).expect("valid");
    assert_eq!(bits(&of_views), bits(&of_owned));
    device.decode_sum(&[a.clone(), b.clone()], 0.5, &mut of_owned).expect("valid");
    device.decode_sum(&[&a, &b], 0.5, &mut of_views).expect("valid");
    assert_eq!(bits(&of_views), bits(&of_owned));
    device.decode_sum(&[view, b.view()], 0.5, &mut of_views).expect("valid");
    assert_eq!(bits(&of_views), bits(&of_owned));
    // Of a model, too.
    let plan = device.model_plan(&Qsgd::bits(5).bucket(128), &Layout::packed([3000]).expect("valid"), Dtype::F32);
    let plan = plan.expect("valid");
    device.decode_model(&plan, DecodeMode::Sum(0.5), &[&[view], &[b.view()]], &mut of_views).expect("valid");
    assert_eq!(bits(&of_views), bits(&of_owned));
    device.decode_model(&plan, DecodeMode::Sum(0.5), &[&[&a], &[&b]], &mut of_views).expect("valid");
    assert_eq!(bits(&of_views), bits(&of_owned));
}

#[test]
fn a_borrowed_payload_is_checked_and_not_copied() {
    let device = Device::cpu();
    let sent = device.encode(&Qsgd::bits(8), &cases::normal(100_000, 1), cases::seed()).expect("valid").into_bytes();
    meter::bounded("PayloadView::from_bytes", 0, || PayloadView::from_bytes(&sent).map(|_| ()).expect("valid"));
    for spoil in 0..sent.len().min(500) {
        let mut bytes = sent.clone();
        bytes[spoil] ^= 1;
        let (view, payload) = (PayloadView::from_bytes(&bytes).err(), Payload::from_bytes(&bytes).err());
        assert!(view.is_some() && view == payload, "byte {spoil}: {view:?} and {payload:?}");
    }
    assert!(matches!(PayloadView::from_bytes(&sent[1..]), Err(PayloadError::Magic { .. })));
}

#[test]
fn an_encode_into_memory_that_is_kept_allocates_nothing_of_its_size() {
    // Small enough for the calling thread, whose allocations are metered.
    let device = Device::cpu();
    let (x, plan) = (cases::normal(60_000, 1), Qsgd::bits(8).plan(60_000, Dtype::F32).expect("valid"));
    let expected = device.encode(&Qsgd::bits(8), &x, cases::seed()).expect("valid");
    let mut kept = vec![7; 100_000];
    for _ in 0..3 {
        meter::bounded("encode_into", 4096, || {
            device.encode_into(&Qsgd::bits(8), &x, cases::seed(), &mut kept).expect("valid");
        });
        assert_eq!(kept, expected.as_bytes());
    }
    let mut message = vec![7; plan.payload_bytes() + 9];
    let place = &mut message[5..5 + plan.payload_bytes()];
    meter::bounded("encode_plan_into", 4096, || {
        device.encode_plan_into(&plan, (&x).into(), &mut [], cases::seed(), place).expect("valid");
    });
    assert_eq!(&message[5..5 + plan.payload_bytes()], expected.as_bytes());
    assert_eq!((&message[..5], &message[5 + plan.payload_bytes()..]), (&[7; 5][..], &[7; 4][..]));
    // Feedback goes with it.
    let (mut mine, mut theirs) = (cases::normal(60_000, 2), cases::normal(60_000, 2));
    let expected = device.encode_with_feedback(&Qsgd::bits(8), &x, &mut theirs, cases::seed()).expect("valid");
    let fused = plan.with_feedback().expect("it converges");
    let place = &mut message[..plan.payload_bytes()];
    device.encode_plan_into(&fused, (&x).into(), &mut mine, cases::seed(), place).expect("valid");
    assert_eq!((&place[..], bits(&mine)), (expected.as_bytes(), bits(&theirs)));
}

fn a_failed_encode_leaves_the_memory(device: &Device) {
    let mut x = cases::normal(5000, 1);
    x[4321] = f32::NAN;
    let before: Vec<u8> = (0..9000u32).map(|i| i as u8).collect();
    // Of one bucket, whose statistic would be written before the codes.
    for codec in [Qsgd::bits(8), Qsgd::bits(8).whole_tensor()] {
        let codec = codec.non_finite(NonFinite::Error);
        for len in [0, 100, 5000, 9000] {
            let mut kept = before[..len].to_vec();
            let error = device.encode_into(&codec, &x, cases::seed(), &mut kept).expect_err("not finite");
            assert!(matches!(error, Error::NotFinite { index: 4321 }), "{error:?}");
            assert_eq!(kept, before[..len], "{codec:?} on {device}");
        }
        let plan = codec.plan(5000, Dtype::F32).expect("valid");
        let mut place = before[..plan.payload_bytes()].to_vec();
        let outcome = device.encode_plan_into(&plan, (&x).into(), &mut [], cases::seed(), &mut place);
        assert!(outcome.is_err());
        let outcome = device.encode_plan_into(&plan, (&x).into(), &mut [], cases::seed(), &mut place[1..]);
        assert!(matches!(outcome, Err(Error::Length { what: "output", .. })), "{outcome:?}");
        assert_eq!(place, before[..plan.payload_bytes()]);
    }
}

/// Payloads whose entries meet, and some that are empty, quantized or rounded.
fn payloads(device: &Device, n: usize) -> Vec<SparsePayload> {
    let codecs = [
        TopK::fraction(0.3),
        TopK::fraction(0.01),
        TopK::count(0),
        TopK::fraction(0.3).then(Qsgd::bits(4)),
        TopK::fraction(0.2).values(Dtype::Bf16),
    ];
    let (_, some_nan) = sparse::FILLS[14];
    let mut all = Vec::new();
    for (w, codec) in (0u64..).zip(&codecs) {
        all.push(device.encode_sparse(codec, &cases::normal(n, w), Seed::new(w)).expect("valid"));
    }
    all.push(device.encode_sparse(&TopK::fraction(0.1), &some_nan(n), Seed::new(1)).expect("valid"));
    all
}

fn a_sum_of_sparse_payloads_is_one_after_another_onto_zeros(device: &Device) {
    let cpu = Device::cpu();
    for n in [1, 1000, 20_011] {
        let payloads = payloads(&cpu, n);
        let forwards: Vec<&SparsePayload> = payloads.iter().collect();
        let backwards: Vec<&SparsePayload> = payloads.iter().rev().collect();
        for order in [forwards, backwards] {
            for weight in [1.0, -0.3, 0.0] {
                let mut expected = vec![0.0; n];
                for payload in &order {
                    cpu.decode_sparse_add(payload, weight, &mut expected).expect("valid");
                }
                let mut sum = vec![f32::NAN; n];
                device.decode_sparse_sum(&order, weight, &mut sum).expect("valid");
                assert_eq!(bits(&sum), bits(&expected), "{n}, {weight} on {device}");
            }
        }
        for payload in &payloads {
            let (mut once, mut expected) = (vec![f32::NAN; n], vec![0.0; n]);
            device.decode_sparse_weighted_into(payload, -0.3, &mut once).expect("valid");
            cpu.decode_sparse_add(payload, -0.3, &mut expected).expect("valid");
            assert_eq!(bits(&once), bits(&expected), "{n} on {device}");
        }
    }
}

fn sums_that_make_no_sense_are_refused(device: &Device) {
    let encode = |n: usize| device.encode_sparse(&TopK::count(1), &cases::normal(n, 1), Seed::new(1)).expect("valid");
    let (nine, ten) = (encode(9), encode(10));
    let mut output = [7.0; 9];
    let error = device.decode_sparse_sum(&[&nine, &ten], 1.0, &mut output).expect_err("of two lengths");
    assert!(matches!(error, Error::Mixed { index: 1, what: "length" }), "{error:?}");
    let error = device.decode_sparse_sum(&[&ten], 1.0, &mut output).expect_err("another length");
    assert!(matches!(error, Error::Length { found: 9, expected: 10, .. }), "{error:?}");
    assert_eq!(output, [7.0; 9]);
    device.decode_sparse_sum(&[] as &[SparsePayload], 1.0, &mut output).expect("a sum of nothing");
    assert_eq!(output, [0.0; 9]);
    device.decode_sparse_sum(&[encode(1), encode(1)], 1.0, &mut output[..1]).expect("owned ones");
}

gradwire_tests::on_every_device!(
    a_failed_encode_leaves_the_memory,
    a_sum_of_sparse_payloads_is_one_after_another_onto_zeros,
    sums_that_make_no_sense_are_refused,
);
