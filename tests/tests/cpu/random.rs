//! Random-k: the same on every backend as a second implementation has it, and what the papers promise of it.

use gradwire::{Device, Error, RandomK, Seed};
use gradwire_tests::cases::{Random, normal};
use gradwire_tests::oracle::philox;
use gradwire_tests::require;

/// Elements, and how many of them: around a power of two, a workgroup, a task of the CPU, and all there are.
const CASES: [(usize, u64); 12] = [
    (1, 1),
    (2, 1),
    (3, 3),
    (5, 2),
    (700, 410),
    (255, 255),
    (257, 256),
    (1000, 10),
    (4096, 300),
    (8193, 8193),
    (65_537, 8200),
    (70_001, 70_001),
];

fn seed() -> Seed {
    Seed::new(0x0123_4567_89ab_cdef).step(0x1_0000_0005).tensor(9)
}

/// The places of the first `k` numbers below `n`, written from `docs/wire.md`, for this test's seed.
fn places(n: usize, k: u64) -> Vec<usize> {
    let key = (0x89ab_cdef, 0x0123_4567 ^ 0xa409_3822);
    let keys: Vec<u64> = (0..2).flat_map(|call| philox([call, 9, 5, 1], key)).map(u64::from).collect();
    let bits = (8..32).find(|bits| n as u64 <= 1 << bits).expect("up to 2^31");
    let (low, high) = (bits / 2, bits - bits / 2);
    let mix = |half: u64, key: u64, bits: u32| {
        let product = (half ^ key) * 0x85eb_ca6b % (1 << 32);
        let product = (product ^ (product / (1 << 13))) * 0xc2b2_ae35 % (1 << 32);
        product / (1 << (32 - bits))
    };
    let place = |number: u64| {
        let mut at = number;
        loop {
            let (mut lower, mut upper) = (at % (1 << low), at / (1 << low));
            for pair in keys.chunks(2) {
                upper ^= mix(lower, pair[0], high);
                lower ^= mix(upper, pair[1], low);
            }
            at = upper * (1 << low) + lower;
            if at < n as u64 {
                return at as usize;
            }
        }
    };
    (0..k).map(place).collect()
}

/// Values of every kind, some of them special.
fn inputs(n: usize) -> Vec<Vec<f32>> {
    let mut random = Random(n as u64);
    let bits: Vec<f32> = (0..n).map(|_| f32::from_bits((random.bits() >> 32) as u32)).collect();
    vec![normal(n, 7), bits, normal(n, 8).iter().map(|v| v * 1e-40).collect()]
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(device: &Device, cases: &[(usize, u64)]) {
    for &(n, k) in cases {
        let places = places(n, k);
        for x in inputs(n) {
            let label = format!("{device}: {k} of {n}");
            let (plain, scaled) = (RandomK::count(k), RandomK::count(k).unbiased());
            let values = device.encode_random(&plain, &x, seed()).unwrap_or_else(|e| panic!("{label}: {e}"));
            let expected: Vec<u32> = places.iter().map(|at| canonical(x[*at])).collect();
            assert_eq!(bits(&values), expected, "{label}");
            let factor = (n as f64 / k as f64) as f32;
            let times: Vec<u32> = places.iter().map(|at| canonical(x[*at] * factor)).collect();
            assert_eq!(bits(&device.encode_random(&scaled, &x, seed()).expect("valid")), times, "{label}, unbiased");

            let mut decoded = vec![0u32; n];
            places.iter().zip(&values).for_each(|(at, value)| decoded[*at] = value.to_bits());
            assert_eq!(bits(&device.decode_random(&plain, &values, n, seed()).expect("valid")), decoded, "{label}");
            let mut sums = normal(n, 9);
            let mut added = sums.clone();
            places.iter().zip(&values).for_each(|(at, value)| added[*at] += -0.3 * value);
            device.decode_random_add(&plain, &values, -0.3, &mut sums, seed()).expect("valid");
            assert_eq!(bits(&sums), added.iter().map(|v| canonical(*v)).collect::<Vec<_>>(), "{label}, added");

            let before = normal(n, 10);
            // With the factor feedback converges where more than half of the entries are sent.
            for (codec, factor) in [(plain, 1.0), (scaled, factor)].into_iter().filter(|(_, factor)| *factor < 2.0) {
                let mut residual = before.clone();
                let sent = device.encode_random_with_feedback(&codec, &x, &mut residual, seed()).expect("valid");
                let mut left: Vec<f32> = x.iter().zip(&before).map(|(x, e)| x + e).collect();
                let taken: Vec<u32> = places.iter().map(|at| canonical(left[*at] * factor)).collect();
                assert_eq!(bits(&sent), taken, "{label}, with feedback");
                for (at, sent) in places.iter().zip(&sent) {
                    left[*at] = if factor == 1.0 { 0.0 } else { left[*at] - sent };
                }
                // A step that is not finite leaves the residual.
                let is_finite = x.iter().zip(&before).all(|(x, e)| (x + e).is_finite());
                let left = if is_finite { left } else { before.clone() };
                assert_eq!(bits(&residual), bits(&left), "{label}, residual");
            }
        }
    }
}

#[test]
fn every_backend_gives_what_the_page_says() {
    for device in require::devices() {
        check(&device, if gradwire_tests::is_ptx_machine(&device) { &CASES[..9] } else { &CASES });
    }
}

/// The numbers of the entries, of a gradient of element numbers.
fn drawn(n: usize, k: u64, seed: Seed) -> Vec<usize> {
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let values = Device::cpu().encode_random(&RandomK::count(k), &x, seed).expect("valid");
    values.iter().map(|value| *value as usize).collect()
}

/// Pearson's statistic of counts that are expected to be equal.
fn chi_square(counts: &[u64]) -> f64 {
    let each = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|count| (*count as f64 - each).powi(2) / each).sum()
}

/// What the statistic of so many degrees of freedom passes with a probability of about 1e-9 (Wilson and Hilferty's
/// approximation; six deviations).
fn limit(freedom: usize) -> f64 {
    let f = freedom as f64;
    f * (1.0 - 2.0 / (9.0 * f) + 6.0 * (2.0 / (9.0 * f)).sqrt()).powi(3)
}

/// Elements are drawn equally often, and so are ordered pairs, over seeds that differ in run, step or tensor. Each
/// statistic raises a false alarm once in 10^9 runs.
#[test]
fn elements_and_pairs_are_drawn_equally_often() {
    let runs = 60_000u64;
    for n in [3, 7, 11, 16, 37] {
        let seeds = [
            ("run", Seed::new as fn(u64) -> Seed),
            ("step", |i| Seed::new(5).step(i)),
            ("tensor", |i| Seed::new(5).tensor(i as u32)),
        ];
        for (what, seed) in seeds {
            let (mut single, mut pairs) = (vec![0; n], vec![0; n * n]);
            for run in 0..runs {
                let [a, b] = drawn(n, 2, seed(run))[..] else { panic!("two") };
                assert_ne!(a, b);
                single[a] += 1;
                pairs[a * n + b] += 1;
            }
            let off: Vec<u64> = (0..n * n).filter(|at| at / n != at % n).map(|at| pairs[at]).collect();
            for (name, counts) in [("elements", single), ("pairs", off)] {
                let (found, most) = (chi_square(&counts), limit(counts.len() - 1));
                assert!(found <= most, "{name} of {n} by {what}: {found} is above {most}");
            }
        }
    }
}

/// Neighbours are not drawn together more or less often than others: the differences of consecutive entries, among n = 4096.
#[test]
fn differences_of_entries_are_spread() {
    let (n, classes) = (4096, 64);
    let mut counts = vec![0; classes];
    for run in 0..2000 {
        let own = drawn(n, 33, Seed::new(run));
        own.windows(2).for_each(|pair| counts[(pair[1] + n - pair[0]) % n * classes / n] += 1);
    }
    // A difference of 0 does not occur, which the first class lacks: 1/64 of it, far below what is looked for.
    let (found, most) = (chi_square(&counts[1..]), limit(classes - 2));
    assert!(found <= most, "{found} is above {most}");
}

/// E|x - C(x)|^2 = (1 - k/n) |x|^2, and E C(x) = x with the factor: means over 2,000 steps, by Hoeffding, a false alarm
/// once in 10^9 runs each.
#[test]
fn the_error_is_what_the_papers_say() {
    let (device, n, k, runs) = (Device::cpu(), 500, 50, 2000);
    let x = normal(n, 3);
    let square = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let (mut lost, mut mean) = (0.0, vec![0.0; n]);
    for step in 0..runs {
        let seed = Seed::new(1).step(step);
        let values = device.encode_random(&RandomK::count(k), &x, seed).expect("valid");
        let decoded = device.decode_random(&RandomK::count(k), &values, n, seed).expect("valid");
        lost += x.iter().zip(&decoded).map(|(x, d)| f64::from(x - d).powi(2)).sum::<f64>() / runs as f64;
        let codec = RandomK::fraction(0.1).unbiased();
        let values = device.encode_random(&codec, &x, seed).expect("valid");
        let decoded = device.decode_random(&codec, &values, n, seed).expect("valid");
        mean.iter_mut().zip(&decoded).for_each(|(mean, d)| *mean += f64::from(*d) / runs as f64);
    }
    let (all, part) = (square(&x), 1.0 - k as f64 / n as f64);
    let reach = |chances: f64| ((2.0 * chances * 1e9).ln() / (2.0 * runs as f64)).sqrt();
    // A step loses between nothing and |x|^2.
    assert!((lost - part * all).abs() <= all * reach(1.0), "{lost} of {all}");
    for (mean, x) in mean.iter().zip(&x) {
        // An element is 0 or 10 times itself.
        assert!((mean - f64::from(*x)).abs() <= 10.0 * f64::from(x.abs()) * reach(n as f64) + 1e-6, "{mean} for {x}");
    }
}

/// Workers send the same entries, so that sums of what they send decode to sums; other steps and tensors draw others.
#[test]
fn it_is_linear() {
    let (device, n, codec) = (Device::cpu(), 1000, RandomK::fraction(0.05));
    let (a, b) = (normal(n, 1), normal(n, 2));
    let [of_a, of_b] = [(&a, 0), (&b, 5)].map(|(x, rank)| device.encode_random(&codec, x, seed().worker(rank)));
    let sum: Vec<f32> = of_a.expect("valid").iter().zip(of_b.expect("valid")).map(|(a, b)| a + b).collect();
    let both: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(sum, device.encode_random(&codec, &both, seed()).expect("valid"));
    for other in [seed().step(1), seed().tensor(10), Seed::new(1)] {
        assert_ne!(drawn(n, 50, seed()), drawn(n, 50, other));
    }
}

/// What is sent and what is left add up to what was there, exactly, on values whose sums are exact; with the factor
/// too.
#[test]
fn feedback_loses_nothing() {
    let n = 600;
    let mut random = Random(4);
    // A factor of 1.5 halves what it leaves, a bit further each time.
    for (codec, steps) in
        [(RandomK::fraction(0.1), 40), (RandomK::count(300), 40), (RandomK::count(400).unbiased(), 10)]
    {
        let (mut residual, mut sent, mut given) = (vec![0.0f32; n], vec![0.0f64; n], vec![0.0f64; n]);
        for step in 0..steps {
            let x: Vec<f32> =
                (0..n).map(|_| (random.bits() % 2001) as f32 / 1000.0 * 1024.0 - 1024.0).map(f32::round).collect();
            let seed = Seed::new(1).step(step);
            let values =
                Device::cpu().encode_random_with_feedback(&codec, &x, &mut residual, seed).expect("omega is below 1");
            let decoded = Device::cpu().decode_random(&codec, &values, n, seed).expect("valid");
            for i in 0..n {
                (sent[i], given[i]) = (sent[i] + f64::from(decoded[i]), given[i] + f64::from(x[i]));
            }
        }
        for i in 0..n {
            assert_eq!(sent[i] + f64::from(residual[i]), given[i], "{codec:?}, element {i}");
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let device = Device::cpu();
    for part in [0.0, -0.1, 1.5, f64::NAN] {
        let error = device.encode_random(&RandomK::fraction(part), &[1.0], seed()).expect_err("no such part");
        assert!(error.to_string().contains("above 0 and up to 1"), "{error}");
    }
    for (k, says) in [(0, "1 or more"), (4, "at most the elements")] {
        let error = device.encode_random(&RandomK::count(k), &[1.0; 3], seed()).expect_err("no such count");
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = device.decode_random(&RandomK::count(2), &[1.0; 3], 9, seed()).expect_err("two values");
    assert!(matches!(error, Error::Length { found: 3, expected: 2, .. }), "{error:?}");
    let mut residual = [5.0; 3];
    let diverges = RandomK::count(1).unbiased();
    let error =
        device.encode_random_with_feedback(&diverges, &[1.0; 3], &mut residual, seed()).expect_err("omega is 2");
    assert!(error.to_string().contains("leave out unbiased()") && residual == [5.0; 3], "{error}");
    let error = device.encode_random_with_feedback(&RandomK::count(1), &[1.0; 4], &mut residual, seed());
    assert!(matches!(error, Err(Error::Length { found: 3, expected: 4, .. })));
    for device in require::devices() {
        assert!(device.encode_random(&RandomK::fraction(0.1), &[], seed()).expect("nothing").is_empty(), "{device}");
        assert!(device.decode_random(&RandomK::fraction(0.1), &[], 0, seed()).expect("nothing").is_empty(), "{device}");
    }
}
