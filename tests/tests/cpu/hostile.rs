//! The bodies of the fuzz targets on stable Rust, from their seeds and from random bytes, without a fuzzer.

use std::path::Path;

use gradwire::{Device, OneBit, PayloadError, Seed, SparsePayload, TopK};
use gradwire_tests::cases::Random;
use gradwire_tests::formula::CODECS;
use gradwire_tests::hostile::{self, Target, seeds};
use gradwire_tests::meter;

/// Runs a target over its seeds and `more` spoiled ones; gives how many payloads were accepted and refused, by the
/// codec that the first byte chooses.
fn run(name: &str, more: u64, target: Target) -> Vec<[u64; 2]> {
    let (seeds, devices) = (seeds::of(name), hostile::devices());
    let mut random = Random(11);
    // One target forges payloads of every codec.
    let mut counts = vec![[0; 2]; if name == "decode" { CODECS.len() } else { 1 }];
    let codecs = counts.len();
    let mut note = |bytes: &[u8]| {
        let codec = usize::from(bytes.first().copied().unwrap_or(0)) % codecs;
        counts[codec][usize::from(target(&devices, bytes).is_err())] += 1;
    };
    seeds.iter().for_each(|seed| note(seed));
    for _ in 0..more * codecs as u64 {
        let mut bytes = seeds[random.bits() as usize % seeds.len()].clone();
        for _ in 0..random.bits() % 5 {
            let at = random.bits() as usize % bytes.len();
            bytes[at] = random.bits() as u8;
        }
        note(&bytes);
    }
    counts
}

#[test]
fn the_meter_is_on() {
    assert_eq!(meter::measure(|| std::hint::black_box(vec![0u8; 77])).1, 77);
}

#[test]
fn every_target_has_its_seeds_and_meets_both_answers() {
    for (name, target) in hostile::TARGETS {
        for (codec, [accepted, refused]) in run(name, 20_000, target).into_iter().enumerate() {
            println!("{name}, codec {codec}: {accepted} accepted, {refused} refused");
            assert!(accepted > 2000 && refused > 2000, "{name}, codec {codec}: {accepted} accepted, {refused} refused");
        }
    }
}

/// Targets whose bodies are in `fuzz/src`.
const OF_THE_FUZZ_CRATE: [&str; 3] = ["messages", "recipes", "states"];

/// The fuzz crate is not built with the workspace; at least it has these targets and no other body.
#[test]
fn the_fuzz_crate_has_the_same_targets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).expect("the fuzz crate is beside the tests");
    let manifest = read("Cargo.toml");
    assert_eq!(manifest.matches("[[bin]]").count(), hostile::TARGETS.len() + OF_THE_FUZZ_CRATE.len());
    let here = hostile::TARGETS.map(|(name, _)| (name, "let _ = hostile::".to_owned()));
    let there = OF_THE_FUZZ_CRATE.map(|name| (name, format!("use gradwire_fuzz::{name}::{name};")));
    for (name, body) in here.into_iter().chain(there) {
        let path = format!("fuzz_targets/{name}.rs");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "the manifest lacks {name}");
        assert!(read(&path).contains(&body), "{name} has a body of its own");
    }
}

#[test]
fn seeds_are_the_same_every_time() {
    for (name, _) in hostile::TARGETS {
        assert_eq!(seeds::of(name), seeds::of(name));
        assert!(seeds::of(name).iter().all(|seed| !seed.is_empty() && seed.len() <= 4096), "a fuzzer's usual limit");
    }
}

/// A sparse payload says how long its gradient is, and its indices take 32 times their bytes and more. What is read with
/// another length in mind takes memory for none of them.
#[test]
fn a_payload_of_another_length_takes_no_memory() {
    let device = Device::cpu();
    let x = gradwire_tests::cases::normal(1 << 22, 5);
    let codec = TopK::fraction(0.9).then(OneBit::new().whole_tensor());
    let payload = device.encode_sparse(&codec, &x, Seed::new(1)).expect("valid");
    let (bytes, entries) = (payload.as_bytes(), payload.indices().len() as u64);
    let (accepted, held) = meter::measure(|| SparsePayload::from_bytes(bytes).is_ok());
    assert!(accepted && held >= 4 * entries, "{held} bytes for {entries} entries");
    let refused = meter::bounded("a payload of another length", 256, || SparsePayload::from_bytes_of(bytes, 1000));
    assert_eq!(refused.err(), Some(PayloadError::Elements { found: 1 << 22, expected: 1000 }));
    assert_eq!(SparsePayload::from_bytes_of(bytes, 1 << 22).ok(), Some(payload));
}
