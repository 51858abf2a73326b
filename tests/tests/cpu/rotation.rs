//! Rotations: the same bits on every backend, and what the transform promises, against a second implementation.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{Codec, Device, Drive, Eden, Error, Qsgd, Rotation, Seed};
use gradwire_tests::cases::{Random, normal};
use gradwire_tests::require;
use gradwire_tests::transforms::{inputs, same};

const BLOCKS: [usize; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Lengths around a row, a warp's part, the largest block and several of them, and tails of many blocks.
const LENGTHS: [usize; 10] = [1, 31, 32, 33, 1000, 1025, 8191, 8192, 20_000, 65_999];

fn seed() -> Seed {
    Seed::new(0x0123_4567_89ab_cdef).step(0x1_0000_0005).tensor(9)
}

/// Philox4x32 with 7 rounds, written from the paper.
fn philox(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..7 {
        let (a, b) = (u64::from(c[0]) * 0xD251_1F53, u64::from(c[2]) * 0xCD9E_8D57);
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Whether an element changes its sign, by the seed of this test.
fn is_flipped(at: usize) -> bool {
    let key = [0x89ab_cdef, 0x0123_4567 ^ 0x243f_6a88];
    let words = philox([(at / 128) as u32, 9, 5, 1], key);
    words[at / 32 % 4] >> (at % 32) & 1 == 1
}

/// The blocks of a tensor: each one's first element and its length.
fn blocks(n: usize, block: usize) -> Vec<(usize, usize)> {
    let (mut at, end, mut out) = (0, n.div_ceil(32) * 32, Vec::new());
    let mut size = block;
    while at < end {
        while end - at < size {
            size /= 2;
        }
        out.push((at, size));
        at += size;
    }
    out
}

/// Normal values of deviation 1.
fn unit(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.normal() as f32).collect()
}

/// The transform, by the recursion of the Hadamard matrix: the halves first.
fn hadamard(x: &mut [f32]) {
    if x.len() == 1 {
        return;
    }
    let (low, high) = x.split_at_mut(x.len() / 2);
    hadamard(low);
    hadamard(high);
    for (a, b) in low.iter_mut().zip(high) {
        (*a, *b) = (*a + *b, *a - *b);
    }
}

fn transform(x: &[f32], n: usize, block: usize, inverse: bool) -> Vec<f32> {
    let mut y = x.to_vec();
    y.resize(n.div_ceil(32) * 32, 0.0);
    let flip = |y: &mut [f32]| y.iter_mut().enumerate().filter(|(i, _)| is_flipped(*i)).for_each(|(_, v)| *v = -*v);
    if !inverse {
        flip(&mut y);
    }
    for (at, size) in blocks(n, block) {
        let part = &mut y[at..at + size];
        hadamard(part);
        let scale = (1.0 / (size as f64).sqrt()) as f32;
        part.iter_mut().for_each(|v| *v *= scale);
    }
    if inverse {
        flip(&mut y);
        y.truncate(n);
    }
    y.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = f32::from_bits(0x7fc0_0000));
    y
}

fn check(device: &Device, blocks: &[usize], lengths: &[usize]) {
    for &block in blocks {
        for &n in lengths {
            for (name, x) in inputs(n) {
                let label = format!("{device}: {name}, n = {n}, block {block}");
                let y = device.rotate(Rotation::block(block), &x, seed()).unwrap_or_else(|e| panic!("{label}: {e}"));
                same(&label, &y, &transform(&x, n, block, false));
                let back = device.unrotate(Rotation::block(block), &y, n, seed()).unwrap_or_else(|e| panic!("{e}"));
                same(&label, &back, &transform(&y, n, block, true));
            }
        }
    }
}

#[test]
fn every_vector_width_gives_the_bits_of_the_formula() {
    for cpu in Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()) {
        check(&Device::from_cpu(cpu), &BLOCKS, &LENGTHS);
    }
}

#[test]
fn every_backend_gives_the_bits_of_the_formula() {
    for device in require::devices() {
        if gradwire_tests::is_ptx_machine(&device) {
            check(&device, &BLOCKS, &[1, 1025]);
            check(&device, &[1024, 8192], &[20_000]);
        } else {
            check(&device, &BLOCKS, &LENGTHS);
        }
    }
}

#[test]
fn it_is_orthogonal_to_the_stated_bound() {
    let device = Device::cpu();
    for block in BLOCKS {
        let (n, rotation) = (20_000, Rotation::block(block));
        let x = normal(n, block as u64);
        let y = device.rotate(rotation, &x, seed()).expect("valid");
        let back = device.unrotate(rotation, &y, n, seed()).expect("valid");
        for (at, size) in blocks(n, block) {
            let part = at..(at + size).min(n);
            let square = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let (before, after) = (square(&x[part.clone()]).sqrt(), square(&y[at..at + size]).sqrt());
            // Each way: a rounding of 2^-24 a level, of the multiplication, and of the factor.
            let each = f64::from(size.ilog2() + 2) * 2f64.powi(-24) * 1.001;
            assert!((after - before).abs() <= each * before, "block {block}: {before} became {after}");
            for i in part {
                let off = (f64::from(x[i]) - f64::from(back[i])).abs();
                assert!(off <= 2.0 * each * before + 2f64.powi(-140), "block {block}, element {i}: off by {off:e}");
            }
        }
    }
}

#[test]
fn by_hand() {
    let device = Device::cpu();
    for block in BLOCKS {
        let rotation = Rotation::block(block);
        // A power of four has an exact scale, and one-hot vectors have no sum that is rounded.
        for hot in [0, 5, block - 1] {
            let mut x = vec![0.0f32; block];
            x[hot] = 3.0;
            let y = device.rotate(rotation, &x, seed()).expect("valid");
            let scale = (1.0 / (block as f64).sqrt()) as f32;
            for (i, v) in y.iter().enumerate() {
                let is_negative = ((i & hot).count_ones() % 2 == 1) != is_flipped(hot);
                assert_eq!(*v, if is_negative { -3.0 * scale } else { 3.0 * scale }, "block {block}, {hot}, {i}");
            }
        }
        // Signs of the seed's own are a column of H times them: all of the norm is in one coordinate.
        let x: Vec<f32> = (0..block).map(|i| if is_flipped(i) { -1.0 } else { 1.0 }).collect();
        let y = device.rotate(rotation, &x, seed()).expect("valid");
        assert_eq!(y[0], block as f32 * (1.0 / (block as f64).sqrt()) as f32);
        assert!(y[1..].iter().all(|v| *v == 0.0));
    }
}

/// A coordinate is a sum of the block's elements, each over sqrt(B) and with a sign of its own. By Hoeffding it is
/// beyond t |x| / sqrt(B) with a probability of 2 exp(-t^2 / 2) at most.
#[test]
fn a_constant_has_no_large_coordinate() {
    let (n, block) = (1 << 20, 1024);
    let y = Device::cpu().rotate(Rotation::block(block), &vec![1.0; n], seed()).expect("valid");
    // |x| / sqrt(B) is 1. Over all 2^20 coordinates a false alarm has a probability below 2^21 exp(-8.5^2 / 2) < 1e-9.
    let largest = y.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest <= 8.5, "{largest}");
    assert!(largest > 3.0, "signs that differ give more than a few: {largest}");
}

/// Sums of what workers rotate are rotated sums: workers of a step have the same signs, other steps and tensors have
/// others.
#[test]
fn workers_share_signs_and_steps_do_not() {
    let device = Device::cpu();
    let rotate = |seed| device.rotate(Rotation::default(), &[1.0; 1024], seed).expect("valid");
    assert_eq!(rotate(seed()), rotate(seed().worker(3)));
    for other in [seed().step(1), seed().tensor(10), Seed::new(1)] {
        assert_ne!(rotate(seed()), rotate(other));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let device = Device::cpu();
    for block in [0, 1, 16, 33, 16_384, usize::MAX] {
        let error = device.rotate(Rotation::block(block), &[1.0], seed()).expect_err("no such block");
        assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains("32 to 8192"), "{error}");
    }
    let error = device.unrotate(Rotation::default(), &[0.0; 31], 31, seed()).expect_err("32 are needed");
    assert!(matches!(error, Error::Length { found: 31, expected: 32, .. }), "{error:?}");
    for device in require::devices() {
        assert!(device.rotate(Rotation::default(), &[], seed()).expect("nothing").is_empty(), "{device}");
        assert!(device.unrotate(Rotation::default(), &[], 0, seed()).expect("nothing").is_empty(), "{device}");
    }
}

/// A quantizer that is unbiased stays so after a rotation.
///
/// Given the signs, an element of what comes back is off by a sum of 1024 independent errors of mean zero, each in a
/// range of N / L, over sqrt(1024). By Hoeffding, the mean over T rotations is off by more than t with a probability of
/// 2 exp(-2 T^2 t^2 / sum((N / L)^2)) at most; over 1024 elements together a false alarm has a probability below 1e-9.
#[test]
fn qsgd_stays_unbiased_behind_it() {
    let (device, n, turns, codec) = (Device::cpu(), 1024, 400, Qsgd::bits(4).bucket(1024));
    let x = unit(n, 3);
    let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let (mut mean, mut ranges, mut slack) = (vec![0.0f64; n], 0.0, 0.0f64);
    for step in 0..turns {
        let seed = seed().step(step);
        let rotated = device.rotate(Rotation::default(), &x, seed).expect("valid");
        let range = f64::from(rotated.iter().fold(0.0f32, |m, v| m.max(v.abs()))) / 7.0;
        ranges += range * range;
        // A draw of 16 bits moves an element's mean by less than 2^-16 of a range, and an element that comes back by
        // sqrt(1024) of that at most. The rotations add their stated bound, and twice that for an error that is as
        // large as the gradient.
        slack = slack.max(range * 32.0 * 2f64.powi(-16) + 3.0 * 24.0 * 2f64.powi(-24) * norm);
        let sent = device.encode(&codec, &rotated, seed.worker(1)).expect("valid");
        let decoded = device.decode(&sent).expect("its own");
        let back = device.unrotate(Rotation::default(), &decoded, n, seed).expect("valid");
        mean.iter_mut().zip(back).for_each(|(m, v)| *m += f64::from(v) / turns as f64);
    }
    let most = (ranges * (2.0 * n as f64 * 1e9).ln() / 2.0).sqrt() / turns as f64 + slack;
    for (i, (mean, x)) in mean.iter().zip(&x).enumerate() {
        assert!((mean - f64::from(*x)).abs() <= most, "element {i}: {mean} for {x}, {most} allowed");
    }
    assert!(most < 0.25, "elements have a deviation of 1, and the bound is {most}");
}

/// Beside one large element, QSGD loses the others; after a rotation it does not. The seeds are fixed, so nothing is
/// left to chance.
#[test]
fn a_large_element_costs_less_behind_it() {
    let (device, n, codec) = (Device::cpu(), 1024, Qsgd::bits(4).bucket(1024));
    let mut x = unit(n, 5);
    x[77] = 100.0;
    let error = |found: &[f32]| x.iter().zip(found).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
    let send = |x: &[f32]| device.decode(&device.encode(&codec, x, seed()).expect("valid")).expect("its own");
    let rotated = device.rotate(Rotation::default(), &x, seed()).expect("valid");
    let back = device.unrotate(Rotation::default(), &send(&rotated), n, seed()).expect("valid");
    let (alone, behind) = (error(&send(&x)), error(&back));
    assert!(behind * 20.0 < alone, "{behind} behind a rotation, {alone} without");
}

/// A device whose bindings are small takes a tensor in several passes, of which each draws the signs of its own rows.
#[cfg(feature = "wgpu")]
#[test]
fn passes_of_small_limits_give_the_same_bits() {
    let Ok(wgpu) = gradwire::backend::wgpu::Wgpu::open() else {
        eprintln!("not tested: there is no adapter");
        return;
    };
    let limits = gradwire::plan::Limits { binding_bytes: 4 << 19, groups: 65_535, ..gradwire::plan::Limits::NONE };
    let device = Device::from(wgpu.with_limits(limits));
    let (rotation, x) = (Rotation::block(256), normal((1 << 19) + 1025, 11));
    let y = device.rotate(rotation, &x, seed()).expect("two passes");
    same("small limits", &y, &Device::cpu().rotate(rotation, &x, seed()).expect("valid"));
    let back = device.unrotate(rotation, &y, x.len(), seed()).expect("two passes");
    same("small limits, back", &back, &Device::cpu().unrotate(rotation, &y, x.len(), seed()).expect("valid"));
}

/// What comes back of a block that is rotated, sent as one bucket, and rotated back.
fn by(codec: &dyn Codec, x: &[f32], seed: Seed) -> Vec<f32> {
    let (device, rotation) = (Device::cpu(), Rotation::block(x.len()));
    let rotated = device.rotate(rotation, x, seed).expect("valid");
    let decoded = device.decode(&device.encode(codec, &rotated, seed).expect("valid")).expect("its own");
    device.unrotate(rotation, &decoded, x.len(), seed).expect("valid")
}

/// Behind Hadamard and signs DRIVE is not unbiased. One element alone comes back; of two, a and a smaller b, the first
/// comes back as (a^2 + b^2) / a and the second as 0, whatever the signs: all magnitudes that are rotated are a + b or
/// a - b, and have the signs of a.
#[test]
fn drive_behind_it_has_the_stated_bias_for_two_elements() {
    for block in BLOCKS {
        for (a, b) in [(3.0f32, 0.0f32), (-3.0, 1.0), (2.0, 1.75)] {
            for step in 0..20 {
                let mut x = vec![0.0; block];
                (x[block / 3], x[block - 2]) = (a, b);
                let back = by(&Drive::new().bucket(block), &x, seed().step(step));
                let mut expected = vec![0.0; block];
                expected[block / 3] = (a * a + b * b) / a;
                // Vectors are no longer than 2 |a|. Each rotation is off by (log2 B + 2) 2^-24 of that, and what the
                // first adds to |y|^2 and |y|_1 to the scale is below 3.5 of it; so the scale's own rounding is
                // below 6.
                let most = f64::from(5 * block.ilog2() + 16) * 2f64.powi(-24) * 2.0 * f64::from(a.abs());
                for (i, (found, expected)) in back.iter().zip(&expected).enumerate() {
                    let off = f64::from(found - expected).abs();
                    assert!(off <= most, "block {block}, {a} and {b}: element {i} is {found}, not {expected}");
                }
            }
        }
    }
}

/// What a formula in binary64 makes of a rotated bucket, and how many elements rounding may give another code.
type InReals = dyn Fn(&[f64]) -> (Vec<f64>, usize);

/// Squares over magnitudes, with signs.
fn drive_in_reals(y: &[f64]) -> (Vec<f64>, usize) {
    let squares = y.iter().map(|v| v * v).sum::<f64>();
    let scale = squares / y.iter().map(|v| v.abs()).sum::<f64>();
    let unsure = y.iter().filter(|v| v.abs() <= 2f64.powi(-21) * squares.sqrt()).count();
    (y.iter().map(|v| scale.copysign(*v)).collect(), unsure)
}

/// Squares over products with the centroids of two bits, which are those.
fn eden_in_reals(y: &[f64]) -> (Vec<f64>, usize) {
    const CENTROIDS: [f64; 2] = [3709.0 / 8192.0, 12373.0 / 8192.0];
    let squares = y.iter().map(|v| v * v).sum::<f64>();
    let midpoint = 257_320.0 / 262_144.0 * (squares / y.len() as f64).sqrt();
    let centroids: Vec<f64> = y.iter().map(|v| CENTROIDS[usize::from(v.abs() >= midpoint)].copysign(*v)).collect();
    let scale = squares / y.iter().zip(&centroids).map(|(v, c)| v * c).sum::<f64>();
    let near =
        |v: &&f64| v.abs() <= 2f64.powi(-21) * squares.sqrt() || (v.abs() / midpoint - 1.0).abs() < 2f64.powi(-15);
    (centroids.iter().map(|c| c * scale).collect(), y.iter().filter(near).count())
}

/// The mean over many rotations is what a codec has on average over all signs, which twelve elements of a block have
/// few enough of to go through.
///
/// An element that comes back is in a range that is found there too. By Hoeffding, its mean over T rotations is off by
/// more than t with a probability of 2 exp(-2 T t^2 / range^2) at most; over 64 elements together a false alarm has a
/// probability below 1e-9. Where rounding may give an element of a pattern another code, what comes back is off by less
/// than the gradient's norm. That average is nearer to the gradient than the error of one rotation is by a factor of 8.
fn has_the_mean_over_all_signs(codec: &dyn Codec, in_reals: &InReals, seed_of_x: u64) {
    let (n, turns, spread) = (64usize, 4000u64, 12);
    let mut x = vec![0.0f32; n];
    unit(spread, seed_of_x).into_iter().enumerate().for_each(|(i, v)| x[(i * 5 + i / 3) % n] = v);
    let places: Vec<usize> = (0..n).filter(|i| x[*i] != 0.0).collect();
    assert_eq!(places.len(), spread);
    let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let entry = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -0.125 } else { 0.125 };
    let (mut average, mut low, mut high, mut error) = (vec![0.0f64; n], vec![f64::MAX; n], vec![f64::MIN; n], 0.0);
    let mut other = 0.0;
    for signs in 0..1u32 << spread {
        let flip = |k: usize| if signs >> k & 1 == 1 { -1.0 } else { 1.0 };
        let y: Vec<f64> = (0..n)
            .map(|i| places.iter().enumerate().map(|(k, j)| entry(i, *j) * flip(k) * f64::from(x[*j])).sum())
            .collect();
        let (decoded, unsure) = in_reals(&y);
        other += unsure as f64 * norm / f64::from(1u32 << spread);
        // Signs of elements that are zero turn what comes back there and nothing else: on average it is 0.
        for (k, j) in places.iter().enumerate() {
            let back: f64 = (0..n).map(|i| entry(i, *j) * decoded[i]).sum::<f64>() * flip(k);
            average[*j] += back / f64::from(1u32 << spread);
            (low[*j], high[*j]) = (low[*j].min(back), high[*j].max(back));
        }
        let longest = decoded.iter().map(|d| d * d).sum::<f64>();
        error += (longest - norm * norm) / f64::from(1u32 << spread);
        for j in (0..n).filter(|j| x[*j] == 0.0) {
            (low[j], high[j]) = (low[j].min(-longest.sqrt()), high[j].max(longest.sqrt()));
        }
    }
    let mut mean = vec![0.0f64; n];
    for step in 0..turns {
        let back = by(codec, &x, seed().step(step));
        mean.iter_mut().zip(back).for_each(|(m, v)| *m += f64::from(v) / turns as f64);
    }
    assert!(other < 0.01 * norm, "roundings may be off by {other}, of {norm}");
    for i in 0..n {
        // Roundings as above, of vectors no longer than sqrt(64) |x|.
        let most = (high[i] - low[i]) * ((2.0 * n as f64 * 1e9).ln() / (2.0 * turns as f64)).sqrt()
            + 46.0 * 2f64.powi(-24) * 8.0 * norm
            + other;
        assert!((mean[i] - average[i]).abs() <= most, "element {i}: {} for {}, {most} allowed", mean[i], average[i]);
    }
    let bias = average.iter().zip(&x).map(|(m, x)| (m - f64::from(*x)).powi(2)).sum::<f64>();
    assert!(bias * 64.0 < error, "a squared bias of {bias}, and a squared error of {error}");
}

#[test]
fn drive_behind_it_has_the_mean_over_all_signs() {
    has_the_mean_over_all_signs(&Drive::new().bucket(64), &drive_in_reals, 9);
}

#[test]
fn eden_behind_it_has_the_mean_over_all_signs() {
    has_the_mean_over_all_signs(&Eden::bits(2).bucket(64), &eden_in_reals, 9);
}

#[test]
fn drive_is_unbiased_behind_uniformly_random_rotations() {
    is_unbiased_behind_uniformly_random_rotations(&Drive::new().bucket(64));
}

#[test]
fn eden_is_unbiased_behind_uniformly_random_rotations() {
    for bits in [2, 4] {
        is_unbiased_behind_uniformly_random_rotations(&Eden::bits(bits).bucket(64));
    }
}

/// Behind a rotation that is uniformly random DRIVE and EDEN are unbiased (DRIVE's theorem 1, EDEN's theorem 2.1).
///
/// What comes back is x + e with <e, x> = 0 but for the scale's rounding, and given |e| the direction of e is uniform
/// across x, since turning about x changes nothing. A coordinate of a direction that is uniform in k dimensions is
/// sub-Gaussian with the variance 1/k. So an element's mean over T rotations is off by more than t with a probability
/// of 2 exp(-k T^2 t^2 / (2 sum |e|^2)) at most, k = 63; over 64 elements together a false alarm has a probability
/// below 1e-9.
fn is_unbiased_behind_uniformly_random_rotations(codec: &dyn Codec) {
    let (device, n, turns) = (Device::cpu(), 64usize, 2000);
    let (mut random, mut x) = (Random(71), unit(n, 4));
    // An element that is larger than the others together, which no rotation of few signs would hide.
    x[9] = 40.0;
    let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let (mut mean, mut squares) = (vec![0.0f64; n], 0.0);
    for _ in 0..turns {
        // Gram and Schmidt, of vectors whose directions are uniform.
        let mut rows: Vec<Vec<f64>> = Vec::new();
        while rows.len() < n {
            let mut row: Vec<f64> = (0..n).map(|_| random.normal()).collect();
            for other in rows.iter().chain(&rows) {
                let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
            let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            row.iter_mut().for_each(|v| *v /= length);
            rows.push(row);
        }
        let turned = |row: &Vec<f64>| row.iter().zip(&x).map(|(r, x)| r * f64::from(*x)).sum::<f64>() as f32;
        let y: Vec<f32> = rows.iter().map(turned).collect();
        let decoded = device.decode(&device.encode(codec, &y, seed()).expect("valid")).expect("its own");
        let back: Vec<f64> =
            (0..n).map(|j| rows.iter().zip(&decoded).map(|(row, d)| row[j] * f64::from(*d)).sum()).collect();
        squares += back.iter().zip(&x).map(|(b, x)| (b - f64::from(*x)).powi(2)).sum::<f64>();
        mean.iter_mut().zip(back).for_each(|(m, v)| *m += v / turns as f64);
    }
    // Elements of y are rounded, and the scale is off by less than 2^-17 of itself: each magnitude loses 2^-23 of the
    // largest, which is less than 64 times their mean.
    let slack = 2f64.powi(-17) * norm;
    let most = (2.0 * squares * (2.0 * n as f64 * 1e9).ln() / (n - 1) as f64).sqrt() / turns as f64 + slack;
    for (i, (mean, x)) in mean.iter().zip(&x).enumerate() {
        assert!((mean - f64::from(*x)).abs() <= most, "element {i}: {mean} for {x}, {most} allowed");
    }
    assert!(most < 0.03 * norm, "the norm is {norm}, and the bound {most}");
}
