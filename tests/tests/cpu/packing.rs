//! Packed codes, Elias codes, those in base 3 and places: of every level, packed and unpacked as a bit by bit oracle does it,
//! short enough, and safe from hostile bytes.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::plan::Limits;
use gradwire::{
    BackendKind, Codec, DecodeMode, Device, Dtype, Entropy, Error, Float, Gradient, Layout, ModelPlan, OneBit, Payload,
    PayloadError, PayloadView, Qsgd, Seed, Ternary, TopK, Uniform,
};
use gradwire_kernels::arith::elias::{
    class, exponent, exponent_of, level, middle, middle_bits, rest, rest_bits, unary_bits,
};
use gradwire_tests::cases::{Random, normal};
use gradwire_tests::oracle::elias::{self as bits, Shape};
use gradwire_tests::oracle::packed as oracle;
use gradwire_tests::{Depth, data, is_ptx_machine, require};

const WIDTHS: [u32; 8] = [2, 3, 4, 5, 6, 7, 8, 16];
/// INCEPTIONN's bound.
const BOUND: f64 = 1.0 / 1024.0;

/// A payload of these bytes after the scalars, or with a changed header.
fn forged(payload: &Payload, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = payload.as_bytes().to_vec();
    change(&mut bytes);
    bits::seal(&mut bytes);
    bytes
}

/// A payload whose codes are random bytes.
fn random_codes(bits: u32, n: usize, seed: u64) -> Payload {
    codes(bits, n, seed, |random| random.bits() as u8)
}

/// A payload whose codes are these bytes.
fn codes(bits: u32, n: usize, seed: u64, byte_of: impl Fn(&mut Random) -> u8) -> Payload {
    let blank = Device::cpu().encode(&Qsgd::bits(bits), &vec![0.0f32; n], Seed::new(1)).expect("encodes");
    let from = Shape::of(blank.as_bytes()).codes_at;
    let mut random = Random(seed);
    let bytes = forged(&blank, |bytes| bytes[from..].iter_mut().for_each(|byte| *byte = byte_of(&mut random)));
    Payload::from_vec(bytes).expect("a payload")
}

/// The ways to pack codes of so many bits, and their tags.
fn ways(bits: u32) -> impl Iterator<Item = (u8, Entropy)> {
    let all = [(1, Entropy::Elias), (3, Entropy::Delta), (4, Entropy::Sparse), (2, Entropy::Base3)];
    all.into_iter().take(if bits == 2 { 4 } else { 3 })
}

/// Payloads of every width, of levels of every kind.
fn payloads(lengths: &[usize], real: usize) -> Vec<(String, Payload)> {
    let device = Device::cpu();
    let digits = data::digits();
    let mut all = Vec::new();
    for bits in WIDTHS {
        let codec = Qsgd::bits(bits);
        let mut note =
            |what: &str, n: usize, payload: Payload| all.push((format!("{bits} bits, {what}, {n}"), payload));
        for &n in lengths {
            let encode = |codec: &Qsgd, x: &[f32]| device.encode(codec, x, Seed::new(3)).expect("encodes");
            note("normal", n, encode(&codec, &normal(n, 5)));
            note("normal by L2", n, encode(&codec.l2(), &normal(n, 6)));
            note("zeros", n, encode(&codec, &vec![0.0; n]));
            note("minus zeros", n, encode(&codec, &vec![-0.0; n]));
            note("largest", n, encode(&codec, &vec![-1.0; n]));
            note("random codes", n, random_codes(bits, n, 7 + n as u64));
            note(
                "runs of zeros",
                n,
                codes(bits, n, 8 + n as u64, |random| if random.bits().is_multiple_of(19) { 64 } else { 0 }),
            );
        }
        let few = &digits[..real.min(digits.len())];
        note("a network's", few.len(), device.encode(&codec.l2().whole_tensor(), few, Seed::new(4)).expect("encodes"));
    }
    for codec in [Float::int8(), Float::int16()].map(|codec| codec.error_bound(BOUND)) {
        for &n in lengths {
            let x: Vec<f32> = normal(n, 6).into_iter().map(|v| v * 0.02).collect();
            all.push((format!("{codec:?}, {n}"), device.encode(&codec, &x, Seed::new(3)).expect("encodes")));
        }
    }
    all
}

/// The CPU with each vector width that it has.
fn cpus() -> impl Iterator<Item = Device> {
    Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()).map(Device::from_cpu)
}

fn check(device: &Device, label: &str, fixed: &Payload) {
    for (tag, entropy) in ways(fixed.header().bits()) {
        check_one(device, &format!("{label}, {}", entropy.name()), fixed, entropy, tag);
    }
}

fn check_one(device: &Device, label: &str, fixed: &Payload, entropy: Entropy, tag: u8) {
    let packed = device.pack(fixed, entropy).unwrap_or_else(|e| panic!("{device}, {label}: {e}"));
    assert!(
        packed.as_bytes() == oracle::pack(fixed.as_bytes(), tag),
        "{device}, {label}: packed otherwise than by the page"
    );
    Payload::from_bytes(packed.as_bytes()).unwrap_or_else(|e| panic!("{device}, {label}: {e}"));
    let back = device.unpack(&packed).unwrap_or_else(|e| panic!("{device}, {label}: {e}"));
    assert!(
        back.as_bytes() == oracle::unpack(packed.as_bytes()),
        "{device}, {label}: unpacked otherwise than by the page"
    );
    // Nothing but signs of zeros was lost.
    assert!(device.pack(&back, entropy).expect("packs") == packed, "{device}, {label}: what came back packs otherwise");
    let (a, b) = (device.decode(fixed).expect("decodes"), device.decode(&packed).expect("decodes"));
    let same = |(a, b): (&f32, &f32)| {
        a.to_bits() == b.to_bits() || (*a == 0.0 && b.to_bits() == 0) || (a.is_nan() && b.is_nan())
    };
    assert!(a.iter().zip(&b).all(same), "{device}, {label}: other values");
}

/// Every u32.
#[test]
fn every_level_comes_back() {
    let sweep = |first: u64| {
        for l in (first..1 << 32).step_by(2) {
            let (l, q) = (l as u32, exponent(l as u32));
            assert!(q <= 32 && u64::from(rest(l, q)) < 1 << q, "{l}");
            assert_eq!(level(q, rest(l, q)), l);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| sweep(0));
        sweep(1);
    });
    assert_eq!(level(32, 0), u32::MAX);
}

/// Elias 1975: |gamma(k)| = 2 floor(log2 k) + 1, |delta(k)| = floor(log2 k) + 2 floor(log2(floor(log2 k) + 1)) + 1.
/// Both are of k = level + 1, and a level that is not zero has a sign.
#[test]
fn codes_of_every_exponent_are_as_long_as_elias_says_and_come_back() {
    // Bits above those that are read may be anything.
    let noise = |bits: u32| if bits < 32 { u32::MAX << bits } else { 0 };
    for q in 0..32 {
        for l in [(1u64 << q) - 1, (1 << q) + (1 << q) / 2 - 1, (2 << q) - 2].map(|l| l as u32) {
            let (found, sign) = (exponent(l), u32::from(l > 0));
            let (log, log_log) = ((f64::from(l) + 1.0).log2().floor(), (f64::from(q) + 1.0).log2().floor());
            assert_eq!(f64::from(unary_bits(found) + rest_bits(found) - sign), 2.0 * log + 1.0, "gamma of {l}");
            let r = class(found);
            // A level that any width holds has a class of 4 at most.
            let middle_length = if q < 31 { middle_bits(r) } else { r };
            let bits = unary_bits(r) + middle_length + rest_bits(found) - sign;
            assert_eq!(f64::from(bits), log + 2.0 * log_log + 1.0, "delta of {l}");
            if q < 31 {
                assert_eq!(exponent_of(r, middle(q) | noise(r)), q);
            }
        }
    }
    // Omega (the same, section 3) sends floor(log2 k) in the way in which it sends k: 1 + S(k) bits, S(k) = q + 1 +
    // S(q), S(1) = 0. Of all levels of all widths it is shorter than the shorter one of the others for the largest
    // alone.
    let omega = |k: u32| {
        let (mut bits, mut k) = (1, k);
        while k > 1 {
            bits += k.ilog2() + 1;
            k = k.ilog2();
        }
        bits
    };
    let shorter = |l: &u32| {
        let (q, k) = (exponent(*l), l + 1);
        omega(k) < (2 * q + 1).min(q + 2 * class(q) + 1)
    };
    assert_eq!((0..1 << 15).filter(shorter).collect::<Vec<_>>(), [32_767]);
}

#[test]
fn the_cpu_packs_and_unpacks_as_the_page_says() {
    let lengths = [0, 1, 255, 256, 257, 1025, 10_000, 70_001];
    for (label, payload) in payloads(&lengths, 1 << 17) {
        cpus().for_each(|cpu| check(&cpu, &label, &payload));
    }
}

#[test]
fn every_device_packs_and_unpacks_as_the_page_says() {
    for device in require::devices().iter().filter(|device| device.kind() != BackendKind::Cpu) {
        // The PTX machine takes a thousand times as long as what it stands for.
        let (lengths, real): (&[usize], _) = if is_ptx_machine(device) {
            (&[0, 1, 257, 2000], 3000)
        } else {
            (&[0, 1, 255, 256, 257, 10_000, 70_001], 1 << 17)
        };
        // Payloads of one length are next to each other, so that each part has some of every length.
        let all = payloads(lengths, real).into_iter().enumerate();
        for (_, (label, payload)) in all.filter(|(index, _)| Depth::of_tests().takes(*index, 3)) {
            check(device, &label, &payload);
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn every_text_of_the_kernels_packs_and_unpacks_more_than_a_block() {
    for (target, device) in gradwire_tests::traffic::machines() {
        let device = device.unwrap_or_else(|e| panic!("{target}: {e}"));
        // A block takes 65,536 codes, and 327,680 in base 3.
        for (bits, n) in [(2, 328_000), (4, 66_770), (7, 66_770)] {
            let x = normal(n, 5);
            let fixed = Device::cpu().encode(&Qsgd::bits(bits).l2(), &x, Seed::new(1)).expect("encodes");
            check(&device, &format!("{target}, {bits} bits"), &fixed);
        }
    }
}

#[test]
fn a_large_tensor_s_words_begin_where_they_should() {
    if !Depth::of_tests().sweeps() {
        return;
    }
    // More than 256 sums of 65,536 codes each, so that a GPU's one block of offsets takes more than a round.
    let cpu = Device::cpu();
    let fixed = cpu.encode(&Qsgd::bits(2).l2(), &normal((1 << 24) + 200_000, 5), Seed::new(1)).expect("encodes");
    for (_, entropy) in ways(2) {
        let packed = cpu.pack(&fixed, entropy).expect("packs");
        let back = cpu.unpack(&packed).expect("unpacks");
        for device in require::devices().iter().filter(|d| d.kind() != BackendKind::Cpu && !is_ptx_machine(d)) {
            assert!(device.pack(&fixed, entropy).expect("packs") == packed, "{device}");
            assert!(device.unpack(&packed).expect("unpacks") == back, "{device}");
        }
    }
}

/// Zeros, where an encoder wrote them; and whatever else is there.
#[test]
fn codes_beyond_the_last_element_are_carried() {
    let fixed = Device::cpu().encode(&Qsgd::bits(4), &[0.5f32, -0.5, 0.25], Seed::new(1)).expect("encodes");
    let codes_at = Shape::of(fixed.as_bytes()).codes_at;
    // Slots 1 to 7 of the lanes of the three elements, and lanes that have none: 3 is a level, and 11 the same one
    // below zero.
    let other = forged(&fixed, |bytes| {
        bytes[codes_at + 1] = 0x3b;
        bytes[codes_at + 127] = 0xb3;
    });
    let other = Payload::from_vec(other).expect("a payload");
    let decoded = Device::cpu().decode(&fixed).expect("decodes");
    for device in require::devices() {
        for payload in [&fixed, &other] {
            let packed = device.pack(payload, Entropy::Elias).expect("packs");
            assert!(device.unpack(&packed).expect("unpacks") == *payload, "{device}");
            assert_eq!(device.decode(&packed).expect("decodes"), decoded, "{device}");
        }
        assert!(
            device.pack(&fixed, Entropy::Elias).expect("packs") != device.pack(&other, Entropy::Elias).expect("packs"),
            "{device}"
        );
    }
}

#[test]
fn encoding_with_elias_is_encoding_and_packing() {
    let device = Device::cpu();
    for codec in [Qsgd::bits(8), Qsgd::bits(16).whole_tensor()] {
        let (x, seed) = (normal(3000, 9), Seed::new(2));
        let fixed = device.encode(&codec, &x, seed).expect("encodes");
        let packed = device.encode(&codec.delta(), &x, seed).expect("encodes");
        assert_eq!(packed.header().entropy(), Entropy::Delta);
        assert_eq!(packed, device.pack(&fixed, Entropy::Delta).expect("packs"));
        // From one way of packing to the other and back.
        let gamma = device.pack(&packed, Entropy::Elias).expect("packs");
        assert_eq!(gamma, device.encode(&codec.elias(), &x, seed).expect("encodes"));
        assert_eq!(device.pack(&gamma, Entropy::Delta).expect("packs"), packed);
        assert!(packed.as_bytes().len() < gamma.as_bytes().len(), "{codec:?}: most levels are above 30");
    }
    for codec in [Qsgd::bits(4), Qsgd::levels(5).l2().bucket(128), Qsgd::bits(8).whole_tensor(), Qsgd::bits(16)] {
        let (x, seed) = (normal(5000, 9), Seed::new(2));
        let fixed = device.encode(&codec, &x, seed).expect("encodes");
        let packed = device.encode(&codec.elias(), &x, seed).expect("encodes");
        assert_eq!(packed, device.pack(&fixed, Entropy::Elias).expect("packs"));
        let plan = codec.elias().plan(x.len(), Dtype::F32).expect("a plan");
        assert!(packed.as_bytes().len() <= plan.payload_bytes());
        let mut bytes = vec![1, 2, 3];
        device.encode_into(&codec.elias(), &x, seed, &mut bytes).expect("encodes");
        assert_eq!(bytes, packed.as_bytes());
        // Sums take packed payloads and others together.
        let (mut a, mut b) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        device.decode_sum(&[&fixed, &packed], 0.5, &mut a).expect("decodes");
        device.decode_sum(&[&fixed, &fixed], 0.5, &mut b).expect("decodes");
        assert_eq!(a, b);
        // With feedback, a payload and a residual as without packing.
        let codec = codec.contractive();
        let (mut r, mut s) = (normal(x.len(), 10), normal(x.len(), 10));
        let packed = device.encode_with_feedback(&codec.elias(), &x, &mut r, seed).expect("encodes");
        let fixed = device.encode_with_feedback(&codec, &x, &mut s, seed).expect("encodes");
        assert_eq!((device.pack(&fixed, Entropy::Elias).expect("packs"), r), (packed, s));
    }
}

/// Bits of an element in classes as INCEPTIONN has them: two that name the class, and 0, 8, 16 or 32 of a sign and a
/// multiple of twice the bound, or the element as it is.
fn class_bits(x: f32) -> usize {
    let least = 127.5 * 2.0 * BOUND as f32;
    2 + match x.abs() {
        x if x <= BOUND as f32 => 0,
        x if x < least => 8,
        x if x < 1.0 => 16,
        _ => 32,
    }
}

#[test]
fn integers_with_a_bound_take_fewer_bits_than_inceptionn_s_classes() {
    let codec = Float::int16().error_bound(BOUND).elias();
    let shrunk = |factor: f32| normal(1 << 16, 11).into_iter().map(|v| v * factor).collect::<Vec<f32>>();
    let mut digits = data::digits().to_vec();
    digits.truncate(1 << 16);
    for x in [shrunk(0.001), shrunk(0.01), shrunk(0.05), digits] {
        let payload = Device::cpu().encode(&codec, &x, Seed::new(1)).expect("encodes");
        let classes: usize = x.iter().map(|x| class_bits(*x)).sum();
        assert!(8 * payload.as_bytes().len() < classes, "{} bits, and {classes}", 8 * payload.as_bytes().len());
        let decoded = Device::cpu().decode(&payload).expect("decodes");
        assert!(x.iter().zip(decoded).all(|(x, y)| f64::from((x - y).abs()) <= BOUND));
    }
}

#[test]
fn a_bound_is_of_integers_alone_and_within_its_range() {
    let plan = |codec: Float| codec.plan(100, Dtype::F32);
    for (codec, names) in [
        (Float::e4m3().error_bound(BOUND), "int8 or int16"),
        (Float::int16().error_bound(0.0), "2^-100"),
        (Float::int16().error_bound(f64::NAN), "2^-100"),
        (Float::int8().error_bound(2f64.powi(101)), "2^-100"),
    ] {
        let error = plan(codec).expect_err("refused");
        assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains(names), "{error}");
    }
    for bound in [2f64.powi(-100), 2f64.powi(100), 0.3] {
        assert!(plan(Float::int16().error_bound(bound)).and_then(gradwire::EncodePlan::with_feedback).is_ok());
    }
    assert!(matches!(plan(Float::e5m2().elias()), Err(Error::NotPacked { .. })));
}

#[test]
fn a_model_and_entries_decode_packed_payloads() {
    let device = Device::cpu();
    let layout = Layout::from_shapes([&[300][..], &[20, 30]]).expect("a layout");
    let codec = Qsgd::bits(4);
    let plan = device.model_plan(&codec, &layout, Dtype::F32).expect("a plan");
    let x = normal(900, 3);
    let fixed = device.encode_model(&plan, &x, &mut [], Seed::new(1)).expect("encodes");
    let packed: Vec<Payload> = fixed.iter().map(|p| device.pack(p, Entropy::Elias).expect("packs")).collect();
    let (mut a, mut b) = (vec![0.0; 900], vec![0.0; 900]);
    device.decode_model(&plan, DecodeMode::Write, &[&fixed], &mut a).expect("decodes");
    device.decode_model(&plan, DecodeMode::Write, &[&packed], &mut b).expect("decodes");
    assert_eq!(a, b);
    let sparse = |codec: Qsgd| {
        let payload = device.encode_sparse(&TopK::count(400).then(codec), &x, Seed::new(1)).expect("encodes");
        device.decode_sparse(&payload).expect("decodes")
    };
    assert_eq!(sparse(codec), sparse(codec.elias()));
}

#[test]
fn base_3_is_of_codes_of_two_bits_and_takes_over_elias_codes() {
    let device = Device::cpu();
    let x = normal(3000, 9);
    for codec in [Ternary::new(), Ternary::nearest(1.5).without_feedback(), Ternary::new().clipped(2.5)] {
        let fixed = device.encode(&codec, &x, Seed::new(2)).expect("encodes");
        let packed = device.encode(&codec.base3(), &x, Seed::new(2)).expect("encodes");
        assert_eq!(packed.header().entropy(), Entropy::Base3);
        assert_eq!(device.pack(&fixed, Entropy::Base3).expect("packs"), packed);
        let elias = device.pack(&packed, Entropy::Elias).expect("packs");
        assert_eq!(elias, device.pack(&fixed, Entropy::Elias).expect("packs"));
        assert_eq!(device.pack(&elias, Entropy::Base3).expect("packs"), packed);
        assert_eq!(device.pack(&packed, Entropy::None).expect("unpacks"), device.unpack(&packed).expect("unpacks"));
    }
    let two = device.encode(&Qsgd::bits(2).base3(), &x, Seed::new(2)).expect("codes of 2 bits");
    assert_eq!(two.header().entropy(), Entropy::Base3);
    let fixed = device.encode(&Qsgd::bits(3), &x, Seed::new(2)).expect("encodes");
    for refused in [device.pack(&fixed, Entropy::Base3), device.encode(&Qsgd::bits(3).base3(), &x, Seed::new(2))] {
        let error = refused.expect_err("three bits").to_string();
        assert!(error.contains("2 bits") && error.contains("of 3 bits"), "{error}");
    }
}

/// Five digits a byte is 1.6 bits per element; the table and padding are the rest.
#[test]
fn base_3_takes_1_6_bits_per_element_and_less_where_zeros_follow_one_another() {
    let device = Device::cpu();
    for n in [1 << 16, 1 << 20] {
        let x = normal(n, 3);
        let codec = Ternary::new().whole_tensor().base3();
        // Half of what is sent is not zero: hardly a byte is.
        let dense: Vec<f32> = x.iter().map(|v| v.signum() * (1.0 + (v.abs() * 1e-3))).collect();
        let bits = |x: &[f32]| device.encode(&codec, x, Seed::new(1)).expect("encodes").as_bytes().len() as f64 * 8.0;
        let found = bits(&dense) / n as f64;
        assert!((1.6..1.616).contains(&found), "{found} bits per element");
        // Never more than 64 words and a byte per 1280 codes, header, scalar and padding of the table.
        let units = n.div_ceil(1280) as f64;
        assert!(bits(&x) <= 8.0 * (257.0 * units + 40.0));
        let zeros = vec![0.0; n];
        assert_eq!(bits(&zeros), 8.0 * (32.0 + 4.0 + 20.0 * units + 4.0 * (units / 4.0).ceil()));
    }
}

#[test]
fn what_needs_the_length_before_refuses_and_says_what_to_do() {
    let device = Device::cpu();
    let codec = Qsgd::bits(4).elias();
    let plan = codec.plan(1000, Dtype::F32).expect("a plan");
    let x = normal(1000, 1);
    let mut out = vec![7; plan.payload_bytes()];
    let into = device.encode_plan_into(&plan, Gradient::from(&x), &mut [], Seed::new(1), &mut out);
    assert!(out.iter().all(|byte| *byte == 7));
    let layout = Layout::from_shapes([&[1000][..]]).expect("a layout");
    let model = ModelPlan::new(&codec, &layout, Dtype::F32, &Limits::NONE).map(|_| ());
    let passes = plan.passes(Seed::new(1), &Limits::NONE).map(|_| ());
    let packed = device.encode(&codec, &x, Seed::new(1)).expect("encodes");
    let body = packed.write_body(&mut vec![0; packed.header().body_bytes() as usize]);
    let sealed = packed.header().seal(&vec![0; packed.header().body_bytes() as usize]).map(|_| ());
    for refused in [into, model, passes, body, sealed] {
        let error = refused.expect_err("codes of a length that is not known");
        assert!(matches!(error, Error::Packed { .. }) && error.to_string().contains("Device::pack"), "{error}");
    }
    for payload in [
        device.encode(&Uniform::bits(4), &x, Seed::new(1)).expect("encodes"),
        device.encode(&OneBit::new().without_feedback(), &x, Seed::new(1)).expect("encodes"),
        device.encode(&Float::e4m3(), &x, Seed::new(1)).expect("encodes"),
    ] {
        assert!(matches!(device.pack(&payload, Entropy::Elias), Err(Error::NotPacked { .. })));
        assert_eq!(device.unpack(&payload).expect("as it is"), payload);
    }
    assert_eq!(device.pack(&packed, Entropy::Elias).expect("as it is"), packed);
}

/// The example of the page, made by hand.
#[test]
fn the_example_of_the_page_is_what_is_sent() {
    let sent =
        Device::cpu().encode(&Qsgd::bits(2).bucket(32).elias(), &[1.0f32, 0.0, -1.0], Seed::new(1)).expect("encodes");
    let mut expected = vec![8u8, 0, 0, 0];
    let words = [0xfffd_fffe, !0, !0, !0, !0, !0, !0, !0, 0x0000_0023u32];
    expected.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    assert_eq!((&sent.as_bytes()[20..28], &sent.as_bytes()[36..]), (&[1, 0, 0, 0, 9, 0, 0, 0][..], &expected[..]));
    assert_eq!(Device::cpu().decode(&sent).expect("decodes"), [1.0, 0.0, -1.0]);
}

/// The example of the page for delta codes, made by hand.
#[test]
fn the_example_of_the_page_in_delta_codes_is_what_is_sent() {
    let codec = Qsgd::bits(2).bucket(32).delta();
    let sent = Device::cpu().encode(&codec, &[1.0f32, 0.0, -1.0], Seed::new(1)).expect("encodes");
    let mut expected = vec![8u8, 0, 0, 0];
    let words = [0xfffd_fffe, !0, !0, !0, !0, !0, !0, !0, 0x0000_0083u32];
    expected.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    assert_eq!((&sent.as_bytes()[20..28], &sent.as_bytes()[36..]), (&[3, 0, 0, 0, 9, 0, 0, 0][..], &expected[..]));
    assert_eq!(Device::cpu().decode(&sent).expect("decodes"), [1.0, 0.0, -1.0]);
}

/// The example of the page for base 3, made by hand.
#[test]
fn the_example_of_the_page_in_base_3_is_what_is_sent() {
    let sent =
        Device::cpu().encode(&Qsgd::bits(2).bucket(32).base3(), &[1.0f32, 0.0, -1.0], Seed::new(1)).expect("encodes");
    let mut expected = vec![4u8, 0, 0, 0, 7];
    expected.extend([255; 18]);
    expected.push(244);
    assert_eq!((&sent.as_bytes()[20..28], &sent.as_bytes()[36..]), (&[2, 0, 0, 0, 5, 0, 0, 0][..], &expected[..]));
    assert_eq!(Device::cpu().decode(&sent).expect("decodes"), [1.0, 0.0, -1.0]);
}

/// The example of the page for places, made by hand.
#[test]
fn the_example_of_the_page_in_places_is_what_is_sent() {
    let codec = Qsgd::bits(2).bucket(32).sparse();
    let sent = Device::cpu().encode(&codec, &[1.0f32, 0.0, -1.0], Seed::new(1)).expect("encodes");
    // Places 0 and 16 have 13 low bits each: marks 0 and 1, levels of no bits, and signs.
    let expected: Vec<u8> = [2u32, 0x8040_0003].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!((&sent.as_bytes()[20..28], &sent.as_bytes()[36..]), (&[4, 0, 0, 0, 1, 0, 0, 0][..], &expected[..]));
    assert_eq!(Device::cpu().decode(&sent).expect("decodes"), [1.0, 0.0, -1.0]);
}

/// QSGD's theorem 3.2: where s^2 + sqrt(n) <= n/2, the code of a vector has (3 + 1.5 log2(2 (s^2 + n) / (s (s + sqrt(n)))))
/// s (s + sqrt(n)) + 32 bits in the mean at most, o(1) left out.
#[test]
fn places_are_within_the_bound_of_qsgd_s_theorem() {
    const SEEDS: u64 = 20;
    for (n, s) in [(1_000_000, 1), (1_000_000, 7), (1_000_000, 31), (100_000, 3), (16_384, 1)] {
        let (size, levels) = (n as f64, f64::from(s));
        let nonzero = levels * (levels + size.sqrt());
        let bound = (3.0 + 1.5 * (2.0 * (levels * levels + size) / nonzero).log2()) * nonzero + 32.0;
        let mut spike = normal(n, 12);
        spike[n / 3] = spike.iter().map(|v| v * v).sum::<f32>().sqrt();
        let heavy: Vec<f32> = normal(n, 13).iter().map(|v| v.powi(5)).collect();
        for (label, x) in [("bell", normal(n, 11)), ("one of half the norm", spike), ("heavy tails", heavy)] {
            let codec = Qsgd::levels(s).whole_tensor().l2().sparse();
            // The scalar is among the bits of the theorem, and the header is not.
            let bits =
                |seed| 8 * (Device::cpu().encode(&codec, &x, Seed::new(seed)).expect("encodes").as_bytes().len() - 32);
            let mean = (0..SEEDS).map(bits).sum::<usize>() as f64 / SEEDS as f64;
            // Codes that are not zero are a sum of independent draws, whose mean is at most s |x|_1 / |x|_2 <= s sqrt(n):
            // of 20 runs 2500 at least. By Chernoff 1.3 times as many come with a probability below exp(-100).
            assert!(mean <= bound, "{label}, {n} elements, {s} levels: {mean} bits, and {bound}");
            println!("{label}, {n} elements, {s} levels: {:.0} bytes, at most {:.0}", mean / 8.0, bound / 8.0);
        }
    }
}

/// Bits of all codes, the sum of all levels, and how many levels are not zero.
fn counts(fixed: &Payload, delta: bool) -> (f64, f64, f64) {
    let shape = Shape::of(fixed.as_bytes());
    let units = fixed.as_bytes()[shape.codes_at..].chunks_exact(32 * shape.bits as usize);
    units.fold((0.0, 0.0, 0.0), |(bits, sum, set), unit| {
        let levels = bits::levels(unit, shape.bits);
        (
            bits + if delta { bits::delta_stream(&levels) } else { bits::stream(&levels) }.len() as f64,
            sum + levels.iter().map(|(level, _)| *level as f64).sum::<f64>(),
            set + levels.iter().filter(|(level, _)| *level > 0).count() as f64,
        )
    })
}

/// What the codes may take: a bit each, a sign for each level that is not zero, and twice floor(log2(l + 1)), whose
/// mean is at most the logarithm of the mean of l + 1, since the logarithm is concave.
fn most_bits(n: f64, sum: f64, set: f64) -> f64 {
    n + set + 2.0 * n * (1.0 + sum / n).log2()
}

/// Of delta codes: likewise floor(log2(l + 1)), and twice floor(log2(floor(log2(l + 1)) + 1)), both logarithms concave.
fn most_delta_bits(n: f64, sum: f64, set: f64) -> f64 {
    let log = (1.0 + sum / n).log2();
    n + set + n * log + 2.0 * n * (1.0 + log).log2()
}

#[test]
fn codes_are_as_short_as_the_concavity_of_the_logarithm_says() {
    for (label, fixed) in payloads(&[1, 257, 10_000], 1 << 16) {
        let n = 256.0 * Shape::of(fixed.as_bytes()).units() as f64;
        let (delta_bits, ..) = counts(&fixed, true);
        let (bits, sum, set) = counts(&fixed, false);
        // The sums are exact in binary64; the logarithm is off by far less than 2^-40.
        assert!(bits <= most_bits(n, sum, set) + n * 1e-9, "{label}: {bits} bits, and {sum} levels");
        let most = most_delta_bits(n, sum, set) + n * 1e-9;
        assert!(delta_bits <= most, "{label}: {delta_bits} bits, and {sum} levels");
        for (entropy, bits) in [(Entropy::Elias, bits), (Entropy::Delta, delta_bits)] {
            let packed = Device::cpu().pack(&fixed, entropy).expect("packs");
            let words = f64::from(packed.header().packed_words().expect("packed"));
            let padded = bits + 32.0 * n / 256.0;
            assert!(bits <= 32.0 * words && 32.0 * words < padded, "{label}: a unit's last word alone is padded");
        }
    }
}

#[test]
fn the_mean_length_is_what_the_l2_norm_promises() {
    // QSGD's theorem 3.2: E|l_i| = L |x_i| / ||x||, so that a bucket's levels sum to L ||x||_1 / ||x||_2 in the mean,
    // at most L sqrt(bucket).
    const SEEDS: u64 = 200;
    for (bits, bucket) in [(2, 512), (4, 128), (4, 512), (8, 8192)] {
        let levels = f64::from((1u32 << (bits - 1)) - 1);
        let n = 8192;
        let x = normal(n, 40 + u64::from(bits));
        let codec = Qsgd::bits(bits).bucket(bucket).l2();
        let [mut all_bits, mut all_sums, mut all_set] = [0.0; 3];
        for seed in 0..SEEDS {
            let (found, sum, set) = counts(&Device::cpu().encode(&codec, &x, Seed::new(seed)).expect("encodes"), false);
            (all_bits, all_sums, all_set) = (all_bits + found, all_sums + sum, all_set + set);
        }
        let runs = SEEDS as f64;
        let expected: f64 = x
            .chunks(bucket)
            .map(|x| {
                let one: f64 = x.iter().map(|v| f64::from(v.abs())).sum();
                let two: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                assert!(one / two <= (bucket as f64).sqrt());
                levels * one / two
            })
            .sum();
        // Hoeffding: a sum of `runs * n` independent roundings, each within 1, is off by `t` with a probability of at
        // most 2 exp(-2 t^2 / (runs n)); at this `t` 2 exp(-50), below 10^-21. Draws of 16 bits and binary32 are off by
        // 2^-15 of a level.
        let t = 5.0 * (runs * n as f64).sqrt() + runs * n as f64 / 32768.0;
        assert!((all_sums - runs * expected).abs() <= t, "{bits} bits, {bucket}: {all_sums}, and {expected} a run");
        // A level that is not zero is at least 1, so there are at most as many as their sum.
        let (n, mean) = (n as f64, expected + t / runs);
        let most = most_bits(n, mean, mean.min(n));
        assert!(
            all_bits / runs <= most && all_set <= all_sums,
            "{bits} bits, {bucket}: {} and {most}",
            all_bits / runs
        );
        println!("{bits} bits, {bucket}: {:.3} bits per element, at most {:.3}", all_bits / runs / n, most / n);
    }
}

#[test]
fn hostile_headers_and_tables_are_refused() {
    let device = Device::cpu();
    let codec = Qsgd::bits(4);
    let packed = device.encode(&codec.elias(), &normal(1000, 2), Seed::new(1)).expect("encodes");
    let words = packed.header().packed_words().expect("packed");
    let codes_at = Shape::of(packed.as_bytes()).codes_at;
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let bytes = forged(&packed, |bytes| change(bytes));
        let view = PayloadView::from_bytes(&bytes).expect_err("hostile");
        assert_eq!(Payload::from_vec(bytes), Err(view));
        view
    };
    let set_words = |bytes: &mut Vec<u8>, words: u32| bytes[24..28].copy_from_slice(&words.to_le_bytes());
    for tag in [2, 5, 255] {
        assert!(matches!(refused(&|b| b[20] = tag), PayloadError::Field { field: "entropy", .. }));
    }
    for at in 21..24 {
        assert!(matches!(refused(&|b| b[at] = 1), PayloadError::Field { field: "reserved", .. }));
    }
    assert!(matches!(refused(&|b| b[20] = 0), PayloadError::Field { field: "reserved", .. }));
    // 4 units take 32 words at least, and 4 times 64 at most.
    for few in [0, 31, 257, u32::MAX] {
        assert!(matches!(refused(&|b| set_words(b, few)), PayloadError::Field { field: "words", .. }), "{few}");
    }
    assert!(matches!(refused(&|b| set_words(b, words + 1)), PayloadError::Truncated { .. }));
    assert!(matches!(refused(&|b| set_words(b, words - 1)), PayloadError::Trailing { .. }));
    assert!(matches!(refused(&|b| b.truncate(b.len() - 1)), PayloadError::Truncated { .. }));
    let expected = u64::from(words);
    for (change, found) in [(1u8, expected + 1), (255, expected - 1)] {
        let error = refused(&|b| b[codes_at] = b[codes_at].wrapping_add(change));
        assert_eq!(error, PayloadError::Table { found, expected });
    }
    // Sums that agree, and units that share their words otherwise, decode to something.
    let moved = forged(&packed, |b| {
        b[codes_at] -= 1;
        b[codes_at + 1] += 1;
    });
    assert!(Payload::from_vec(moved).is_ok());
    let uniform = device.encode(&Uniform::bits(4), &[1.0f32; 9], Seed::new(1)).expect("encodes");
    for tag in [1, 3, 4] {
        let error = Payload::from_vec(forged(&uniform, |b| b[20] = tag)).expect_err("uniform has none");
        assert!(matches!(error, PayloadError::Field { field: "entropy", .. }));
    }
    // Of delta codes, 4 units take 32 words at least, and 4 times 72 at most.
    let packed = device.encode(&codec.delta(), &normal(1000, 2), Seed::new(1)).expect("encodes");
    for few in [0, 31, 289, u32::MAX] {
        let error = Payload::from_vec(forged(&packed, |b| set_words(b, few))).expect_err("hostile");
        assert!(matches!(error, PayloadError::Field { field: "words", .. }), "{few}");
    }
    // Of places, a unit takes 3072 words at most.
    let packed = device.encode(&codec.sparse(), &normal(1000, 2), Seed::new(1)).expect("encodes");
    for many in [3073, u32::MAX] {
        let error = Payload::from_vec(forged(&packed, |b| set_words(b, many))).expect_err("hostile");
        assert!(matches!(error, PayloadError::Field { field: "words", .. }), "{many}");
    }
    let expected = u64::from(packed.header().packed_words().expect("packed"));
    for (entry, found) in [(0u32, 0), (1, 1), (1 | 3 << 16, 1), (16_384, 1536)] {
        let change = |b: &mut Vec<u8>| b[codes_at..codes_at + 4].copy_from_slice(&entry.to_le_bytes());
        let error = Payload::from_vec(forged(&packed, change)).expect_err("another number of words");
        assert_eq!(error, PayloadError::Table { found, expected });
    }
    // More codes than there are, more bits than the width has, and bits of no codes.
    for entry in [16_385u32, 1 | 4 << 16, 1 << 16, u32::MAX] {
        let change = |b: &mut Vec<u8>| b[codes_at..codes_at + 4].copy_from_slice(&entry.to_le_bytes());
        let error = Payload::from_vec(forged(&packed, change)).expect_err("no entry");
        assert!(matches!(error, PayloadError::Field { field: "table", found, .. } if found == u64::from(entry)));
    }
}

#[test]
fn hostile_codes_decode_alike_everywhere() {
    let devices: Vec<Device> = cpus().chain(require::devices()).collect();
    let mut random = Random(8);
    for (bits, (_, entropy)) in WIDTHS.into_iter().flat_map(|bits| ways(bits).map(move |way| (bits, way))) {
        let places = entropy == Entropy::Sparse;
        let n = if places { 17_000 } else { 1300 };
        let packed = Device::cpu().pack(&random_codes(bits, n, 1), entropy).expect("packs");
        let shape = Shape::of(packed.as_bytes());
        let table_bytes = match entropy {
            Entropy::Base3 => n.div_ceil(1280).next_multiple_of(4),
            Entropy::Sparse => 4 * n.div_ceil(16_384),
            _ => shape.units().next_multiple_of(4),
        };
        let words_at = shape.codes_at + table_bytes;
        let mut change = |kind: usize, bytes: &mut [u8]| {
            let (table, words) = bytes[shape.codes_at..].split_at_mut(words_at - shape.codes_at);
            match kind {
                0 => words.fill(0),
                1 => words.fill(255),
                2 => words.iter_mut().for_each(|byte| *byte = random.bits() as u8),
                3 => words.iter_mut().for_each(|byte| {
                    *byte = if random.bits().is_multiple_of(29) { 1 << (random.bits() % 8) } else { 0 }
                }),
                _ => {}
            }
            if places && kind > 2 {
                // The last unit, of which most codes are not there, has what the first one had.
                table.rotate_left(4);
            } else if kind > 2 {
                // A unit of a word, and one with as many more.
                let spare = table[0].min(255 - table[1]);
                table[0] -= spare;
                table[1] += spare;
            }
        };
        for kind in 0..5 {
            let hostile = Payload::from_vec(forged(&packed, |bytes| change(kind, bytes))).expect("a table that agrees");
            let expected = oracle::unpack(hostile.as_bytes());
            for device in &devices {
                let found = device.unpack(&hostile).expect("decodes");
                assert!(found.as_bytes() == expected, "{device}: {bits} bits, {entropy:?}, kind {kind}");
            }
        }
    }
}
