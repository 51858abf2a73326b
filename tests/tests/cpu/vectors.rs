//! The golden vectors: they are what the oracle computes, the CPU gives them, and a wrong one is noticed.

use std::collections::BTreeSet;

use gradwire::Device;
use gradwire::backend::cpu::{Cpu, Simd};
use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::arith::powersgd::seeded;
use gradwire_tests::formula::{CODECS, Tests};
use gradwire_tests::oracle::{philox, wire};
use gradwire_tests::vectors::elias::{self, ELIAS};
use gradwire_tests::vectors::powersgd::{self, POWERSGD};
use gradwire_tests::vectors::topk::{self, TOPK};
use gradwire_tests::vectors::{self, PHILOX};

#[test]
fn the_committed_files_are_what_the_oracle_computes() {
    let of_codec = |tests: &&Tests| (format!("{}.json", tests.codec.file()), tests.committed);
    let mut committed: Vec<(String, &str)> = CODECS.iter().map(of_codec).collect();
    let others = [("philox.json", PHILOX), ("elias.json", ELIAS), ("topk.json", TOPK), ("powersgd.json", POWERSGD)];
    committed.extend(others.map(|(name, text)| (name.to_owned(), text)));
    let computed = vectors::files();
    assert_eq!(computed.len(), committed.len());
    for ((name, text), (computed_name, computed)) in committed.iter().zip(&computed) {
        assert_eq!(name, computed_name);
        vectors::same(name, text, computed).unwrap_or_else(|e| panic!("{e}"));
    }
    for codec in CODECS.iter().map(|tests| tests.codec.file()) {
        let vectors = vectors::committed(codec).expect("read");
        let names: BTreeSet<&str> = vectors.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names.len(), vectors.len(), "{codec}: two vectors share a name");
    }
    for (name, text) in committed {
        assert!(text.len() < 320_000, "{name} has {} bytes; keep it small enough to read and to ship", text.len());
    }
}

/// The oracle's own two algorithms that others publish answers for: zlib's checksum and Random123's generator.
#[test]
fn the_oracle_gives_published_answers() {
    assert_eq!(wire::crc32(*b"123456789"), 0xCBF4_3926);
    assert_eq!(philox([0; 4], (0, 0)), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    assert_eq!(philox([!0; 4], (!0, !0)), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(philox(pi, (0xa409_3822, 0x299f_31d0)), [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
}

#[test]
fn seeded_columns_are_those_of_the_vectors() {
    let file: serde_json::Value = serde_json::from_str(PHILOX).expect("read");
    let columns = file["columns"].as_array().expect("there are columns");
    assert!(columns.len() > 10);
    for column in columns {
        let word = |name: &str| u64::from_str_radix(column[name].as_str().expect("text"), 16).expect("hexadecimal");
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let stream = Stream { key: halves(word("run")), tensor: word("tensor") as u32, step: halves(word("step")) };
        let number = |name: &str| column[name].as_u64().expect("a number") as u32;
        let entry = seeded(stream, number("column"), number("row"));
        assert_eq!(u64::from(entry.to_bits()), word("entry"), "{column}");
    }
}

#[test]
fn the_cpu_gives_them_at_every_vector_width() {
    for simd in [Simd::Baseline, Simd::Avx2, Simd::Avx512] {
        let Ok(cpu) = Cpu::with_simd(simd) else {
            eprintln!("{}: this machine does not have it", simd.name());
            continue;
        };
        for codec in CODECS.iter().map(|tests| tests.codec.file()) {
            let compared = vectors::check(&Device::from_cpu(cpu), codec).unwrap_or_else(|e| panic!("{e}"));
            assert!(compared > 140, "{codec}: only {compared} compared");
        }
        let sparse = topk::committed().expect("read");
        assert_eq!(topk::check(&Device::from_cpu(cpu), &sparse), Ok(3 * sparse.len() as u64));
        let steps = powersgd::committed().expect("read");
        let factors: usize = steps.iter().map(|v| v.factors.len()).sum();
        assert_eq!(powersgd::check(&Device::from_cpu(cpu), &steps), Ok((4 * steps.len() + factors) as u64));
    }
}

/// The text with one bit of one hexadecimal digit flipped.
fn flip(text: &mut String, at: usize, bit: u32) {
    let digit = text[at..=at].chars().next().and_then(|c| c.to_digit(16)).expect("a hexadecimal digit");
    text.replace_range(at..=at, &format!("{:x}", digit ^ 1 << bit));
}

#[test]
fn one_flipped_bit_of_a_sparse_vector_is_noticed() {
    let device = Device::cpu();
    for vector in topk::committed().expect("read").into_iter().filter(|v| v.k > 0) {
        let mut changed = vector.clone();
        let last = changed.payload.len() - 1;
        flip(&mut changed.payload, last, 2);
        let error = topk::check(&device, &[changed]).expect_err("a bit of a value is wrong");
        assert!(error.contains(&vector.name) && error.contains("payload differs"), "{error}");
        let mut changed = vector;
        if let Some(after) = &mut changed.residual_after {
            flip(after, 7, 0);
            let error = topk::check(&device, &[changed]).expect_err("a bit of a residual is wrong");
            assert!(error.contains("residual differs"), "{error}");
        }
    }
}

#[test]
fn one_flipped_bit_of_a_packed_vector_is_noticed() {
    let device = Device::cpu();
    let vectors = elias::committed().expect("read");
    assert_eq!(elias::check(&device, &vectors), Ok(3 * vectors.len() as u64));
    for vector in vectors.into_iter().filter(|vector| vector.n > 0) {
        let wrong = |change: &dyn Fn(&mut elias::Vector)| {
            let mut changed = vector.clone();
            change(&mut changed);
            let error = elias::check(&device, &[changed]).expect_err("a bit is wrong");
            assert!(error.contains(&vector.name), "{error}");
            error
        };
        let [packed, fixed] = [&vector.packed, &vector.fixed].map(|text| text.len() - 1);
        assert!(wrong(&|v| flip(&mut v.packed, packed, 0)).contains("checksum"));
        assert!(wrong(&|v| flip(&mut v.fixed, fixed, 0)).contains("checksum"));
        assert!(wrong(&|v| flip(&mut v.decoded, 7, 0)).contains("decoded differs"));
    }
}

#[test]
fn one_flipped_bit_of_a_step_is_noticed() {
    let device = Device::cpu();
    for vector in powersgd::committed().expect("read") {
        let wrong = |what: &str, change: &dyn Fn(&mut powersgd::Vector)| {
            let mut changed = vector.clone();
            change(&mut changed);
            let error = powersgd::check(&device, &[changed]).expect_err("a bit is wrong");
            assert!(error.contains(&vector.name) && error.contains(what), "{error}");
        };
        wrong("factor differs", &|v| flip(&mut v.factors[0], 7, 0));
        wrong("output differs", &|v| flip(&mut v.output, 7, 0));
        wrong("residual differs", &|v| flip(&mut v.residual_after, 7, 0));
        wrong("state differs", &|v| flip(&mut v.state_after, 32, 0));
        wrong("checksum", &|v| flip(&mut v.state_before, 32, 0));
    }
}

#[test]
fn one_flipped_bit_is_noticed() {
    let device = Device::cpu();
    for codec in CODECS.iter().map(|tests| tests.codec.file()) {
        let vectors = vectors::committed(codec).expect("read");
        let vector = vectors.iter().find(|v| v.decode_add.is_some()).expect("there is one");
        let check = |change: &dyn Fn(&mut vectors::Vector)| {
            let mut changed = vector.clone();
            change(&mut changed);
            vectors::check_all(&device, &[changed])
        };
        check(&|_| ()).expect("it passes as it is");
        for at in 0..vector.payload.len() {
            let error = check(&|v| flip(&mut v.payload, at, at as u32 % 4)).expect_err("a bit of the payload is wrong");
            assert!(error.contains(&vector.name) && error.contains("payload differs"), "{error}");
        }
        let error = check(&|v| flip(&mut v.decoded, 7, 0)).expect_err("a bit of a value is wrong");
        assert!(error.contains("decoded differs"), "{error}");
        let add = |v: &mut vectors::Vector| flip(&mut v.decode_add.as_mut().expect("has it").result, 7, 0);
        assert!(check(&add).expect_err("a bit of a sum is wrong").contains("decode-add differs"));

        let Some(mut fed) = vectors.iter().find(|v| v.residual_after.is_some()).cloned() else {
            assert!(["drive", "eden"].contains(&codec), "{codec} takes error feedback");
            continue;
        };
        flip(fed.residual_after.as_mut().expect("has it"), 7, 0);
        let error = vectors::check_all(&device, &[fed]).expect_err("a bit of a residual is wrong");
        assert!(error.contains("residual differs"), "{error}");
    }
}
