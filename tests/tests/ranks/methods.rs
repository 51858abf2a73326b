//! GRACE's methods beside GRACE's code, whose values are computed here from its formulas: a first step of one rank is
//! the same, and each difference that [`Method::differs`](gradwire::Method) says is seen.

use gradwire::{Compressor, Device, Policy, Recipe, Tensor};
use gradwire_collectives::Threads;
use gradwire_tests::cases;
use half::f16;

use crate::training::{RUN, together};

/// The eight numbers that all methods of GRACE were run on.
const V: [f32; 8] = [0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 2.0, 0.25];

/// The means of steps in which every rank has a gradient of its own.
fn means(method: &str, steps: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
    let (ranks, elements) = (steps[0].len(), steps[0][0].len() as u64);
    let rows = if elements == 1024 { 32 } else { 2 };
    let tensors = [Tensor::new("", [rows, elements / rows])];
    let policy = Policy::new(format!("grace:{method}").as_str()).expect("a method").small(0);
    let seen = together(Threads::group(ranks as u32).expect("ranks"), |rank, mut group| {
        let mut compressor = Compressor::with_policy(&policy, &tensors, RUN).expect("valid");
        let step = |gradients: &Vec<Vec<f32>>| {
            let mut gradient = gradients[rank as usize].clone();
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it runs");
            gradient
        };
        steps.iter().map(step).collect::<Vec<_>>()
    });
    assert!(seen.iter().all(|means| means == &seen[0]), "{method}: ranks differ");
    seen[0].clone()
}

/// The mean of a first step of these ranks.
fn mean(method: &str, gradients: &[&[f32]]) -> Vec<f32> {
    let of_ranks = gradients.iter().map(|gradient| gradient.to_vec()).collect();
    means(method, &[of_ranks]).remove(0)
}

fn signs(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| if *v >= 0.0 { 1.0 } else { -1.0 }).collect()
}

/// The k elements that are largest, the first of equal ones, and zeros.
fn largest(x: &[f32], k: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()).then(a.cmp(b)));
    let mut kept = vec![0.0; x.len()];
    order[..k].iter().for_each(|at| kept[*at] = x[*at]);
    kept
}

/// What a rank's first step decodes to in GRACE's code, by its formula; none of a method that draws.
fn theirs(method: &str, x: &[f32]) -> Option<Vec<f32>> {
    let n = x.len() as f32;
    Some(match method {
        "none" => x.to_vec(),
        "fp16" => x.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        "onebit" => {
            let side = |is_below: bool| {
                let side: Vec<f32> = x.iter().copied().filter(|v| (*v < 0.0) == is_below).collect();
                side.iter().sum::<f32>() / side.len().max(1) as f32
            };
            x.iter().map(|v| side(*v < 0.0)).collect()
        }
        "signsgd" | "signum" => signs(x),
        "efsignsgd" => {
            let scale = x.iter().map(|v| v.abs()).sum::<f32>() / n;
            signs(x).iter().map(|sign| scale * sign).collect()
        }
        "topk" => largest(x, (n * 0.3) as usize),
        _ => return None,
    })
}

/// Numbers that have few bits, so that sums of them have none to round.
fn dyadic(n: usize, seed: u64) -> Vec<f32> {
    cases::normal(n, seed).iter().map(|v| (v * 64.0).round() / 64.0).collect()
}

/// Of one rank, numbers within every range, and lengths of which 0.3 is a whole number: no difference is in play.
#[test]
fn a_first_step_has_the_values_of_their_formula() {
    let mut compared = 0;
    for method in Recipe::methods() {
        for x in [V.repeat(5), dyadic(80, 3), vec![0.5; 40], vec![-2.0; 20], vec![0.0; 10]] {
            let Some(expected) = theirs(method.name, &x) else { continue };
            let found = mean(method.name, &[&x]);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() * 1e-6;
            assert!(found.iter().zip(&expected).all(near), "{}: {found:?}, and theirs {expected:?}", method.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 7 * 5);
}

/// Of each element of a first step, two values that GRACE's code may give by its formula, and how likely the second is;
/// none of a method that draws nothing. QSGD has the levels that are said to differ.
fn drawn(method: &str, x: &[f32]) -> Option<Vec<([f32; 2], f64)>> {
    let n = x.len() as f32;
    let scaled = |v: f32, unit: f32| {
        let level = (v.abs() / unit).floor();
        ([level, level + 1.0].map(|level| (level * unit).copysign(v)), f64::from(v.abs() / unit - level))
    };
    let of: Box<dyn Fn(f32) -> ([f32; 2], f64)> = match method {
        "qsgd" => {
            let norm = x.iter().map(|v| v * v).sum::<f32>().sqrt();
            Box::new(move |v| scaled(v, norm / 127.0))
        }
        "natural" => Box::new(|v| {
            let power = v.abs().log2().floor().exp2();
            ([power, 2.0 * power].map(|power| power.copysign(v)), f64::from(v.abs() / power - 1.0))
        }),
        "terngrad" => {
            let mean = x.iter().sum::<f32>() / n;
            let clip = 2.5 * (x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n).sqrt();
            let clipped = move |v: f32| v.clamp(-clip, clip);
            let largest = x.iter().map(|v| clipped(*v).abs()).fold(0.0, f32::max);
            Box::new(move |v| ([0.0, largest.copysign(v)], f64::from(clipped(v).abs() / largest)))
        }
        "randomk" => Box::new(|v| ([0.0, v], 0.3)),
        _ => return None,
    };
    Some(x.iter().map(|v| of(*v)).collect())
}

/// A first step in each of many runs. By Hoeffding's inequality a right method fails with a probability of 4 * 80 * 2e-12
/// at most.
#[test]
fn a_method_that_draws_has_the_values_and_the_odds_of_its_formula() {
    const RUNS: u64 = 2000;
    let near = |a: f32, b: f32| (a - b).abs() <= b.abs() * 1e-5;
    let x: Vec<f32> = dyadic(80, 3).iter().map(|v| if *v == 0.0 { 0.5 } else { *v }).collect();
    let mut compared = 0;
    for method in Recipe::methods() {
        let Some(expected) = drawn(method.name, &x) else { continue };
        let policy = Policy::new(format!("grace:{}", method.name).as_str()).expect("a method").small(0);
        let mut group = Threads::group(1).expect("a rank").remove(0);
        let mut counts = vec![0u64; x.len()];
        for run in 0..RUNS {
            let mut compressor = Compressor::with_policy(&policy, &[Tensor::new("", [2, 40])], run).expect("valid");
            let mut found = x.clone();
            compressor.exchange(&Device::cpu(), &mut group, &mut found).expect("it runs");
            for (at, ((values, odds), found)) in expected.iter().zip(&found).enumerate() {
                let is_second = near(*found, values[1]);
                assert!(is_second || near(*found, values[0]), "{}: {found} is none of {values:?}", method.name);
                // A value that is a level itself is drawn between it and one that it never becomes.
                assert!(*odds > 0.0 || !is_second, "{}: {found}, and {} is a level", method.name, values[0]);
                counts[at] += u64::from(is_second);
            }
        }
        let most = (RUNS as f64 * (1e12f64).ln() / 2.0).sqrt();
        for (count, (values, odds)) in counts.iter().zip(&expected) {
            let off = *count as f64 - RUNS as f64 * odds;
            assert!(off.abs() < most, "{}: {count} of {RUNS} are {}, and the odds {odds}", method.name, values[1]);
            compared += 1;
        }
    }
    assert_eq!(compared, 4 * 80);
}

/// Every difference that is said is seen. A new one needs a check here.
#[test]
fn every_difference_that_is_said_is_seen() {
    let ones = |n: usize| vec![1.0f32; n];
    let minus = ones(8).iter().map(|v| -v).collect::<Vec<_>>();
    let tie = |method: &str| assert!(mean(method, &[&ones(8), &minus]).iter().all(|v| *v == 0.0), "{method}");
    let kept = |method: &str, n: usize| {
        let x: Vec<f32> = (1..=n).map(|v| v as f32).collect();
        mean(method, &[&x]).iter().filter(|v| **v != 0.0).count()
    };
    let seen = |method: &str, what: &str| match (method, what.split([';', ' ']).next().unwrap_or_default()) {
        ("fp16", "a") => {
            assert!(theirs("fp16", &[1e6]) == Some(vec![f32::INFINITY]));
            assert_eq!(mean(method, &[&[1e6, -1e6]]), [65504.0, -65504.0]);
        }
        ("u8bit", "a") => {
            // Of 1 beside 3, levels are 0.9727 and 1.0172 there; theirs is the lower one (GRACE's code on V).
            let found = mean(method, &[&V]);
            assert!(found[2] > 1.0 && found[2] < 1.03, "{found:?}");
        }
        ("signsgd", "a") => tie("signsgd"),
        ("signum", "a") => tie("signum"),
        ("signum", "the") => {
            // Theirs has 0.9 V - 0.1 V in the second step, so V's signs; here and in TensorFlow it is 0.9 V - V.
            let turned: Vec<f32> = V.iter().map(|v| -v).collect();
            let second = means(method, &[vec![V.to_vec()], vec![turned]]).remove(1);
            assert_eq!(second[2..], signs(&V)[2..].iter().map(|v| -v).collect::<Vec<_>>());
        }
        ("qsgd", "127") => {
            let (norm, found) = (16f32.sqrt(), mean(method, &[&[2.0, 0.0, 2.0, 2.0, 2.0, 0.0]]));
            let levels = found.iter().map(|v| v / norm * 127.0);
            assert!(levels.clone().all(|v| (v - v.round()).abs() < 1e-3) && found.iter().any(|v| *v != 2.0));
        }
        ("natural", "powers") => {
            let x = [2f32.powi(100), 2f32.powi(-120)];
            assert_eq!(mean(method, &[&[x[0]; 4]]), [x[0]; 4]);
            assert_eq!(mean(method, &[&[x[1]; 4]]), [x[1]; 4]);
        }
        ("terngrad", "elements") => assert_eq!(mean(method, &[&[0.5; 64]]), [0.5; 64]),
        ("inceptionn", "numbers") => {
            // Theirs keeps 0.2999878 of 0.3 (GRACE's code).
            let found = mean(method, &[&[0.3, 2.7, 0.01, -0.3]]);
            assert!(found.iter().all(|v| (v * 512.0).fract() == 0.0) && found[0] == 154.0 / 512.0, "{found:?}");
        }
        ("efsignsgd", "the") => {
            let (one, three) = (vec![1.0f32; 8], vec![3.0f32; 8]);
            assert_eq!(mean(method, &[&one, &three]), [2.0; 8]);
        }
        ("sketchml", "exact") => {
            let mut x = vec![0.0f32; 256];
            x[3] = 1.0;
            assert_eq!(mean(method, &[&x]), x);
        }
        ("randomk" | "topk" | "dgc", "k") => assert_eq!((kept(method, 8), (8.0 * 0.3) as usize), (3, 2)),
        ("threshold", "the") => assert_eq!(kept(method, 8), 8),
        ("dgc", "exactly") => assert_eq!(mean(method, &[&ones(1000)]).iter().filter(|v| **v == 1.0).count(), 300),
        ("adaq", "exactly") => {
            let x: Vec<f32> = (1..=20).map(|v| if v % 2 == 0 { v as f32 } else { -(v as f32) }).collect();
            let found = mean(method, &[&x]);
            let sides = [found.iter().filter(|v| **v > 0.0).count(), found.iter().filter(|v| **v < 0.0).count()];
            assert_eq!(sides, [3, 3]);
        }
        ("powersgd", "the") => {
            // The same gradient again, without feedback: a power iteration, which loses less from step to step. A factor
            // that is drawn anew would lose more in half of the steps.
            let x = dyadic(32 * 32, 8);
            let found = means("powersgd+noef", &vec![vec![x.clone()]; 12]);
            let lost = |mean: &Vec<f32>| mean.iter().zip(&x).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let lost: Vec<f64> = found.iter().map(lost).collect();
            assert!(lost.windows(2).all(|two| two[1] < two[0]), "{lost:?}");
        }
        (method, word) => panic!("no check sees what {method} says from {word:?} on"),
    };
    for method in Recipe::methods() {
        method.differs.iter().for_each(|what| seen(method.name, what));
    }
}
