//! What reads bytes of others, on small payloads, states and messages with each byte changed. `cargo xtask fuzz --miri`
//! runs it under Miri, which finds what no test can: reads beyond a buffer, and values that a type cannot have.

use std::time::Instant;

use gradwire::{
    Compressor, Device, Matrix, Payload, PayloadView, PowerSgd, Qsgd, Recipe, Seed, SparsePayload, Ternary, TopK,
};
use gradwire_fuzz::pair::Pair;
use gradwire_tests::cases;

/// The same bytes with one of them changed, at so many places in turn, and cut there.
fn changed(bytes: &[u8], places: usize) -> impl Iterator<Item = Vec<u8>> {
    let step = (bytes.len() / places).max(1);
    (0..bytes.len()).step_by(step).enumerate().flat_map(move |(number, at)| {
        let mut edited = bytes.to_vec();
        edited[at] ^= [1, 0x80, 0xff][number % 3];
        [edited, bytes[..at].to_vec()]
    })
}

/// With the checksum of its bytes: what reads no further than that is not tested by it.
fn sealed(mut payload: Vec<u8>) -> Vec<u8> {
    if payload.len() >= 32 {
        let sum = gradwire_tests::oracle::wire::crc32(payload[..28].iter().chain(&payload[32..]).copied());
        payload[28..32].copy_from_slice(&sum.to_le_bytes());
    }
    payload
}

#[test]
fn payloads() {
    let device = Device::cpu();
    let begun = Instant::now();
    let values = cases::normal(33, 1);
    let dense = device.encode(&Qsgd::bits(4).bucket(32), &values, Seed::new(1)).expect("valid");
    let packed = device.encode(&Qsgd::bits(4).bucket(32).elias(), &values, Seed::new(1)).expect("valid");
    let base3 = device.encode(&Ternary::new().base3(), &values, Seed::new(1)).expect("valid");
    let (mut taken, mut refused) = (0, 0);
    for payload in [dense, packed, base3] {
        for bytes in changed(payload.as_bytes(), 9) {
            for bytes in [sealed(bytes.clone()), bytes] {
                match PayloadView::from_bytes(&bytes) {
                    Ok(view) => {
                        taken += 1;
                        assert_eq!(Payload::from_bytes(&bytes).expect("as the view").as_bytes(), &bytes[..]);
                        // Slow under Miri.
                        if taken % 16 == 0 {
                            let mut out = vec![0.0; view.len()];
                            device.decode_sum(&[view], 1.0, &mut out).expect("it was read");
                        }
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
    }
    assert!(taken > 10 && refused > 50, "{taken} {refused}");
    println!("payloads {:?} {taken} {refused}", begun.elapsed());
}

#[test]
fn selections() {
    let begun = Instant::now();
    let device = Device::cpu();
    let values = cases::normal(33, 1);
    for codec in [TopK::count(3), TopK::fraction(0.5), TopK::fraction(1.0), TopK::count(9).then(Qsgd::bits(4).bucket(32))] {
        let payload = device.encode_sparse(&codec, &values, Seed::new(1)).expect("valid");
        for bytes in changed(payload.as_bytes(), 9) {
            for bytes in [sealed(bytes.clone()), bytes] {
                if let Ok(payload) = SparsePayload::from_bytes_of(&bytes, 33) {
                    let mut out = vec![0.0; 33];
                    device.decode_sparse_sum(&[payload], 1.0, &mut out).expect("it was read");
                }
            }
        }
    }
    println!("selections {:?}", begun.elapsed());
}

#[test]
fn factors() {
    let begun = Instant::now();
    let (codec, tensors) = (PowerSgd::rank(1), [Matrix::new(4, 5), Matrix::vector(3)]);
    let state = codec.state(&tensors, Seed::new(1)).expect("valid").to_bytes().expect("idle");
    for bytes in changed(&state, 12) {
        let _ = codec.restore(&tensors, &bytes);
    }
    println!("factors {:?}", begun.elapsed());
}

#[test]
fn texts() {
    let begun = Instant::now();
    "dgc:ratio=0.02,nesterov,clip=3+peers:norm=4".parse::<Recipe>().expect("valid");
    // An error looks for names that are near, which takes seconds under Miri.
    "topk:0.1+qsgd:bit=4".parse::<Recipe>().expect_err("no such setting");
    println!("texts {:?}", begun.elapsed());
}

#[test]
fn messages_and_states() {
    let begun = Instant::now();
    let device = Device::cpu();
    for text in ["topk:0.5+ef", "qsgd:bits=4,bucket=32+elias+ef", "none+peers:norm=9"] {
        let mut compressor = Compressor::new(text, [[4u64, 5]], 1).expect("valid");
        let step = |compressor: &mut Compressor, at: Option<usize>| {
            let mut gradient = cases::normal(20, 1);
            let swap = |mine: &[u8]| {
                let mut theirs = mine.to_vec();
                if let Some(at) = at.filter(|_| !mine.is_empty()) {
                    theirs[at % mine.len()] ^= 0x41;
                }
                Ok(theirs.into())
            };
            compressor.exchange(&device, &mut Pair { rank: 0, swap }, &mut gradient)
        };
        step(&mut compressor, None).expect("the other rank is honest");
        for at in (0..120).step_by(11) {
            if step(&mut compressor, Some(at)).is_ok() {
                compressor.undo().expect("a step was made");
            }
        }
        let state = compressor.state().expect("no step runs");
        for bytes in changed(&state, 12) {
            let _ = compressor.restore(&[bytes], 0, 1);
        }
        println!("{text} {:?}", begun.elapsed());
    }
}
