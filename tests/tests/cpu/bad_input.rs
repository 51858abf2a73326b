//! Bad input: each a typed error whose text says what was wrong and what is allowed.

use gradwire::{
    Codec, Device, Dtype, Eden, Error, Gradient, Layout, NonFinite, Payload, PayloadError, Qsgd, Quantile, Seed,
    SparsePayload, TopK, Uniform, wire,
};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::formula::CODECS;

fn text(error: &Error) -> String {
    error.to_string()
}

fn plan_error(codec: &impl Codec) -> Error {
    codec.plan(1000, Dtype::F32).expect_err("the setting is out of range")
}

#[test]
fn buckets_out_of_range_say_what_is_allowed() {
    for got in [0, 1, 16, 33, 100, 16384] {
        for error in [plan_error(&Qsgd::bits(4).bucket(got)), plan_error(&Uniform::bits(4).bucket(got))] {
            assert!(matches!(error, Error::Bucket { got: g } if g == got), "{error:?}");
            assert_eq!(
                text(&error),
                format!("bucket must be a power of two from 32 to 8192, or the whole tensor; got {got}")
            );
        }
    }
}

#[test]
fn widths_out_of_range_say_what_is_allowed() {
    for got in [0, 1, 9, 15, 17, 32, u32::MAX] {
        let error = plan_error(&Qsgd::bits(got));
        assert!(matches!(error, Error::Bits { got: g, .. } if g == got), "{error:?}");
        assert!(text(&error).contains("2 to 8, or 16") && text(&error).contains(&got.to_string()), "{error}");
    }
    for got in [0, 9, 17] {
        let error = plan_error(&Uniform::bits(got));
        assert!(matches!(error, Error::Bits { .. }) && text(&error).contains("1 to 8"), "{error}");
    }
}

#[test]
fn a_width_that_is_not_packed_holds_no_levels() {
    for codec in [gradwire::CodecId::Qsgd, gradwire::CodecId::Uniform] {
        assert_eq!([0, 17, 32, 33, 40, u32::MAX].map(|bits| codec.max_levels(bits)), [0; 6], "{codec:?}");
    }
    assert_eq!(gradwire::CodecId::Qsgd.max_levels(16), 32767);
    assert_eq!(gradwire::CodecId::Uniform.max_levels(8), 255);
}

#[test]
fn quantile_buckets_that_no_block_sorts_are_refused() {
    for levels in [0, 1, 2, 3, 60, 65, 512, 1 << 31, u32::MAX] {
        let error = plan_error(&Quantile::levels(levels));
        assert!(matches!(error, Error::Setting { got, .. } if got == f64::from(levels)), "{error:?}");
        assert!(text(&error).contains("a power of two from 4 to 256"), "{error}");
    }
    for got in [0, 1, 128, 300, 4097, 8192, usize::MAX] {
        let error = plan_error(&Quantile::levels(64).bucket(got));
        assert!(matches!(error, Error::SortedBucket { got: Some(found) } if found == got), "{error:?}");
        assert!(text(&error).contains("from 256 to 4096"), "{error}");
    }
}

#[test]
fn buckets_and_widths_that_eden_does_not_have_are_refused() {
    for got in [0, 5, 8, 16, u32::MAX] {
        let error = plan_error(&Eden::bits(got));
        assert!(matches!(error, Error::Bits { got: found, .. } if found == got), "{error:?}");
        assert!(text(&error).contains("1 to 4"), "{error}");
    }
    for got in [0, 16, 300, 16_384, usize::MAX] {
        let error = plan_error(&Eden::bits(4).bucket(got));
        assert!(matches!(error, Error::Bucket { got: found } if found == got), "{error:?}");
    }
    // Codes of whole tensors: no setting makes them, and a payload that claims them is refused.
    let mut payload = Device::cpu().encode(&Eden::bits(4), &[1.0f32; 40], Seed::new(1)).expect("valid").into_bytes();
    payload[7] = 255;
    let error = Payload::from_bytes(&payload).expect_err("no tensor is one bucket");
    assert!(matches!(error, PayloadError::Field { field: "bucket", found: 255, .. }), "{error:?}");
}

#[test]
fn level_counts_out_of_range_say_what_is_allowed() {
    for levels in [0, 32768, u32::MAX] {
        let error = plan_error(&Qsgd::levels(levels));
        assert!(matches!(error, Error::Levels { got, .. } if got == levels), "{error:?}");
    }
    for levels in [1, 2, 3, 7, 8, 127, 128, 32767] {
        let plan = Qsgd::levels(levels).plan(1, Dtype::F32).expect("every count from 1 to 32767 has a width");
        assert_eq!(plan.header().levels(), levels);
    }
}

#[test]
fn a_tensor_that_is_too_long_is_refused_before_anything_is_allocated() {
    let error = Qsgd::bits(4).plan((1 << 31) + 1, Dtype::F32).expect_err("2^31 is the most");
    assert!(matches!(error, Error::TooLong { .. }) && text(&error).contains("2^31"), "{error}");
}

#[test]
fn feedback_over_a_codec_that_diverges_is_refused_with_the_remedy() {
    let plan = Qsgd::bits(4).plan(10_000, Dtype::F32).expect("a valid setting");
    assert!(plan.omega() > 1.0);
    let error = plan.with_feedback().expect_err("omega is 2.6");
    assert!(matches!(error, Error::FeedbackDiverges { .. }) && text(&error).contains("contractive()"), "{error}");
    assert!(
        text(&error).ends_with(", or 5 bits or more with all their levels, or buckets of 128 elements or fewer"),
        "{error}"
    );
    assert!(Qsgd::bits(4).contractive().plan(10_000, Dtype::F32).and_then(|p| p.with_feedback()).is_ok());
    assert!(Qsgd::bits(8).plan(10_000, Dtype::F32).and_then(|p| p.with_feedback()).is_ok(), "omega is 0.008");
    let nearest = Uniform::bits(1).nearest().contractive().plan(10_000, Dtype::F32).and_then(|p| p.with_feedback());
    let error = nearest.expect_err("nearest rounding is biased; scaling does not make it a contraction");
    assert!(text(&error).contains("nearest"), "{error}");
    // A codec that has no contraction is not told to make one.
    let float = gradwire::Float::e2m1().scaled().bucket(256);
    for float in [float, float.nearest()] {
        let error = float.plan(10_000, Dtype::F32).and_then(|p| p.with_feedback()).expect_err("omega is 1.82");
        let settings = "use 8 bits or more with all their levels, or buckets of 128 elements or fewer";
        assert!(text(&error).ends_with(settings), "{error}");
    }
}

#[test]
fn the_settings_that_a_refusal_of_feedback_names_are_the_nearest_that_are_admitted() {
    let admitted = |codec: Qsgd, n: usize| codec.plan(n, Dtype::F32).and_then(|p| p.with_feedback()).is_ok();
    let after =
        |text: &str, before: &str| -> Option<usize> { text.split_once(before)?.1.split(' ').next()?.parse().ok() };
    let mut named = [0; 2];
    for (codec, n) in [2, 3, 4].into_iter().flat_map(|bits| {
        let sizes = [32, 64, 128, 512, 8192];
        sizes
            .into_iter()
            .flat_map(move |size| [(Qsgd::bits(bits).bucket(size), 10_000), (Qsgd::bits(bits).bucket(size), 40)])
    }) {
        let Err(error) = codec.plan(n, Dtype::F32).and_then(|p| p.with_feedback()) else { continue };
        let (text, header) = (text(&error), *codec.plan(n, Dtype::F32).expect("valid").header());
        let gradwire::Bucket::Of(size) = header.bucket() else { panic!("a bucket") };
        if let Some(bits) =
            after(&text, "omega), or ").map(|bits| bits as u32).filter(|_| text.contains("bits or more"))
        {
            assert!(admitted(Qsgd::bits(bits).bucket(size as usize), n), "{text}");
            assert!(!admitted(Qsgd::bits(bits - 1).bucket(size as usize), n), "{text}");
            named[0] += 1;
        }
        if let Some(bucket) = after(&text, "buckets of ") {
            assert!(admitted(Qsgd::bits(header.bits()).bucket(bucket), n), "{text}");
            assert!(!admitted(Qsgd::bits(header.bits()).bucket(2 * bucket), n), "{text}");
            named[1] += 1;
        }
    }
    assert!(named[0] > 10 && named[1] > 2, "{named:?}");
}

#[test]
fn a_plan_with_feedback_says_that_the_residual_is_missing() {
    let device = Device::cpu();
    let gradient = cases::normal(1000, 1);
    let plan = Qsgd::bits(8).plan(1000, Dtype::F32).expect("valid");
    let with = plan.with_feedback().expect("omega is small");
    let error = device.encode_plan(&with, (&gradient).into(), &mut [], cases::seed()).expect_err("no residual");
    assert_eq!(
        text(&error),
        "the plan has error feedback, and no residual was handed over: give it one of 1000 elements, zeros before the first \
         step, or make the plan without feedback"
    );
    let error = device.encode_plan(&plan, (&gradient).into(), &mut [0.0; 7], cases::seed()).expect_err("no feedback");
    assert!(matches!(error, Error::NoFeedback { found: 7 }) && text(&error).contains("with_feedback()"), "{error}");
    // Nothing to hand over is a residual too, of no elements.
    let none = Qsgd::bits(8).plan(0, Dtype::F32).and_then(|p| p.with_feedback()).expect("valid");
    device.encode_plan(&none, Gradient::F32(&[]), &mut [], cases::seed()).expect("a payload of nothing");
    let layout = Layout::packed([600, 400]).expect("valid");
    let model = device.model_plan(&Qsgd::bits(8), &layout, Dtype::F32).and_then(|p| p.with_feedback()).expect("valid");
    let error = device.encode_model(&model, &gradient, &mut [], cases::seed()).expect_err("no residual");
    assert!(matches!(error, Error::NoResidual { expected: 1000, .. }), "{error:?}");
}

#[test]
fn each_kind_of_payload_names_the_reader_of_the_other() {
    let device = Device::cpu();
    let dense = valid_payload();
    let sparse = device.encode_sparse(&TopK::count(3), &cases::normal(100, 1), cases::seed()).expect("valid");
    let error = Payload::from_bytes(sparse.as_bytes()).expect_err("sparse");
    assert_eq!(error.to_string(), "it is a sparse payload; SparsePayload::from_bytes reads it");
    let error = SparsePayload::from_bytes(&dense).expect_err("dense");
    assert_eq!(error.to_string(), "it is a dense payload; Payload::from_bytes reads it");
    let mut unknown = dense;
    unknown[5] = 9;
    let listed: String = CODECS.iter().map(|tests| format!("{} ({}), ", tests.page.tag, tests.codec.name())).collect();
    for error in [Payload::from_bytes(&unknown).err(), SparsePayload::from_bytes(&unknown).err()] {
        let error = error.expect("no codec has this number");
        assert!(error.to_string().contains(&format!("codec is 9, and {listed}or 3 (sparse) is allowed")), "{error}");
    }
}

#[test]
fn a_merge_whose_residual_overflows_is_refused_and_changes_nothing() {
    let device = Device::cpu();
    let payload = |g: &[f32; 2]| device.encode_sparse(&TopK::count(2), g, cases::seed()).expect("valid");
    let (a, b) = (payload(&[3e38, 2.9e38]), payload(&[0.0, 0.0]));
    let codec = TopK::count(1).non_finite(NonFinite::Error);
    let mut residual = [0.0, 3e38];
    let error = device.merge_sparse(&codec, &a, &b, &mut residual, cases::seed()).expect_err("5.9e38 is no f32");
    assert!(matches!(error, Error::NotFinite { index: 1 }), "{error:?}");
    assert_eq!(residual, [0.0, 3e38], "the residual is as it was");
    let mut residual = [1.0, 2.0];
    device.merge_sparse(&codec, &a, &b, &mut residual, cases::seed()).expect("it fits");
    assert_eq!(residual, [1.0, 2.9e38]);
}

#[test]
fn unscaled_feedback_would_indeed_diverge() {
    // The theorem behind the refusal, seen at work: the residual of the unscaled codec grows without end, that of the
    // contraction does not. 2 bits, L2 norm, buckets of 512: omega is 22.
    let device = Device::cpu();
    let gradient = cases::normal(512, 3);
    let energy = |scaled: bool| {
        let mut residual = vec![0.0f32; gradient.len()];
        for step in 0..200 {
            let seed = Seed::new(1).step(step);
            if scaled {
                let codec = Qsgd::bits(2).l2().contractive();
                device.encode_with_feedback(&codec, &gradient, &mut residual, seed).expect("a contraction");
            } else {
                let total: Vec<f32> = gradient.iter().zip(&residual).map(|(g, e)| g + e).collect();
                let payload = device.encode(&Qsgd::bits(2).l2(), &total, seed).expect("finite");
                let decoded = device.decode(&payload).expect("a valid payload");
                residual = total.iter().zip(decoded).map(|(v, d)| v - d).collect();
                if residual.iter().any(|r| !r.is_finite() || r.abs() > 1e30) {
                    return f64::INFINITY;
                }
            }
        }
        residual.iter().map(|r| f64::from(*r) * f64::from(*r)).sum::<f64>()
    };
    let signal: f64 = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
    let delta = 1.0 / (1.0 + 512f64.sqrt());
    assert!(energy(true) < 4.0 / (delta * delta) * signal);
    assert!(energy(false) > 1e6 * signal);
}

#[test]
fn buffers_of_another_length_are_refused_with_both_numbers() {
    let device = Device::cpu();
    let gradient = cases::normal(1000, 1);
    let payload = device.encode(&Qsgd::bits(4), &gradient, cases::seed()).expect("a valid setting");
    let mut short = vec![7.0f32; 999];
    for error in [
        device.decode_into(&payload, &mut short).expect_err("too short"),
        device.decode_add(&payload, 1.0, &mut short).expect_err("too short"),
        device.encode_with_feedback(&Qsgd::bits(8), &gradient, &mut short, cases::seed()).expect_err("too short"),
    ] {
        assert!(matches!(error, Error::Length { found: 999, expected: 1000, .. }), "{error:?}");
        assert!(text(&error).contains("999") && text(&error).contains("1000"), "{error}");
    }
    assert!(short.iter().all(|v| *v == 7.0), "nothing was written");
    let plan = Qsgd::bits(4).plan(1000, Dtype::F16).expect("a valid setting");
    let error = device.encode_plan(&plan, (&gradient).into(), &mut [], cases::seed()).expect_err("another type");
    assert!(matches!(error, Error::Dtype { .. }) && text(&error).contains("f16"), "{error}");
}

#[test]
fn a_nan_under_the_error_policy_names_the_element_and_leaves_the_residual() {
    let device = Device::cpu();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for index in [0usize, 255, 70_000, 99_999] {
            let mut gradient = cases::normal(100_000, 2);
            gradient[index] = bad;
            gradient[99_999] = bad;
            let codec = Qsgd::bits(8).non_finite(NonFinite::Error);
            let mut residual = cases::normal(100_000, 3);
            let before = residual.clone();
            let error =
                device.encode_with_feedback(&codec, &gradient, &mut residual, cases::seed()).expect_err("not finite");
            assert!(matches!(error, Error::NotFinite { index: i } if i == index as u64), "{error:?}");
            assert_eq!(residual, before, "the residual is as it was");
            assert!(device.encode(&codec, &gradient, cases::seed()).is_err());
        }
    }
    // Two finite numbers whose sum is not.
    let codec = Uniform::bits(8).non_finite(NonFinite::Error);
    let mut residual = vec![f32::MAX; 64];
    let error =
        device.encode_with_feedback(&codec, &[f32::MAX; 64], &mut residual, cases::seed()).expect_err("overflow");
    assert!(matches!(error, Error::NotFinite { index: 0 }), "{error:?}");
}

#[test]
fn a_nan_under_propagation_spoils_its_bucket_and_no_other() {
    let device = Device::cpu();
    let mut gradient = cases::normal(2048, 2);
    gradient[700] = f32::NAN;
    let mut residual = vec![0.25f32; 2048];
    let payload =
        device.encode_with_feedback(&Qsgd::bits(8), &gradient, &mut residual, cases::seed()).expect("propagates");
    let decoded = device.decode(&payload).expect("a valid payload");
    for (i, value) in decoded.iter().enumerate() {
        assert_eq!(value.is_nan(), (512..1024).contains(&i), "element {i}");
        assert_eq!(
            residual[i] == 0.25,
            (512..1024).contains(&i),
            "the residual of a spoiled bucket stays; element {i}"
        );
    }
}

#[test]
fn payloads_of_different_kinds_are_not_summed() {
    let device = Device::cpu();
    let encode = |codec: &Qsgd, n: usize| device.encode(codec, &vec![1.0f32; n], cases::seed()).expect("valid");
    let base = encode(&Qsgd::bits(4), 1000);
    let mut out = vec![0.0; 1000];
    for (other, what) in [
        (encode(&Qsgd::bits(4), 1001), "length"),
        (encode(&Qsgd::bits(5), 1000), "code width"),
        (encode(&Qsgd::bits(4).bucket(64), 1000), "bucket"),
        (encode(&Qsgd::levels(5), 1000), "level count"),
        (device.encode(&Uniform::bits(4), &[1.0f32; 1000], cases::seed()).expect("valid"), "codec"),
    ] {
        let error = device.decode_sum(&[base.clone(), other], 1.0, &mut out).expect_err("another kind");
        assert!(matches!(error, Error::Mixed { index: 1, what: w } if w == what), "{error:?}");
    }
    device.decode_sum(&[] as &[Payload], 1.0, &mut out).expect("a sum of nothing is zeros");
}

fn valid_payload() -> Vec<u8> {
    let gradient = cases::normal(3000, 4);
    Device::cpu().encode(&Qsgd::bits(5).bucket(128), &gradient, cases::seed()).expect("valid").into_bytes()
}

#[test]
fn truncated_payloads_say_how_much_is_missing() {
    let bytes = valid_payload();
    for len in 0..bytes.len() {
        let error = Payload::from_bytes(&bytes[..len]).expect_err("truncated");
        assert!(matches!(error, PayloadError::Truncated { found, .. } if found == len as u64), "{len}: {error:?}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let error = Payload::from_bytes(&longer).expect_err("too long");
    assert!(matches!(error, PayloadError::Trailing { .. }), "{error:?}");
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = valid_payload();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = Payload::from_bytes(&damaged).expect_err("damaged");
            if at >= wire::HEADER_BYTES {
                assert!(matches!(error, PayloadError::Checksum { .. }), "byte {at} bit {bit}: {error:?}");
            }
        }
    }
}

#[test]
fn foreign_and_future_payloads_are_named_as_such() {
    let bytes = valid_payload();
    let with = |at: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[at] = value;
        Payload::from_bytes(&changed).expect_err("refused")
    };
    assert!(matches!(with(0, b'P'), PayloadError::Magic { .. }));
    let error = with(4, 2);
    assert!(matches!(error, PayloadError::Version { found: 2 }) && error.to_string().contains("version 1"), "{error}");
    for (at, value, name) in [
        (5, 9, "codec"),
        (6, 0, "bits"),
        (6, 17, "bits"),
        (7, 4, "bucket"),
        (7, 14, "bucket"),
        (15, 1, "elements"),
        (17, 255, "levels"),
        (18, 3, "dtype"),
        (19, 4, "flags"),
        (20, 1, "words"),
        (20, 2, "entropy"),
        (23, 1, "reserved"),
        (27, 1, "reserved"),
    ] {
        let error = with(at, value);
        assert!(matches!(error, PayloadError::Field { field, .. } if field == name), "byte {at}: {error:?}");
    }
}

#[test]
fn a_header_that_asks_for_two_billion_elements_costs_nothing() {
    // 2^31 elements of 16 bits would be 4 GiB; the length is checked before anything is allocated.
    let mut bytes = valid_payload();
    bytes[8..16].copy_from_slice(&(1u64 << 31).to_le_bytes());
    let error = Payload::from_bytes(&bytes).expect_err("far too short");
    assert!(matches!(error, PayloadError::Truncated { expected, .. } if expected > 1 << 30), "{error:?}");
}

#[test]
fn bodies_of_random_bits_decode_without_harm() {
    // A sealed body may hold any scalars and codes: whoever made it knows how to compute a checksum.
    let mut random = Random(99);
    let device = Device::cpu();
    for case in cases::settings() {
        let gradient = cases::normal(1000, 5);
        let payload = device.encode(&case.codec(), &gradient, cases::seed()).expect("valid");
        let header = *payload.header();
        let mut bytes = payload.into_bytes();
        for _ in 0..20 {
            bytes[wire::HEADER_BYTES..].iter_mut().for_each(|b| *b = random.bits() as u8);
            let head = header.write(&bytes[wire::HEADER_BYTES..]);
            bytes[..wire::HEADER_BYTES].copy_from_slice(&head);
            let payload = Payload::from_bytes(&bytes).expect("sealed");
            let mut out = gradient.clone();
            device.decode_add(&payload, 0.5, &mut out).expect("decodes");
            let decoded = device.decode(&payload).expect("decodes");
            let odd = decoded.iter().find(|v| v.is_nan() && v.to_bits() != 0x7fc0_0000);
            assert_eq!(odd, None, "one NaN only");
        }
    }
}
