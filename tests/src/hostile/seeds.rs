//! What a fuzzer starts from, built rather than kept: the same bytes on every machine, and none to review.

use gradwire::Device;

use super::forge;
use crate::cases::{self, Random};
use crate::formula::CODECS;

/// The seeds of a target of [`super::TARGETS`]; none for another name.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "wire" => payloads(),
        "decode" => choices(),
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

/// Choices of each codec: as many of one as of the other, and enough for the one with the most widths and flags.
const EACH: usize = 32;

/// Choosing bytes for every codec, width and flag, in buckets of every size, each also with one field taken as it
/// comes.
fn choices() -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut seeds = Vec::new();
    for (codec, tests) in CODECS.iter().enumerate() {
        let (widths, flags) = (tests.page.widths.len(), 1 << tests.page.flags.count_ones());
        for index in 0..EACH {
            let (width, flag) = ((index % widths) as u8, (index / widths % flags) as u8);
            let mut seed = vec![codec as u8, width, index as u8 % 10, width % 3, flag, width % 3, 200, 0, 0, 0, 0];
            seed.extend((0..64).map(|_| random.bits() as u8));
            // A byte of the header's choices from RAW on: its field is whatever follows.
            let mut raw = seed.clone();
            raw[1 + index % 10] = forge::RAW;
            seeds.extend([seed, raw]);
        }
    }
    seeds
}
