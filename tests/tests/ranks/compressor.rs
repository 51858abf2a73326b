//! A model's gradients between ranks: the same bits on every rank, those of the stages one after another, and state
//! that is kept, undone and restored.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::exchanges::Forged;
use crate::training::{
    Failing, HOST_ALONE, RUN, TEXTS, bits, gradient, host as all, mixed, of, tensors, together, with_estimates,
    with_residuals,
};
use gradwire::{
    Collective, CollectiveError, Compressor, Device, Error, ExchangeError, Matrix, Policy, PowerSgd, Qsgd, Recipe,
    Rotation, SavedError, Seed, SparsePayload, Tensor, TopK,
};
use gradwire_collectives::Threads;
use gradwire_tests::{Depth, cases};

/// Steps of a rank, and the means that it saw.
fn steps(
    compressor: &mut Compressor,
    group: &mut Threads,
    device: &Device,
    which: std::ops::Range<u64>,
) -> Result<Vec<Vec<u32>>, Error> {
    let step = |step| {
        let mut gradient = gradient(compressor.elements(), group.rank(), step);
        compressor.exchange(device, group, &mut gradient)?;
        Ok(bits(&gradient))
    };
    which.map(step).collect()
}

#[test]
fn four_ranks_see_the_same_bits_whoever_is_late() {
    for make in all() {
        let run = |seed| {
            let groups = Threads::with_delays(4, seed).expect("four ranks");
            together(groups, |_, mut group| {
                let mut compressor = make();
                let means = steps(&mut compressor, &mut group, &Device::cpu(), 0..3).expect("it runs");
                (means, compressor.state().expect("between steps"))
            })
        };
        let first = run(1);
        for (means, _) in &first {
            assert!(means == &first[0].0, "{:?}: ranks differ", make().recipes());
        }
        for seed in 2..6 {
            assert!(run(seed) == first, "{:?}: delays {seed}", make().recipes());
        }
    }
}

/// What a quantizer's recipe gives, from the calls of its stages one after another, on every rank.
#[test]
fn an_exchange_is_its_stages_one_after_another() {
    let device = Device::cpu();
    for device in devices(device) {
        quantizer_by_hand(&device);
        selection_by_hand(&device);
    }
}

fn quantizer_by_hand(device: &Device) {
    let (n, ranks) = (3000, 3u32);
    let codec = Qsgd::bits(4).bucket(64);
    let groups = Threads::group(ranks).expect("three ranks");
    let seen = together(groups, |_, mut group| {
        let policy = Policy::new("qsgd:bits=4,bucket=64+momentum=0.75").expect("valid");
        let mut compressor = Compressor::with_policy(&policy, &[Tensor::new("", [60, 50])], RUN).expect("valid");
        let means = steps(&mut compressor, &mut group, &Device::cpu(), 0..3).expect("it runs");
        (means, bits(&compressor.residual().expect("there is memory")))
    });
    let mut residuals = vec![vec![0.0f32; n]; 3];
    let mut momenta = vec![vec![0.0f32; n]; 3];
    for step in 0..3 {
        let mut payloads = Vec::new();
        for rank in 0..ranks {
            let (residual, momentum) = (&mut residuals[rank as usize], &mut momenta[rank as usize]);
            for (u, g) in momentum.iter_mut().zip(gradient(n, rank, step)) {
                *u = 0.75 * *u + g;
            }
            let seed = Seed::new(RUN).step(step).worker(rank);
            payloads.push(device.encode_with_feedback(&codec, &momentum[..], residual, seed).expect("it encodes"));
        }
        let mut mean = vec![0.0; n];
        device.decode_sum(&payloads, 1.0 / 3.0, &mut mean).expect("it decodes");
        for (means, _) in &seen {
            assert_eq!(means[step as usize], bits(&mean), "step {step}");
        }
    }
    for (rank, (_, residual)) in seen.iter().enumerate() {
        assert_eq!(*residual, bits(&residuals[rank]));
    }
}

/// Top-k with quantized values is the selection, then the quantizer on what it kept; the residual is what neither sent.
fn selection_by_hand(device: &Device) {
    for quantizer in [Qsgd::bits(4).bucket(32), Qsgd::bits(4).bucket(32).elias()] {
        values_by_hand(device, quantizer);
    }
}

fn values_by_hand(device: &Device, quantizer: Qsgd) {
    let (n, x) = (3000, gradient(3000, 0, 0));
    let before = cases::normal(n, 77);
    let sums: Vec<f32> = x.iter().zip(&before).map(|(x, e)| x + e).collect();
    let (select, seed) = (TopK::fraction(0.02), Seed::new(RUN).step(4).worker(2));
    let mut residual = before.clone();
    let codec = select.clone().then(quantizer);
    let whole = device.encode_sparse_with_feedback(&codec, &x, &mut residual, seed).expect("it encodes");

    let kept = device.encode_sparse(&select, &sums, seed).expect("it encodes");
    let values: Vec<f32> = kept.indices().iter().map(|index| sums[*index as usize]).collect();
    let inner = device.encode(&quantizer, &values, seed).expect("it encodes");
    assert_eq!(whole.indices(), kept.indices());
    assert!(whole.as_bytes().ends_with(inner.as_bytes()), "the payload of the values is the quantizer's");
    let decoded = device.decode(&inner).expect("it decodes");
    let mut expected = sums;
    for (index, value) in kept.indices().iter().zip(decoded) {
        expected[*index as usize] -= value;
    }
    assert_eq!(bits(&residual), bits(&expected));
}

fn devices(cpu: Device) -> Vec<Device> {
    #[allow(unused_mut, reason = "without features there is one")]
    let mut devices = vec![cpu];
    #[cfg(feature = "wgpu")]
    if let Ok(wgpu) = Device::of(gradwire::BackendKind::Wgpu) {
        devices.push(wgpu);
    }
    #[cfg(feature = "cuda")]
    {
        use gradwire::backend::cuda::Cuda;
        let machine = std::sync::Arc::new(gradwire_ptx_machine::Machine::new((8, 0), 1));
        devices.push(Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits")));
    }
    devices
}

/// But for factors, whose bits are a backend's own.
#[test]
fn every_device_gives_the_bits_of_the_cpu() {
    let run = |mut compressor: Compressor, device: &Device| {
        let mut group = Threads::group(1).expect("one rank").remove(0);
        let means = steps(&mut compressor, &mut group, device, 0..3).expect("valid");
        (means, compressor.state().expect("between steps"))
    };
    let texts = TEXTS.iter().chain(&HOST_ALONE);
    let texts = texts.filter(|text| !text.contains("powersgd")).enumerate();
    let texts = texts.filter(|(index, _)| Depth::of_tests().takes(*index, 4)).map(|(_, text)| text);
    for compressor in texts.map(|text| of(text)).chain([with_residuals(), with_estimates()]) {
        let cpu = run(compressor.clone(), &Device::cpu());
        for device in devices(Device::cpu()) {
            assert!(run(compressor.clone(), &device) == cpu, "{:?} on {device}", compressor.recipes());
        }
    }
}

/// Momentum correction zeroes the momentum of what was sent. With a selection that sends all, momentum has no effect.
#[test]
fn what_was_sent_has_no_momentum() {
    let mut group = Threads::group(1).expect("one rank").remove(0);
    let policy = Policy::new("topk:1+momentum=0.9").expect("valid").small(0);
    let mut compressor = Compressor::with_policy(&policy, &tensors(), RUN).expect("valid");
    for step in 0..3 {
        let expected = gradient(compressor.elements(), 0, step);
        let mut gradient = expected.clone();
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it runs");
        assert_eq!(gradient, expected);
    }
    // By hand, with one entry of four kept: u = m u + g, v = v + u, and both are zero where the entry went.
    let policy = Policy::new("topk:k=1+momentum=0.5").expect("valid").small(0);
    let mut compressor = Compressor::with_policy(&policy, &[Tensor::new("", [4])], RUN).expect("valid");
    let mut step = |g: [f32; 4]| {
        let mut gradient = g;
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient).map(|()| (gradient, compressor.residual()))
    };
    let (sent, residual) = step([8.0, 4.0, 2.0, 0.0]).expect("it runs");
    assert_eq!((sent, residual.ok()), ([8.0, 0.0, 0.0, 0.0], Some(vec![0.0, 4.0, 2.0, 0.0])));
    // u = (0, 2, 1, 0) + g, v = (0, 4, 2, 0) + u.
    let (sent, residual) = step([1.0, 0.0, 0.0, 0.0]).expect("it runs");
    assert_eq!((sent, residual.ok()), ([0.0, 6.0, 0.0, 0.0], Some(vec![1.0, 0.0, 3.0, 0.0])));
    // u = (0.5, 0, 0.5, 0), v = (1.5, 0, 3.5, 0): the momentum of the second entry is gone.
    let (sent, residual) = step([0.0; 4]).expect("it runs");
    assert_eq!((sent, residual.ok()), ([0.0, 0.0, 3.5, 0.0], Some(vec![1.5, 0.0, 0.0, 0.0])));
}

/// Factors are linear: ranks that all-reduce them get what one rank gets of the mean, within the rounding that
/// docs/powersgd.md states. What is kept falls from a quarter to the part that was set, is chosen by the number of the
/// step, and so goes on after a restored state. Without momentum it is top-k with feedback.
#[test]
fn a_warm_up_keeps_less_step_by_step() {
    let device = Device::cpu();
    let mut groups = Threads::group(1).expect("one rank");
    let group = &mut groups[0];
    let shapes = [[100, 100]];
    let mut warm = Compressor::new("dgc:ratio=0.01,momentum=0,warmup=8", shapes, RUN).expect("valid");
    let mut state = warm.state().expect("idle");
    for (step, part) in (0..).zip([0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.01, 0.01, 0.01]) {
        let mut plain = Compressor::new(Recipe::from(TopK::fraction(part)).momentum(0.0), shapes, RUN).expect("valid");
        let (mut a, mut b) = (gradient(10_000, 0, step), gradient(10_000, 0, step));
        // One of each step's own part, from the same state but for the recipe's name in it.
        let residual = warm.residual().expect("there is memory");
        warm.exchange(&device, group, &mut a).expect("it runs");
        let kept = a.iter().filter(|v| **v != 0.0).count();
        assert_eq!(kept, (10_000.0 * part).ceil() as usize, "step {step}");
        b.iter_mut().zip(&residual).for_each(|(b, e)| *b += e);
        plain.exchange(&device, group, &mut b).expect("it runs");
        assert_eq!(bits(&a), bits(&b), "step {step}");
        let mut resumed = Compressor::new("dgc:ratio=0.01,momentum=0,warmup=8", shapes, RUN).expect("valid");
        resumed.restore(&[&state], 0, 1).expect("its own");
        let mut c = gradient(10_000, 0, step);
        resumed.exchange(&device, group, &mut c).expect("it runs");
        assert_eq!(bits(&a), bits(&c), "step {step}");
        state = warm.state().expect("idle");
        assert!(state == resumed.state().expect("idle"), "step {step}");
    }
}

#[test]
fn factors_of_ranks_are_those_of_their_mean() {
    let (rows, columns) = (64u64, 48u64);
    let n = (rows * columns) as usize;
    let gradients: Vec<Vec<f32>> = (0..4).map(|rank| gradient(n, rank, 0)).collect();
    let mean: Vec<f32> = (0..n).map(|i| gradients.iter().map(|g| g[i]).sum::<f32>() / 4.0).collect();
    let mut state = PowerSgd::rank(2).state(&[Matrix::new(rows, columns)], Seed::new(RUN)).expect("valid");
    let mut expected = vec![0.0; n];
    let alone = |_: &mut [f32]| Ok::<_, Error>(());
    Device::cpu().low_rank_step(&mut state, &mean, &mut expected, alone).expect("it runs");
    let outputs = together(Threads::group(4).expect("four"), |rank, mut group| {
        let mut compressor = Compressor::new("powersgd:rank=2", [[rows, columns]], RUN).expect("valid");
        let mut gradient = gradients[rank as usize].clone();
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient).map(|()| gradient).expect("it runs")
    });
    let norm =
        gradients.iter().map(|g| g.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()).fold(0.0, f64::max);
    let bound = 4.0 * 514.0 * 2f64.powi(-24) * 2f64.sqrt() * norm;
    let apart = outputs[0].iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    assert!(apart <= bound, "{apart} is above {bound}");
}

#[test]
fn a_restored_state_goes_on_with_the_bits_of_an_uninterrupted_run() {
    for make in all() {
        let through = together(Threads::group(3).expect("three"), |_, mut group| {
            let mut compressor = make();
            steps(&mut compressor, &mut group, &Device::cpu(), 0..5).expect("it runs");
            compressor.state().expect("between steps")
        });
        let saved = together(Threads::group(3).expect("three"), |_, mut group| {
            let mut compressor = make();
            steps(&mut compressor, &mut group, &Device::cpu(), 0..2).expect("it runs");
            compressor.state().expect("between steps")
        });
        let resumed = together(Threads::group(3).expect("three"), |rank, mut group| {
            let mut compressor = make();
            compressor.restore(&saved, rank, 3).expect("its own");
            assert_eq!(compressor.steps(), 2);
            steps(&mut compressor, &mut group, &Device::cpu(), 2..5).expect("it runs");
            compressor.state().expect("between steps")
        });
        assert!(resumed == through, "{:?}", make().recipes());
    }
}

/// A rotated exchange is the rotation, the codec, the mean and the rotation back, to the bit; after it, one large
/// element does no harm to its bucket, and the mean over steps is the gradient's.
#[test]
fn a_rotated_exchange_is_its_stages_one_after_another() {
    let (device, n, steps) = (Device::cpu(), 2048, 64u64);
    let mut x = gradient(n, 0, 0);
    x[700] = 1000.0;
    let run = |text: &str| {
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut compressor = Compressor::new(text, [[32, 64]], RUN).expect(text);
        let outputs: Vec<Vec<f32>> = (0..steps)
            .map(|_| {
                let mut own = x.clone();
                compressor.exchange(&device, &mut group, &mut own).map(|()| own).expect("it runs")
            })
            .collect();
        outputs
    };
    let outputs = run("rotate+qsgd:bits=4,bucket=1024");
    for (step, output) in (0..).zip(&outputs) {
        let seed = Seed::new(RUN).step(step);
        let rotated = device.rotate(Rotation::default(), &x, seed).expect("valid");
        let sent = device.encode(&Qsgd::bits(4).bucket(1024), &rotated, seed.worker(0)).expect("valid");
        let decoded = device.decode(&sent).expect("its own");
        let back = device.unrotate(Rotation::default(), &decoded, n, seed).expect("valid");
        assert!(output == &back, "step {step}");
    }
    let off = |outputs: &[Vec<f32>]| -> f64 {
        let one = |output: &Vec<f32>| x.iter().zip(output).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        outputs.iter().map(one).sum::<f64>() / steps as f64
    };
    let plain = run("qsgd:bits=4,bucket=1024");
    // The large element makes the levels of its bucket 143 apart, and those of its rotated block some 5.
    assert!(off(&outputs) < off(&plain), "{} and {}", off(&outputs), off(&plain));
}

/// Each call of a device fails in turn: gradient and state are then as they were, also where a step writes tensor by
/// tensor.
#[cfg(feature = "cuda")]
#[test]
fn a_device_that_fails_anywhere_leaves_gradient_and_state_as_they_were() {
    use std::sync::Arc;

    use crate::training::faulty::Faulty;
    use gradwire::backend::cuda::Cuda;
    use gradwire_ptx_machine::Machine;

    let machine = Arc::new(Machine::new((8, 0), 1));
    for text in ["sign:unit+vote", "rotate:block=32+qsgd:bits=4", "randomk:0.2", "ternary:clip=2.5"] {
        let driver = Arc::new(Faulty::new(machine.clone()));
        let device = Device::from(Cuda::with_driver(driver.clone(), None).expect("an artifact that fits"));
        let mut group = Threads::group(1).expect("one").remove(0);
        let policy = Policy::new(text).expect(text).small(0);
        let tensors = [Tensor::new("a", [300]), Tensor::new("b", [40, 10]), Tensor::new("c", [7])];
        let mut failures = 0;
        for calls in 0.. {
            let mut compressor = Compressor::with_policy(&policy, &tensors, RUN).expect(text);
            let mut first = gradient(compressor.elements(), 0, 0);
            compressor.exchange(&device, &mut group, &mut first).expect("nothing fails yet");
            let (before, given) = (compressor.state().expect("idle"), gradient(compressor.elements(), 0, 1));
            let mut expected = given.clone();
            compressor.clone().exchange(&Device::cpu(), &mut group, &mut expected).expect("the CPU does not fail");
            let mut x = given.clone();
            driver.fail_behind(calls);
            let done = compressor.exchange(&device, &mut group, &mut x);
            if !driver.has_failed() {
                driver.fail_behind(u32::MAX);
                done.expect("no call was left to fail");
                break;
            }
            failures += 1;
            let Err(error) = done else {
                // What only makes a step faster may fail.
                assert_eq!(bits(&x), bits(&expected), "{text}: what is said to be done behind {calls} calls");
                continue;
            };
            assert!(matches!(error, Error::Backend { .. }), "{text}: {error:?}");
            assert_eq!(bits(&x), bits(&given), "{text}: the gradient behind {calls} calls");
            assert!(compressor.state().expect("idle") == before, "{text}: the state behind {calls} calls");
        }
        assert!(failures > 8, "{text}: {failures} calls");
    }
}

/// Random-k is linear: four ranks get the bits of one rank with the mean, where sums are exact. What is sent and what
/// is left add up to what came in.
#[test]
fn entries_of_ranks_are_those_of_their_mean() {
    let n = 3000;
    let dyadic =
        |rank, step| -> Vec<f32> { gradient(n, rank, step).iter().map(|v| (v * 4096.0).round() / 4096.0).collect() };
    for text in ["randomk:0.1", "randomk:k=300+noef", "randomk:0.25,unbiased", "randomk:1"] {
        let run = |ranks: u32, of: &(dyn Fn(u32, u64) -> Vec<f32> + Sync)| {
            together(Threads::group(ranks).expect("a group"), |rank, mut group| {
                let mut compressor = Compressor::new(text, [[30, 100]], RUN).expect(text);
                let means: Vec<Vec<f32>> = (0..5)
                    .map(|step| {
                        let mut x = of(rank, step);
                        compressor.exchange(&Device::cpu(), &mut group, &mut x).map(|()| x).expect("it runs")
                    })
                    .collect();
                (means, compressor.residual().expect("there is memory"), compressor.last_bytes())
            })
        };
        let four = run(4, &dyadic);
        let mean = |step: u64| -> Vec<f32> {
            let ranks: Vec<Vec<f32>> = (0..4).map(|rank| dyadic(rank, step)).collect();
            (0..n).map(|i| ranks.iter().map(|of| of[i]).sum::<f32>() / 4.0).collect()
        };
        let means: Vec<Vec<f32>> = (0..5).map(mean).collect();
        let one = run(1, &|_, step| means[step as usize].clone());
        assert!(four.iter().all(|(outputs, ..)| outputs == &four[0].0), "{text}: ranks differ");
        assert!(four[0].0 == one[0].0, "{text}: one rank with the mean has other bits");
        let sent = four[0].0.iter().flatten().filter(|v| **v != 0.0).count();
        assert!(sent > 0 && (text == "randomk:1" || sent < 5 * n / 3), "{text}: {sent} entries are sent");
        if text == "randomk:0.1" {
            assert_eq!(four[0].2, 4 * 300, "{text}: 4 bytes per entry");
            for i in 0..n {
                let given: f32 = means.iter().map(|mean| mean[i]).sum();
                let decoded: f32 = four[0].0.iter().map(|output| output[i]).sum();
                let left: f32 = four.iter().map(|(_, residual, _)| residual[i]).sum::<f32>() / 4.0;
                assert_eq!(decoded + left, given, "element {i}");
            }
        }
    }
}

/// On dyadic values, whose sums are exact, to the bit.
#[test]
fn another_number_of_workers_keeps_the_sum_of_residuals() {
    for text in ["topk:0.01+ef", "topk:0.02+momentum=0.5", "onebit", "powersgd:rank=2", "randomk:0.1"] {
        let saved = together(Threads::group(4).expect("four"), |rank, mut group| {
            let mut compressor = of(text);
            let mut gradient: Vec<f32> =
                gradient(compressor.elements(), rank, 0).iter().map(|v| (v * 4096.0).round() / 4096.0).collect();
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it runs");
            (compressor.state().expect("between steps"), compressor.residual().expect("there is memory"))
        });
        let (states, residuals): (Vec<_>, Vec<_>) = saved.into_iter().unzip();
        let total = |residuals: &[Vec<f32>]| -> Vec<f64> {
            (0..residuals[0].len()).map(|i| residuals.iter().map(|r| f64::from(r[i])).sum()).collect()
        };
        assert!(residuals.iter().all(|residual| residual.iter().any(|e| *e != 0.0)), "{text} leaves something");
        // The means of 1-bit SGD and the products of factors are not dyadic; there the sums agree to binary32's
        // rounding of three additions of numbers below 1.
        let exact = text.contains("topk") || text.contains("randomk");
        for ranks in [1, 3, 4, 8] {
            let now: Vec<Vec<f32>> = (0..ranks)
                .map(|rank| {
                    let mut compressor = of(text);
                    compressor.restore(&states, rank, ranks).expect("they fit");
                    compressor.residual().expect("there is memory")
                })
                .collect();
            for (a, b) in total(&now).into_iter().zip(total(&residuals)) {
                assert!(a == b || !exact && (a - b).abs() <= 3.0 * 2f64.powi(-24), "{text}, {ranks}: {a} and {b}");
            }
        }
    }
}

#[test]
fn a_group_that_fails_anywhere_leaves_gradient_and_state_as_they_were() {
    for make in all() {
        let mut failed = 0;
        for fails in 1..12 {
            let group = Threads::group(1).expect("one rank").remove(0);
            // Three calls at most are made by the first step.
            let mut group = Failing { group, calls: 0, fails: u32::MAX };
            let mut compressor = make();
            let mut warm = gradient(compressor.elements(), 0, 0);
            compressor.exchange(&Device::cpu(), &mut group, &mut warm).expect("nothing fails yet");
            (group.calls, group.fails) = (0, fails);
            let (before, x) = (compressor.state().expect("idle"), gradient(compressor.elements(), 0, 1));
            let mut changed = x.clone();
            match compressor.exchange(&Device::cpu(), &mut group, &mut changed) {
                Ok(()) => break,
                Err(error) => {
                    assert!(matches!(error, Error::Collective(_)), "{error:?}");
                    assert!(compressor.state().expect("idle") == before, "{:?}, call {fails}", compressor.recipes());
                    assert_eq!(bits(&changed), bits(&x));
                    failed += 1;
                }
            }
        }
        assert!((1..11).contains(&failed), "{failed} calls");
    }
}

/// A group whose own code panics in its all-reduce.
struct Panicking(Threads);

impl Collective for Panicking {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn ranks(&self) -> u32 {
        self.0.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_gather(mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        panic!("a defect of the group")
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.broadcast(root, bytes)
    }
}

#[test]
fn behind_a_panic_of_the_group_nothing_goes_on_until_a_state_is_restored() {
    let device = Device::cpu();
    for text in ["powersgd:rank=2", "qsgd:bits=4,bucket=64+ef"] {
        let mut group = Threads::group(1).expect("one rank").remove(0);
        let (mut compressor, mut expected) = (of(text), of(text));
        let n = compressor.elements();
        for compressor in [&mut compressor, &mut expected] {
            compressor.exchange(&device, &mut group, &mut gradient(n, 0, 0)).expect("nothing fails yet");
        }
        let saved = compressor.state().expect("idle");
        let mut panicking = Panicking(Threads::group(1).expect("one rank").remove(0));
        let step = || compressor.exchange(&device, &mut panicking, &mut gradient(n, 0, 1));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).expect_err("the group's own panic");
        let broken = |error: Error| assert!(matches!(error, Error::Exchange(ExchangeError::BrokenOff)), "{error:?}");
        broken(compressor.exchange(&device, &mut group, &mut gradient(n, 0, 1)).expect_err("broken off"));
        broken(compressor.state().expect_err("broken off"));
        broken(compressor.residual().expect_err("broken off"));
        broken(compressor.clear_residual().expect_err("broken off"));
        compressor.restore(&[saved], 0, 1).expect("its own state");
        let [mut found, mut right] = [gradient(n, 0, 1), gradient(n, 0, 1)];
        compressor.exchange(&device, &mut group, &mut found).expect("restored");
        expected.exchange(&device, &mut group, &mut right).expect("never broken off");
        assert_eq!(bits(&found), bits(&right), "{text}");
        assert!(compressor.state().expect("idle") == expected.state().expect("idle"), "{text}");
    }
}

#[test]
fn a_nan_on_one_rank_fails_the_step_on_all_and_the_group_goes_on() {
    for text in [
        "none+finite",
        "qsgd:bits=4,bucket=64+ef+finite",
        "topk:0.01+ef+finite",
        "powersgd:rank=2+finite",
        "powersgd:rank=2+qsgd:bits=8,bucket=64+finite",
        "onebit+finite",
    ] {
        // In a matrix, and in a bias that goes uncompressed.
        for at in [5, 64 * 48 + 3] {
            let done = together(Threads::group(3).expect("three"), |rank, mut group| {
                let policy = Policy::new(text).expect(text);
                let mut compressor = Compressor::with_policy(&policy, &tensors(), RUN).expect(text);
                let before = compressor.state().expect("idle");
                let mut x = gradient(compressor.elements(), rank, 0);
                if rank == 1 {
                    x[at] = f32::NAN;
                }
                let given = x.clone();
                let error = compressor.exchange(&Device::cpu(), &mut group, &mut x).expect_err(text);
                match rank {
                    1 => {
                        assert!(matches!(error, Error::NotFinite { index } if index == at as u64), "{text}: {error:?}")
                    }
                    _ => assert!(
                        matches!(error, Error::Exchange(ExchangeError::Refused { rank: 1 })),
                        "{text}: {error:?}"
                    ),
                }
                assert!(compressor.state().expect("idle") == before && bits(&x) == bits(&given), "{text}");
                steps(&mut compressor, &mut group, &Device::cpu(), 1..3).expect("the group can be used again")
            });
            assert!(done.iter().all(|means| means == &done[0]), "{text}");
        }
    }
}

#[test]
fn ranks_that_differ_are_told_so() {
    let outcome = |make: fn(u32) -> Compressor| {
        let ended = AtomicU32::new(0);
        together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = make(rank);
            let mut x = gradient(compressor.elements(), rank, 0);
            let done = compressor.exchange(&Device::cpu(), &mut group, &mut x).map(drop);
            // While both groups stand, neither rank waits for the other.
            ended.fetch_add(1, Ordering::SeqCst);
            let until = Instant::now() + Duration::from_secs(60);
            while ended.load(Ordering::SeqCst) < 2 && Instant::now() < until {
                std::thread::yield_now();
            }
            assert_eq!(ended.load(Ordering::SeqCst), 2, "the other rank waits");
            done
        })
    };
    let other_codec = |rank| of(["qsgd:bits=4", "qsgd:bits=8"][rank as usize]);
    let other_run = |rank: u32| Compressor::new("powersgd:rank=2", [[64, 48]], rank.into()).expect("valid");
    // The next message of one is a factor, and the other has none.
    let other_messages = |rank| of(["powersgd:rank=1+qsgd:bits=8,bucket=64", "qsgd:bits=4"][rank as usize]);
    let sums = |rank| of(["powersgd:rank=1+qsgd:bits=8,bucket=64", "powersgd:rank=1"][rank as usize]);
    for make in [other_codec, other_run, other_messages, sums] {
        for (rank, error) in (0..).zip(outcome(make)) {
            let error = error.expect_err("they differ");
            assert!(
                matches!(error, Error::Exchange(ExchangeError::Model { rank: other }) if other != rank),
                "{error:?}"
            );
        }
    }
    let other_step = |rank| {
        let mut compressor = of("qsgd:bits=4");
        if rank == 1 {
            let mut alone = Threads::group(1).expect("one").remove(0);
            steps(&mut compressor, &mut alone, &Device::cpu(), 0..1).expect("it runs");
        }
        compressor
    };
    for error in outcome(other_step) {
        assert!(matches!(error, Err(Error::Exchange(ExchangeError::Step { .. }))), "{error:?}");
    }
    let mut alone = Threads::group(1).expect("one").remove(0);
    let error = of("qsgd").exchange(&Device::cpu(), &mut alone, &mut [0.0; 7]).expect_err("too short");
    assert!(matches!(error, Error::Length { what: "gradient", found: 7, .. }), "{error:?}");
}

/// Keeps what is sent.
struct Listening(Vec<u8>);

impl Collective for Listening {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0 = mine.to_vec();
        *all = vec![mine.to_vec()];
        Ok(())
    }

    fn all_to_all(&mut self, _: &[&[u8]], _: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn exchange(&mut self, _: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// Every byte of a message changed, and every length cut: refused, or (a bit of the rank's own step aside) decoded
/// without a panic.
#[test]
fn hostile_messages_end_in_a_typed_error_and_change_nothing() {
    for text in ["qsgd:bits=4,bucket=64+ef", "topk:k=5+ef"] {
        let tensors = [Tensor::new("", [40, 30]), Tensor::new("", [50, 30])];
        let make = || Compressor::with_policy(&Policy::new(text).expect(text), &tensors, RUN).expect(text);
        let mut listening = Listening(Vec::new());
        let x = gradient(2700, 0, 0);
        make().exchange(&Device::cpu(), &mut listening, &mut x.clone()).expect("it runs");
        let message = listening.0;
        let mut compressor = make();
        let before = compressor.state().expect("idle");
        let mut refused = |bytes: Vec<u8>, what: &str| {
            let mut given = x.clone();
            let error =
                compressor.exchange(&Device::cpu(), &mut Forged(|_: &[u8]| bytes.clone()), &mut given).expect_err(what);
            assert!(matches!(error, Error::Exchange(_) | Error::Payload(_)), "{what}: {error:?}");
            assert!(compressor.state().expect("idle") == before && bits(&given) == bits(&x), "{what}");
        };
        for at in 0..message.len() {
            let mut bytes = message.clone();
            bytes[at] ^= 0x55;
            refused(bytes, &format!("{text}, byte {at}"));
            refused(message[..at].to_vec(), &format!("{text}, {at} bytes"));
        }
        // A readable payload of another codec, and of another length.
        let head = &message[..24];
        for payload in [
            Device::cpu().encode(&Qsgd::bits(8), &x[..1200], Seed::new(1)).expect("it encodes").into_bytes(),
            Device::cpu().encode(&Qsgd::bits(4).bucket(64), &x[..100], Seed::new(1)).expect("it encodes").into_bytes(),
            Device::cpu().encode_sparse(&TopK::count(5), &x[..100], Seed::new(1)).expect("it encodes").into_bytes(),
        ] {
            let one = [&(payload.len() as u64).to_le_bytes()[..], &payload].concat();
            refused([head, &one, &one].concat(), "two others");
            refused([head, &one].concat(), "another");
        }
        refused([&message[..], &[0]].concat(), "one more");
        refused([&message[..], &[0; 8]].concat(), "an empty payload more");
    }
}

#[test]
fn a_state_that_is_damaged_or_another_s_is_refused_and_changes_nothing() {
    let mut compressor = mixed();
    let mut group = Threads::group(1).expect("one").remove(0);
    steps(&mut compressor, &mut group, &Device::cpu(), 0..2).expect("it runs");
    let (state, other) = (compressor.state().expect("idle"), mixed().state().expect("new"));
    let mut refuse = |states: &[Vec<u8>], rank, ranks, what: &str| {
        let error = compressor.restore(states, rank, ranks).expect_err(what);
        assert!(compressor.state().expect("idle") == state, "{what}");
        error
    };
    for at in (0..state.len()).step_by(97).chain(0..200) {
        let mut bytes = state.clone();
        bytes[at] ^= 1;
        let error = refuse(&[bytes], 0, 1, "a bit");
        assert!(matches!(error, Error::Saved(_)), "{error:?}");
        let error = refuse(&[state[..at].to_vec()], 0, 1, "cut");
        assert!(matches!(error, Error::Saved(SavedError::Size { .. })), "{error:?}");
    }
    let saved = |error: Error| match error {
        Error::Saved(error) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(saved(refuse(&[], 0, 1, "none")), SavedError::Ranks { states: 0, .. }));
    assert!(matches!(
        saved(refuse(std::slice::from_ref(&state), 3, 3, "rank 3 of 3")),
        SavedError::Ranks { rank: 3, .. }
    ));
    let steps_differ = saved(refuse(&[state.clone(), other], 0, 1, "other steps"));
    assert!(matches!(steps_differ, SavedError::Other { what: "step", .. }), "{steps_differ}");
    let of_recipe = of("qsgd:bits=4,bucket=64+ef").state().expect("new");
    let error = saved(refuse(&[of_recipe], 0, 1, "another policy")).to_string();
    assert!(error.contains("topk:0.1+momentum=0.5") && error.contains("[48, 40]"), "{error}");
    let policy = Policy::new("qsgd:bits=4,bucket=64+ef").expect("valid");
    let run = Compressor::with_policy(&policy, &tensors(), RUN + 1).expect("valid").state().expect("new");
    assert!(matches!(saved(refuse(&[run], 0, 1, "another run")), SavedError::Other { what: "run", .. }));
}

/// The bytes that a step says it sent are those that a plain count gives.
#[test]
fn bytes_are_counted() {
    let mut group = Threads::group(1).expect("one").remove(0);
    let mut bytes = |text: &str, shapes: &[[u64; 2]]| {
        let mut compressor = Compressor::new(text, shapes, RUN).expect(text);
        let mut x = gradient(compressor.elements(), 0, 0);
        compressor.exchange(&Device::cpu(), &mut group, &mut x).expect(text);
        compressor.last_bytes()
    };
    assert_eq!(bytes("none", &[[100, 100]]), 24 + 40_000);
    let payload = Device::cpu().encode(&Qsgd::bits(4), &[0.0f32; 10_000], Seed::new(1)).expect("it encodes");
    // A head of 24 bytes, and 8 in front of the payload; the small tensor goes as it is.
    assert_eq!(bytes("qsgd:bits=4", &[[100, 100], [3, 3]]), 24 + 8 + payload.as_bytes().len() as u64 + 36);
    assert_eq!(bytes("powersgd:rank=2", &[[100, 100], [3, 3]]), 24 + 4 * 2 * 200 + 36);
    let of_factor = Device::cpu().encode(&Qsgd::bits(8), &[0.0f32; 200], Seed::new(1)).expect("it encodes");
    let of_factor = 24 + 8 + of_factor.as_bytes().len() as u64;
    assert_eq!(bytes("powersgd:rank=2+qsgd:bits=8", &[[100, 100]]), 24 + 2 * of_factor, "a head before");
    let of_k: fn(&SparsePayload) -> usize = |payload| payload.as_bytes().len();
    let sent =
        Device::cpu().encode_sparse(&TopK::count(100), &gradient(10_000, 0, 0), Seed::new(1)).expect("it encodes");
    assert_eq!(bytes("topk:0.01", &[[100, 100]]), 32 + of_k(&sent) as u64);
    assert_eq!(Recipe::none().to_string(), "none");
}

/// An exchange launches what the codec's own calls launch, and nothing else.
#[cfg(feature = "cuda")]
#[test]
fn on_a_gpu_an_exchange_launches_what_the_codec_does() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire::{DecodeMode, Dtype};
    use gradwire_ptx_machine::Machine;

    let machine = Arc::new(Machine::new((8, 0), 1).counting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("an artifact that fits"));
    let launched = || machine.take_launched().into_iter().map(|launch| launch.kernel.to_string()).collect::<Vec<_>>();
    let tensors = [Tensor::new("", [80, 100]), Tensor::new("", [40, 50])];
    let x = gradient(10_000, 0, 0);
    let exchange = |text: &str| {
        let mut compressor = Compressor::with_policy(&Policy::new(text).expect(text), &tensors, RUN).expect(text);
        let mut group = Threads::group(1).expect("one").remove(0);
        launched();
        compressor.exchange(&device, &mut group, &mut x.clone()).expect(text);
        launched()
    };
    let codec = Qsgd::bits(4).bucket(64);
    let by_hand = |feedback: bool| {
        let layout = gradwire::Layout::packed([8000, 2000]).expect("small");
        let plan = device.model_plan(&codec, &layout, Dtype::F32).expect("valid");
        let plan = if feedback { plan.with_feedback().expect("omega is below 1") } else { plan };
        let mut residual = vec![0.0; if feedback { 10_000 } else { 0 }];
        launched();
        let payloads = device.encode_model(&plan, &x, &mut residual, Seed::new(RUN)).expect("it encodes");
        let mut mean = vec![0.0; 10_000];
        device.decode_model(&plan, DecodeMode::Sum(1.0), &[&payloads], &mut mean).expect("it decodes");
        launched()
    };
    for (text, feedback) in [("qsgd:bits=4,bucket=64", false), ("qsgd:bits=4,bucket=64+ef", true)] {
        let kernels = exchange(text);
        assert_eq!(kernels, by_hand(feedback), "{text}");
        assert_eq!(kernels.len(), 2, "an encode and a decode of both tensors: {kernels:?}");
    }
    let segments = [gradwire::Segment { elements: 8000, k: 80 }, gradwire::Segment { elements: 2000, k: 20 }];
    let select = TopK::segments(&segments);
    launched();
    let mut residual = vec![0.0; 10_000];
    let sent = device.encode_sparse_with_feedback(&select, &x, &mut residual, Seed::new(RUN)).expect("it encodes");
    device.decode_sparse_sum(&[sent], 1.0, &mut vec![0.0; 10_000]).expect("it decodes");
    let expected = launched();
    assert_eq!(exchange("topk:0.01+ef"), expected);
    let matrices = [Matrix::new(80, 100), Matrix::new(40, 50)];
    let mut state = PowerSgd::rank(2).state(&matrices, Seed::new(RUN)).expect("valid");
    launched();
    device.low_rank_step(&mut state, &x, &mut vec![0.0; 10_000], |_| Ok::<_, Error>(())).expect("it runs");
    let expected = launched();
    assert_eq!(exchange("powersgd:rank=2"), expected);
}

/// Factors with feedback are those of the codec's own step: outputs and residuals, to the bit.
#[test]
fn factors_by_hand() {
    let (rows, columns) = (64u64, 48u64);
    let n = (rows * columns) as usize;
    let mut state = PowerSgd::rank(2).state(&[Matrix::new(rows, columns)], Seed::new(RUN)).expect("valid");
    let mut compressor = Compressor::new("powersgd:rank=2", [[rows, columns]], RUN).expect("valid");
    let mut group = Threads::group(1).expect("one").remove(0);
    for step in 0..3 {
        let mut mean = gradient(n, 0, step);
        let mut expected = vec![0.0; n];
        let alone = |_: &mut [f32]| Ok::<_, Error>(());
        Device::cpu().low_rank_step(&mut state, &mean[..], &mut expected, alone).expect("it runs");
        compressor.exchange(&Device::cpu(), &mut group, &mut mean).expect("it runs");
        assert_eq!(bits(&mean), bits(&expected), "step {step}");
        let residual = compressor.residual().expect("there is memory");
        assert_eq!(bits(&residual), bits(&state.residual().expect("idle")), "step {step}");
        assert!(residual.iter().any(|e| *e != 0.0));
    }
}

/// Whatever the recipe, a tensor that goes uncompressed comes back as the mean. Two ranks have the same gradient, whose
/// mean is itself.
#[test]
fn what_goes_uncompressed_is_exact() {
    for make in all() {
        let spans = make().layout().spans().to_vec();
        let seen = together(Threads::group(2).expect("two"), |_, mut group| {
            let mut compressor = make();
            let mut seen = Vec::new();
            for step in 0..3 {
                let mut x = gradient(compressor.elements(), 0, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                seen.push(x);
            }
            seen
        });
        let compressor = &make();
        let mut exact = 0;
        for (step, mean) in (0..).zip(&seen[0]) {
            let x = gradient(compressor.elements(), 0, step);
            let as_it_is = |recipe: &Recipe| recipe.is_none() && recipe.memory().momentum.is_none();
            for (span, _) in spans.iter().zip(compressor.recipes()).filter(|(_, recipe)| as_it_is(recipe)) {
                let range = span.offset as usize..span.end() as usize;
                assert_eq!(bits(&mean[range.clone()]), bits(&x[range]), "{:?}", compressor.recipes());
                exact += 1;
            }
        }
        let has_momentum = compressor.recipes().iter().any(|recipe| recipe.memory().momentum.is_some());
        assert!(exact >= 6 || has_momentum, "two biases in each of three steps");
    }
}

/// As feedback alone does.
#[test]
fn one_nan_does_not_stay_in_the_momentum() {
    for text in ["qsgd:bits=8,bucket=64+momentum=0.5", "topk:0.1+momentum=0.5", "powersgd:rank=1+momentum=0.5"] {
        let mut compressor = of(text);
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut finite = Vec::new();
        for step in 0..6 {
            let mut x = gradient(compressor.elements(), 0, step);
            if step == 1 {
                x[7] = f32::NAN;
            }
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it propagates");
            finite.push(x.iter().all(|v| v.is_finite()));
        }
        assert_eq!(finite, [true, false, true, true, true, true], "{text}");
    }
}

/// Damages what one rank receives.
struct Damaging(Threads);

impl Collective for Damaging {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn ranks(&self) -> u32 {
        self.0.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_gather(mine, all)?;
        if self.0.rank() == 0 && all[1].len() > 100 {
            all[1][90] ^= 1;
        }
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.0.all_reduce_sum(values)
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.broadcast(root, bytes)
    }
}

#[test]
fn damage_on_the_way_to_one_rank_leaves_no_other_waiting() {
    for text in ["qsgd:bits=4,bucket=64+ef", "topk:0.1+ef"] {
        let done = together(Threads::group(2).expect("two"), |rank, group| {
            let mut compressor = of(text);
            let mut x = gradient(compressor.elements(), rank, 0);
            let done = compressor.exchange(&Device::cpu(), &mut Damaging(group), &mut x);
            (done, compressor.steps())
        });
        let (first, steps) = &done[0];
        assert!(matches!(first, Err(Error::Exchange(ExchangeError::Damaged { rank: 1, .. }))), "{text}: {first:?}");
        assert_eq!(*steps, 0);
        assert!(done[1].0.is_ok() && done[1].1 == 1, "{text}");
    }
}

#[test]
fn a_gradient_of_another_length_fails_the_step_on_all_and_the_group_goes_on() {
    let done = together(Threads::group(2).expect("two"), |rank, mut group| {
        let mut compressor = of("qsgd:bits=8+ef");
        let mut x = gradient(compressor.elements() - rank as usize, rank, 0);
        let error = compressor.exchange(&Device::cpu(), &mut group, &mut x).expect_err("one is short");
        match rank {
            1 => assert!(matches!(error, Error::Length { what: "gradient", .. }), "{error:?}"),
            _ => assert!(matches!(error, Error::Exchange(ExchangeError::Refused { rank: 1 })), "{error:?}"),
        }
        steps(&mut compressor, &mut group, &Device::cpu(), 0..2).expect("the group can be used again")
    });
    assert_eq!(done[0], done[1]);
}

/// Under `finite`, a sum of gradient and residual that is too large for f32 is refused before the first factor is
/// summed.
#[test]
fn a_residual_that_overflows_is_told_to_all_and_can_be_dropped() {
    let done = together(Threads::group(2).expect("two"), |rank, mut group| {
        let mut compressor = Compressor::new("powersgd:rank=1+finite", [[64, 48]], RUN).expect("valid");
        let huge = |step| -> Vec<f32> {
            let x = gradient(64 * 48, rank, step);
            x.iter().map(|v| if rank == 1 { v.signum() * 1e35 } else { *v }).collect()
        };
        let mut refused = 0;
        for step in 0..40 {
            let mut x = if rank == 1 && step < 20 { vec![3e38; 64 * 48] } else { huge(step) };
            if rank == 1 && step % 2 == 0 {
                x.iter_mut().step_by(3).for_each(|v| *v = -*v);
            }
            match compressor.exchange(&Device::cpu(), &mut group, &mut x) {
                Ok(()) => {}
                Err(Error::NotFinite { .. }) if rank == 1 => refused += 1,
                Err(Error::Exchange(ExchangeError::Refused { rank: 1 })) if rank == 0 => refused += 1,
                // All ranks see the same sum of factors.
                Err(Error::NotFiniteFactor { .. }) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        compressor.clear_residual().expect("idle");
        let mut x = gradient(64 * 48, rank, 99);
        compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it goes on");
        refused
    });
    assert!(done[0] > 0 && done[0] == done[1], "{done:?}");
}

#[test]
fn what_is_not_finite_is_refused_by_each_tensor_s_own_policy() {
    let at = |text: &str, name: &str, other: &str, index: usize| {
        let policy = Policy::new(text).and_then(|p| p.named(name, other)).expect("valid");
        let mut compressor = Compressor::with_policy(&policy, &tensors(), RUN).expect("valid");
        let mut x = gradient(compressor.elements(), 0, 0);
        x[index] = f32::NAN;
        compressor.exchange(&Device::cpu(), &mut Threads::group(1).expect("one").remove(0), &mut x)
    };
    let bias = 64 * 48 + 3;
    // The bias skips the step, whatever another tensor refuses.
    at("qsgd:bits=8", "b.weight", "topk:0.1+finite", bias).expect("the default skips");
    let error = at("powersgd:rank=1", "a.bias", "none+finite", bias).expect_err("the bias refuses");
    assert!(matches!(error, Error::NotFinite { index } if index == bias as u64), "{error:?}");
    // Of tensors that are packed, the number is that in the gradient.
    let in_b = 64 * 48 + 64 + 7;
    let error = at("qsgd:bits=8", "b.weight", "topk:0.1+finite", in_b).expect_err("it refuses");
    assert!(matches!(error, Error::NotFinite { index } if index == in_b as u64), "{error:?}");
    let error = at("qsgd:bits=8", "b.weight", "powersgd:rank=1+finite", in_b).expect_err("it refuses");
    assert!(matches!(error, Error::NotFinite { index } if index == in_b as u64), "{error:?}");
}

/// Descriptions that differ in what ends their lines alone. A checksum keeps nobody from writing them.
#[test]
fn a_state_whose_description_ends_otherwise_is_refused() {
    let mut compressor = of("qsgd:bits=8+ef");
    let state = compressor.state().expect("idle");
    let length = u64::from_le_bytes(state[32..40].try_into().expect("8 bytes")) as usize;
    let description = &state[40..40 + length];
    let again = |text: &[u8]| {
        let mut bytes =
            [&state[..32], &(text.len() as u64).to_le_bytes(), text, &state[40 + length..state.len() - 4]].concat();
        let size = (bytes.len() + 4) as u64;
        bytes[8..16].copy_from_slice(&size.to_le_bytes());
        let sum = gradwire_tests::oracle::wire::crc32(bytes.iter().copied());
        [&bytes[..], &sum.to_le_bytes()].concat()
    };
    compressor.restore(&[again(description)], 0, 1).expect("its own");
    let without = &description[..length - 1];
    let returns = String::from_utf8_lossy(description).replace('\n', "\r\n");
    for text in [without, returns.as_bytes(), b"", b"\n\n\n\n\n\n\n\n", &[0xff; 40]] {
        let error = compressor.restore(&[again(text)], 0, 1).expect_err("another description");
        assert!(matches!(error, Error::Saved(SavedError::Other { what: "tensor", .. })), "{error:?}");
    }
}

#[test]
fn names_are_matched_by_stars() {
    let policy = |pattern: &str| Policy::new("onebit").and_then(|p| p.named(pattern, "qsgd:bits=8")).expect("valid");
    let fits =
        |pattern: &str, name: &str| policy(pattern).recipe(&Tensor::new(name, [100, 100])).to_string() == "qsgd:bits=8";
    for (pattern, name, expected) in [
        ("a.b", "a.b", true),
        ("a.b", "a.bc", false),
        ("*", "", true),
        ("*.weight", "x.weight", true),
        ("*.weight", "x.weights", false),
        ("a*b*c", "a__b__b_c", true),
        ("a*b*c", "a__c__b", false),
        ("a*a", "a", false),
        ("*\u{e9}*", "caf\u{e9}s", true),
        ("", "x", false),
    ] {
        assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
    }
    assert!(!fits(&"*a".repeat(40), &"a".repeat(39)), "and in no time");
}
