//! What a fuzzer starts from, built rather than kept: the same bytes on every machine, and none to review.

use gradwire::Device;

use super::forge;
use crate::cases::{self, Random};

/// The seeds of a target of [`super::TARGETS`]; none for another name.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "wire" => payloads(),
        "decode_qsgd" => choices(8, &[0, 1, 2, 3]),
        "decode_uniform" => choices(8, &[0, 1]),
        "decode_onebit" => choices(1, &[0]),
        "sparse" => super::sparse::seeds(),
        "low_rank" => super::low_rank::seeds(),
        _ => Vec::new(),
    }
}

/// A payload of every setting, and a few that end early or late.
fn payloads() -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for (k, case) in cases::settings().iter().enumerate() {
        let (_, fill) = cases::FILLS[k % cases::FILLS.len()];
        let n = [1, 40, 257, 600][k % 4];
        // The settings are valid ones, which the suite shows; a seed that could not be made would only be missing.
        seeds.extend(device.encode(&case.codec(), &fill(n), cases::seed()).map(gradwire::Payload::into_bytes));
    }
    let more: Vec<_> =
        seeds.iter().step_by(20).flat_map(|s| [s[..s.len() - 1].to_vec(), [s, &[0][..]].concat()]).collect();
    seeds.extend(more);
    seeds
}

/// Choosing bytes for every width and flag, in buckets of every size, each also with one field taken as it comes.
fn choices(widths: u8, flags: &[u8]) -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut seeds = Vec::new();
    for width in 0..widths {
        for flag in flags {
            let mut seed = vec![width, seeds.len() as u8 % 10, width % 3, *flag, width % 3, 200, 0, 0, 0, 0];
            seed.extend((0..64).map(|_| random.bits() as u8));
            // A byte of the header's choices from RAW on: its field is whatever follows.
            let mut raw = seed.clone();
            raw[seeds.len() / 2 % 10] = forge::RAW;
            seeds.extend([seed, raw]);
        }
    }
    seeds
}
