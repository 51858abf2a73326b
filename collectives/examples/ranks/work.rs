//! What ranks do together, with results that do not depend on the engine.

use std::time::Instant;

use gradwire::{Collective, Compressor, Device, Error};

/// Recipes of every kind: what is gathered, what is summed, factors, entries, and memories.
const TEXTS: [&str; 12] = [
    "none",
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=4,bucket=64,l2,contractive+elias+ef",
    "uniform:bits=4,bucket=32+momentum=0.9",
    "onebit",
    "topk:0.01+ef",
    "topk:0.05+qsgd:bits=4,bucket=32+ef",
    "topk:0.02+momentum=0.9",
    "powersgd:rank=2",
    "randomk:0.05",
    "sign",
    "natural:bits=8+ef",
];
pub(crate) const SHAPES: [&[u64]; 5] = [&[64, 48], &[64], &[48, 40], &[1, 5000], &[35, 41]];
const RUN: u64 = 11;
const STEPS: u64 = 3;

/// A compressor of the model that all ranks have.
pub(crate) fn compressor(text: &str) -> Result<Compressor, Error> {
    Compressor::new(text, SHAPES, RUN)
}

/// A gradient of a rank: SplitMix64, the sum of four draws.
pub(crate) fn gradient(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut state = (u64::from(rank) << 32) ^ step;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..elements).map(|_| 0.01 * (draw() + draw() + draw() + draw())).collect()
}

/// Bytes of any length for another rank.
fn part(from: u32, to: u32, round: u32) -> Vec<u8> {
    // None, one, what goes with a head, and more than that.
    let len = [0, 1, 17, 4072, 4073, 9000, 100_000][((3 * from + to + round) % 7) as usize];
    (0..len).map(|at: u32| (from * 31 + to * 7 + round + at) as u8).collect()
}

/// FNV-1a of 64 bits.
struct Hash(u64);

impl Hash {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// With its length, so that bytes do not move between what is hashed.
    fn part(&mut self, bytes: &[u8]) {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    fn values(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.bytes(&value.to_bits().to_le_bytes()));
    }
}

/// Every operation, and steps of every recipe; the hash of all that this rank gets.
pub(crate) fn everything(group: &mut dyn Collective) -> Result<u64, Error> {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    let mut buffers = (vec![b"old".to_vec(); 11], Vec::new(), b"old".to_vec());
    for round in 0..7 {
        operations(group, round, &mut buffers, &mut hash)?;
    }
    let device = Device::cpu();
    for text in TEXTS {
        let mut compressor = compressor(text)?;
        for step in 0..STEPS {
            let mut gradient = gradient(compressor.elements(), group.rank(), step);
            compressor.exchange(&device, group, &mut gradient)?;
            hash.values(&gradient);
        }
        hash.part(&compressor.state()?);
    }
    Ok(hash.0)
}

type Buffers = (Vec<Vec<u8>>, Vec<Vec<u8>>, Vec<u8>);

fn operations(
    group: &mut dyn Collective,
    round: u32,
    (all, from, theirs): &mut Buffers,
    hash: &mut Hash,
) -> Result<(), Error> {
    let (rank, ranks) = (group.rank(), group.ranks());
    group.all_gather(&part(rank, 0, round), all)?;
    all.iter().for_each(|bytes| hash.part(bytes));
    let to: Vec<Vec<u8>> = (0..ranks).map(|to| part(rank, to, round)).collect();
    let to: Vec<&[u8]> = to.iter().map(Vec::as_slice).collect();
    group.all_to_all(&to, from)?;
    from.iter().for_each(|bytes| hash.part(bytes));
    for len in [0, 1, 2, 1000, 30_011] {
        let mut sums = gradient(len, rank, u64::from(round));
        group.all_reduce_sum(&mut sums)?;
        hash.values(&sums);
    }
    // Neighbours in pairs; the last one of an odd number stays out.
    if rank ^ 1 < ranks {
        group.exchange(rank ^ 1, &part(rank, rank ^ 1, round), theirs)?;
        hash.part(theirs);
    }
    for root in 0..ranks {
        let mut bytes = if rank == root { part(root, 9, round) } else { b"old".to_vec() };
        group.broadcast(root, &mut bytes)?;
        hash.part(&bytes);
    }
    Ok(())
}

/// Prints the median time of a gather and of a sum, by bytes of a rank.
pub(crate) fn times(group: &mut dyn Collective) -> Result<(), Error> {
    let mut all = Vec::new();
    for bytes in [8usize, 1 << 10, 1 << 16, 1 << 20, 1 << 24] {
        let (mine, mut values) = (vec![1; bytes], vec![1.0; bytes / 4]);
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..11 {
            let start = Instant::now();
            group.all_gather(&mine, &mut all)?;
            taken[0].push(start.elapsed());
            let start = Instant::now();
            group.all_reduce_sum(&mut values)?;
            taken[1].push(start.elapsed());
        }
        let [gather, sum] = taken.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        if group.rank() == 0 {
            println!("{bytes:>9} bytes: gather {gather:>9.1} us, sum {sum:>9.1} us");
        }
    }
    Ok(())
}
