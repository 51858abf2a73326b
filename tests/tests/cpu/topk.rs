//! Top-k on the CPU, at every vector width: equality with the oracle, properties, bad input.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{
    Device, Dtype, Error, IndexFormat, Natural, NonFinite, OneBit, PayloadError, Qsgd, Quantile, Seed, Segment,
    SparsePayload, Ternary, TopK, Uniform, ValueFormat,
};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::sparse;

fn devices() -> Vec<Device> {
    Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()).map(Device::from_cpu).collect()
}

fn all(outcomes: impl IntoIterator<Item = Result<u64, String>>) {
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_input_gives_the_oracles_entries() {
    let device = Device::cpu();
    let pairs = sparse::FILLS.into_iter().flat_map(|fill| sparse::LENGTHS.map(|n| (fill, n)));
    all(pairs.map(|(fill, n)| sparse::against_oracle(&device, fill, n)));
}

#[test]
fn every_vector_width_gives_the_oracles_entries() {
    for device in devices() {
        all(sparse::FILLS.map(|fill| sparse::against_oracle(&device, fill, 70_001)));
    }
}

#[test]
fn feedback_keeps_what_is_not_sent() {
    let device = Device::cpu();
    all(sparse::FILLS.into_iter().flat_map(|fill| [100, 70_001].map(|n| sparse::feedback(&device, fill, n))));
}

#[test]
fn halves_merges_and_quantized_values() {
    let device = Device::cpu();
    all([1000, 70_001].map(|n| sparse::halves(&device, n)));
    all([2, 3, 4, 5, 8].map(|workers| sparse::merges(&device, workers, 400, 8)));
    all([300, 70_001].map(|n| sparse::quantized(&device, n)));
}

#[test]
fn blocks_keep_the_largest_of_each() {
    let device = Device::cpu();
    let x = cases::normal(10_050, 3);
    let payload = device.encode_sparse(&TopK::blocks(1000, 7), &x, Seed::new(1)).expect("valid");
    let expected: Vec<u32> = x
        .chunks(1000)
        .enumerate()
        .flat_map(|(b, block)| sparse::largest(block, 7).into_iter().map(move |i| i + 1000 * b as u32))
        .collect();
    assert_eq!(payload.indices(), expected);
    let mut residual = x.clone();
    let doubled =
        device.encode_sparse_with_feedback(&TopK::blocks(1000, 7), &x, &mut residual, Seed::new(1)).expect("valid");
    assert_eq!(doubled.indices(), expected, "x + x is largest where x is");
    // A block larger than the gradient is the gradient.
    let whole = device.encode_sparse(&TopK::blocks(1 << 40, 7), &x, Seed::new(1)).expect("valid");
    assert_eq!(whole.indices(), sparse::largest(&x, 7));
}

#[test]
fn segments_keep_their_own_number() {
    let device = Device::cpu();
    let x = cases::normal(200_000, 4);
    let segment = |elements, k| Segment { elements, k };
    let segments =
        [segment(7, 7), segment(0, 0), segment(150_000, 1500), segment(993, 0), segment(1, 1), segment(48_999, 3)];
    let codec = TopK::segments(&segments);
    let mut expected = Vec::new();
    let mut start = 0;
    for Segment { elements, k } in segments {
        let part = &x[start..start + elements as usize];
        expected.extend(sparse::largest(part, k as usize).into_iter().map(|i| i + start as u32));
        start += elements as usize;
    }
    let payload = device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid");
    assert_eq!(payload.indices(), expected);
    let mut residual = vec![0.0; x.len()];
    let with = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
    assert_eq!(with, payload);
    let sent = device.decode_sparse(&with).expect("decodes");
    assert!((0..x.len()).all(|i| (sent[i] + residual[i]).to_bits() == x[i].to_bits()), "nothing is lost");
    // Twice the same entries: each segment's union holds as many as it keeps.
    let merged = device.merge_sparse(&codec, &payload, &payload, &mut residual, Seed::new(1)).expect("valid");
    assert_eq!(merged.indices(), expected);
    let error = device.encode_sparse(&codec, &x[1..], Seed::new(1)).expect_err("one element short");
    assert!(matches!(error, Error::Length { found: 200_000, expected: 199_999, .. }), "{error:?}");
    let error = device.encode_sparse(&TopK::segments(&[segment(3, 4)]), &x[..3], Seed::new(1)).expect_err("too few");
    assert!(matches!(error, Error::TooFew { asked: 4, found: 3 }), "{error:?}");
    let huge = TopK::segments(&[segment(u64::MAX, 1), segment(u64::MAX, 1)]);
    assert!(matches!(device.encode_sparse(&huge, &x, Seed::new(1)), Err(Error::Length { .. })));
}

#[test]
fn a_threshold_keeps_what_reaches_it_or_all() {
    let device = Device::cpu();
    let x = [0.5f32, -2.0, 1.0, f32::NAN, -0.99, 1.0];
    let above = |t: f32| device.encode_sparse(&TopK::above(t), &x, Seed::new(1)).expect("valid");
    assert_eq!(above(1.0).indices(), [1, 2, 3, 5]);
    assert_eq!(above(f32::INFINITY).indices(), [3]);
    assert_eq!(above(0.0).indices().len(), 6);
    // All but one of many: a bit per element and four bytes a value are more than all values.
    let mut many = vec![1.0f32; 100_000];
    many[7] = 0.1;
    let payload = device.encode_sparse(&TopK::above(0.5), &many, Seed::new(1)).expect("valid");
    assert_eq!(payload.header().index_format(), IndexFormat::All);
    assert_eq!(payload.as_bytes().len(), 32 + 400_000);
    assert_eq!(device.decode_sparse(&payload).expect("decodes"), many);
}

#[test]
fn settings_out_of_range_are_typed_errors() {
    let device = Device::cpu();
    let x = [1.0f32, 2.0, 3.0];
    let encode = |codec: TopK| device.encode_sparse(&codec, &x, Seed::new(1));
    let error = encode(TopK::count(4)).expect_err("more than there are");
    assert!(matches!(error, Error::TooFew { asked: 4, found: 3 }), "{error:?}");
    assert_eq!(encode(TopK::count(4).clamped()).expect("clamped").indices(), [0, 1, 2]);
    assert!(matches!(encode(TopK::blocks(2, 3)), Err(Error::TooFew { asked: 3, found: 2 })));
    for part in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(encode(TopK::fraction(part)), Err(Error::Keep { .. })), "{part}");
    }
    assert!(matches!(encode(TopK::above(f32::NAN)), Err(Error::Keep { .. })));
    assert!(matches!(encode(TopK::above(-1.0)), Err(Error::Keep { .. })));
    assert!(matches!(encode(TopK::blocks(0, 0)), Err(Error::Keep { .. })));
    assert!(matches!(encode(TopK::count(1).then(Qsgd::bits(9))), Err(Error::Bits { .. })));
    assert_eq!(encode(TopK::fraction(0.34)).expect("valid").indices(), [1, 2], "rounded up");
    let just_above = device.encode_sparse(&TopK::fraction(0.500_000_000_3), &vec![1.0f32; 1_000_000], Seed::new(1));
    assert_eq!(just_above.expect("valid").indices().len(), 500_001);
    let tenth = device.encode_sparse(&TopK::fraction(0.07), &vec![1.0f32; 100], Seed::new(1)).expect("valid");
    assert_eq!(tenth.indices().len(), 7, "0.07 * 100 is 7.000000000000001 in binary64");
}

#[test]
fn a_failed_encode_leaves_the_residual() {
    let device = Device::cpu();
    let mut x = cases::normal(5000, 9);
    x[4321] = f32::INFINITY;
    let before = cases::normal(5000, 10);
    let mut residual = before.clone();
    let guarded = TopK::count(50).non_finite(NonFinite::Error);
    let error = device.encode_sparse_with_feedback(&guarded, &x, &mut residual, Seed::new(1)).expect_err("infinite");
    assert!(matches!(error, Error::NotFinite { index: 4321 }), "{error:?}");
    let error = device.encode_sparse(&guarded, &x, Seed::new(1)).expect_err("infinite");
    assert!(matches!(error, Error::NotFinite { index: 4321 }), "{error:?}");
    // A quantizer whose error feedback would amplify.
    let coarse = TopK::count(4000).then(Qsgd::bits(2).bucket(8192));
    let error = device.encode_sparse_with_feedback(&coarse, &x, &mut residual, Seed::new(1)).expect_err("diverges");
    assert!(matches!(error, Error::FeedbackDiverges { .. }), "{error:?}");
    // The same quantizer over the fifty values that there are to quantize contracts.
    let mut scratch = before.clone();
    let fine = TopK::count(50).then(Qsgd::bits(8).whole_tensor());
    device.encode_sparse_with_feedback(&fine, &cases::normal(5000, 9), &mut scratch, Seed::new(1)).expect("few values");
    let error = device.encode_sparse_with_feedback(&TopK::count(1), &x, &mut residual[1..], Seed::new(1));
    assert!(matches!(error, Err(Error::Length { what: "residual", .. })));
    assert_eq!(residual, before);
    let short = device.encode_sparse(&TopK::count(1), &x[..9], Seed::new(1)).expect("valid");
    assert!(matches!(device.decode_sparse_add(&short, 1.0, &mut residual), Err(Error::Length { what: "output", .. })));
    let long = device.encode_sparse(&TopK::count(1), &x, Seed::new(1)).expect("valid");
    let mixed = device.merge_sparse(&TopK::count(1), &short, &long, &mut residual, Seed::new(1));
    assert!(matches!(mixed, Err(Error::Mixed { .. })));
    assert_eq!(residual, before);
}

#[test]
fn rounded_values_leave_their_rest() {
    let device = Device::cpu();
    let x = cases::normal(3000, 12);
    for codec in [
        TopK::count(100).values(Dtype::F16),
        TopK::count(100).values(Dtype::Bf16),
        TopK::count(100).then(Uniform::bits(8)),
        TopK::count(100).then(Qsgd::bits(8).bucket(128)),
        TopK::count(100).then(OneBit::new()),
        TopK::count(100).then(Natural::compression()),
        TopK::count(100).then(Quantile::levels(16)),
        TopK::count(100).then(Ternary::nearest(1.0).bucket(32).base3()),
    ] {
        let mut residual = vec![0.0f32; 3000];
        let sent = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("valid");
        assert_eq!(sent.indices(), sparse::largest(&x, 100));
        let decoded = device.decode_sparse(&sent).expect("decodes");
        let mut rounded = 0;
        for i in 0..3000 {
            assert_eq!(residual[i], x[i] - decoded[i], "{codec:?}, element {i}");
            rounded += usize::from(decoded[i] != 0.0 && residual[i] != 0.0);
        }
        assert!(rounded > 50, "{codec:?}: {rounded} of 100 values were rounded");
    }
}

#[test]
fn a_sum_that_is_nan_has_the_same_bits_at_every_width() {
    let (quiet, other) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002));
    for (g, e) in [(quiet, other), (f32::INFINITY, f32::NEG_INFINITY), (f32::from_bits(0xff80_0001), 1.0)] {
        for device in devices() {
            let mut residual = vec![e; 40];
            let codec = TopK::count(7);
            let sent =
                device.encode_sparse_with_feedback(&codec, &[g; 40], &mut residual, Seed::new(1)).expect("valid");
            let values = &sent.as_bytes()[sent.as_bytes().len() - 28..];
            assert_eq!(values, 0x7fc0_0000u32.to_le_bytes().repeat(7), "{device}: {g} + {e}");
            assert!(residual.iter().all(|v| v.to_bits() == e.to_bits()), "{device}: {g} + {e}");
        }
    }
}

#[test]
fn one_nan_does_not_stay_in_the_residual() {
    let device = Device::cpu();
    for codec in [TopK::count(300).then(Qsgd::bits(8)), TopK::count(300).then(Uniform::bits(8)), TopK::count(300)] {
        for odd in [f32::NAN, f32::INFINITY] {
            let mut residual = vec![0.0; 10_000];
            let clean = cases::normal(10_000, 21);
            let mut first = clean.clone();
            first[77] = odd;
            for step in 0..4 {
                let gradient = if step == 0 { &first } else { &clean };
                let sent = device.encode_sparse_with_feedback(&codec, gradient, &mut residual, Seed::new(1).step(step));
                let sent = device.decode_sparse(&sent.expect("valid")).expect("decodes");
                assert!(residual.iter().all(|v| v.is_finite()), "{codec:?}, {odd}, step {step}");
                assert_eq!(step == 0, sent.iter().any(|v| !v.is_finite()), "{codec:?}, {odd}, step {step}");
            }
        }
    }
}

#[test]
fn what_f16_cannot_hold_is_sent_in_parts() {
    let device = Device::cpu();
    for (codec, largest) in [(Dtype::F16, 65504.0f32), (Dtype::Bf16, f32::from_bits(0x7f7f_0000))] {
        let mut residual = vec![0.0; 4];
        let x = [1.0f32, largest * 1.5, -2.0, 3.0].map(|v| v.min(f32::MAX));
        let codec = TopK::count(1).values(codec).non_finite(NonFinite::Error);
        let sent = device.encode_sparse_with_feedback(&codec, &x, &mut residual, Seed::new(1)).expect("finite");
        assert_eq!(device.decode_sparse(&sent).expect("decodes")[1], largest);
        assert_eq!(residual[1], x[1] - largest);
        device.encode_sparse_with_feedback(&codec, &[0.0f32; 4], &mut residual, Seed::new(1)).expect("still finite");
    }
}

#[test]
fn merges_select_as_they_are_told() {
    let device = Device::cpu();
    let sent = |seed| device.encode_sparse(&TopK::count(40), &cases::normal(1000, seed), Seed::new(1)).expect("valid");
    let (a, b) = (sent(31), sent(32));
    let sum: Vec<f32> = {
        let (a, b) = (device.decode_sparse(&a).expect("decodes"), device.decode_sparse(&b).expect("decodes"));
        a.iter().zip(b).map(|(a, b)| a + b).collect()
    };
    for codec in [TopK::blocks(100, 3), TopK::above(0.025), TopK::count(30).then(Qsgd::bits(8).bucket(32))] {
        let mut residual = vec![0.0; 1000];
        let merged = device.merge_sparse(&codec, &a, &b, &mut residual, Seed::new(1)).expect("valid");
        let expected: Vec<u32> = match merged.indices().len() {
            30 if codec == TopK::blocks(100, 3) => (0..10)
                .flat_map(|b| {
                    sparse::largest(&sum[100 * b..100 * (b + 1)], 3).into_iter().map(move |i| i + 100 * b as u32)
                })
                .collect(),
            30 => sparse::largest(&sum, 30),
            _ => (0..1000).filter(|i| sum[*i as usize].abs() >= 0.025).collect(),
        };
        assert_eq!(merged.indices(), expected, "{codec:?}");
        let update = device.decode_sparse(&merged).expect("decodes");
        assert!((0..1000).all(|i| update[i] + residual[i] == sum[i]
            || (update[i] + residual[i] - sum[i]).abs() <= sum[i].abs() * f32::EPSILON));
    }
}

#[test]
fn small_blocks_and_empty_payloads_of_any_length() {
    let device = Device::cpu();
    let x = cases::normal(200_001, 5);
    let all = device.encode_sparse(&TopK::blocks(1, 1), &x, Seed::new(1)).expect("valid");
    assert_eq!(all.indices().len(), x.len());
    let quarter = device.encode_sparse(&TopK::blocks(4, 1), &x, Seed::new(1)).expect("valid");
    assert_eq!(quarter.indices().len(), 50_001);
    let mut empty = device.encode_sparse(&TopK::count(0), &x, Seed::new(1)).expect("valid").into_bytes();
    empty[8..16].copy_from_slice(&(1u64 << 31).to_le_bytes());
    let empty = SparsePayload::from_vec(sealed(empty)).expect("no entry of many");
    assert_eq!((empty.len(), empty.indices().len()), (1 << 31, 0));
    let mut out = vec![0.0; 5];
    assert!(matches!(device.decode_sparse_into(&empty, &mut out), Err(Error::Length { .. })));
}

#[test]
fn decode_add_touches_entries_alone() {
    let device = Device::cpu();
    let payload = device.encode_sparse(&TopK::count(2), &[4.0f32, 1.0, -2.0, 0.5], Seed::new(1)).expect("valid");
    let mut out = [f32::NAN, 10.0, 10.0, -0.0];
    device.decode_sparse_add(&payload, 0.5, &mut out[..]).expect("fits");
    assert!(out[0].is_nan());
    assert_eq!((out[1], out[2], out[3].to_bits()), (10.0, 9.0, 0x8000_0000));
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()));
        crc
    })
}

/// The same bytes with the checksum that they should have.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut covered = bytes[..28].to_vec();
    covered.extend_from_slice(&bytes[32..]);
    bytes[28..32].copy_from_slice(&crc(&covered).to_le_bytes());
    bytes
}

#[test]
fn hostile_payloads_are_refused_or_mean_something() {
    let device = Device::cpu();
    let mut random = Random(5);
    let (mut refused, mut accepted) = (0, 0);
    for (n, codec) in [
        (300usize, TopK::count(3)),
        (300, TopK::count(30)),
        (300, TopK::count(200)),
        (300, TopK::count(300)),
        (300, TopK::count(20).values(Dtype::F16)),
        (300, TopK::count(40).then(Qsgd::bits(4).bucket(32))),
        (0, TopK::count(0)),
    ] {
        let valid = device.encode_sparse(&codec, &cases::normal(n, 2), Seed::new(3)).expect("valid");
        let bytes = valid.as_bytes();
        assert_eq!(sealed(bytes.to_vec()), bytes, "the checksum is what the page says");
        for len in 0..bytes.len() {
            SparsePayload::from_bytes(&bytes[..len]).expect_err("truncated");
        }
        for _ in 0..20_000 {
            let mut damaged = bytes.to_vec();
            for _ in 0..1 + random.bits() % 3 {
                let at = (random.bits() as usize) % damaged.len();
                damaged[at] = random.bits() as u8;
            }
            match random.bits() % 8 {
                0 => damaged.truncate((random.bits() as usize) % (damaged.len() + 1)),
                1 => damaged.push(0),
                _ => {}
            }
            if damaged.len() >= 32 {
                damaged = sealed(damaged);
            }
            match SparsePayload::from_bytes(&damaged) {
                Err(_) => refused += 1,
                Ok(payload) => {
                    accepted += 1;
                    assert!(payload.indices().windows(2).all(|pair| pair[0] < pair[1]));
                    assert!(payload.indices().iter().all(|i| (*i as usize) < payload.len()));
                    if payload.len() <= 1 << 20 {
                        assert_eq!(device.decode_sparse(&payload).expect("decodes").len(), payload.len());
                    }
                }
            }
        }
    }
    assert!(refused > 10_000 && accepted > 10_000, "{refused} refused, {accepted} accepted");
}

#[test]
fn a_header_of_two_billion_entries_costs_nothing() {
    let device = Device::cpu();
    let quantized = TopK::count(40).then(Qsgd::bits(4).bucket(32));
    let mut bytes = device.encode_sparse(&quantized, &cases::normal(40, 2), Seed::new(3)).expect("valid").into_bytes();
    // All of 2^31 entries: no index bytes, and values that would be a payload of their own.
    bytes[8..16].copy_from_slice(&(1u64 << 31).to_le_bytes());
    bytes[20..24].copy_from_slice(&(1u32 << 31).to_le_bytes());
    let error = SparsePayload::from_bytes(&sealed(bytes)).expect_err("the values are 40");
    assert!(matches!(error, PayloadError::Field { field: "elements", found: 40, .. }), "{error:?}");
}

#[test]
fn the_two_kinds_of_payload_name_each_other() {
    let device = Device::cpu();
    let sparse = device.encode_sparse(&TopK::count(1), &[1.0f32; 9], Seed::new(1)).expect("valid");
    let dense = device.encode(&Qsgd::bits(4), &[1.0f32; 9], Seed::new(1)).expect("valid");
    let error = gradwire::Payload::from_bytes(sparse.as_bytes()).expect_err("sparse");
    assert!(error.to_string().contains("SparsePayload::from_bytes"), "{error}");
    let error = SparsePayload::from_bytes(dense.as_bytes()).expect_err("dense");
    assert!(error.to_string().contains("Payload::from_bytes"), "{error}");
    assert_eq!(sparse.header().values, ValueFormat::Plain(Dtype::F32));
}
