//! PowerSGD on the devices that run passes, beside what holds on every device: the CPU's result within rounding, the
//! same bits in any order, gradients that are not bound at once, limits that are too small.

use gradwire::plan::Limits;
use gradwire::session::Role;
use gradwire::{BackendKind, Device, Dtype, Error, Matrix, PowerSgd, Seed};
use gradwire_tests::cases;
use gradwire_tests::low_rank::{ADDED, MODEL, SPLIT, U, alone, apart, bits, step};
use gradwire_tests::low_rank_checks::{self, SMALL};
use gradwire_tests::oracle::powersgd::Dense;
use gradwire_tests::{Depth, is_ptx_machine};

fn elements(tensors: &[Matrix]) -> usize {
    tensors.iter().map(Matrix::elements).sum::<u64>() as usize
}

/// Above eight columns gradient + residual is formed in a pass of its own: once, from whichever side a step begins, and
/// what is not finite poisons its matrix there too.
fn many_columns_are_formed_once(device: &Device) {
    let (cpu, n) = (Device::cpu(), 300 * 280);
    let tensors = [Matrix::new(300, 280)];
    // Little more than one group of eight columns, two groups without a rest, four with one. The interpreter has no
    // more of them but in a whole sweep.
    let some = is_ptx_machine(device) && !Depth::of_tests().sweeps();
    let ranks: &[u32] = if some { &[9, 16, 25] } else { &[9, 12, 16, 17, 24, 25, 32] };
    for &rank in ranks {
        let codec = PowerSgd::rank(rank).one_sided().min_compression(0.5);
        let mut theirs = codec.state(&tensors, Seed::new(4)).expect("valid");
        // P from Q, then Q from P, with a residual to take something off; then both with a NaN.
        for t in 0..6 {
            let mut mine = theirs.clone();
            let mut gradient = cases::normal(n, 80 + t);
            if t == 4 {
                gradient[77 * 280 + 5] = f32::NAN;
            }
            let before = theirs.residual().expect("idle");
            let sums: Vec<f32> = gradient.iter().zip(&before).map(|(g, e)| g + e).filter(|v| v.is_finite()).collect();
            let outputs = [(device, &mut mine), (&cpu, &mut theirs)].map(|(on, state)| step(on, state, &gradient));
            assert_eq!(mine.outcome(0), theirs.outcome(0), "rank {rank}, step {t} on {device}");
            if t == 4 {
                assert!(outputs.iter().flatten().all(|v| v.is_nan()), "rank {rank}, step {t} on {device}");
                continue;
            }
            let [rest, expected] = [&mine, &theirs].map(|state| state.residual().expect("idle"));
            for (found, expected) in [(&outputs[0], &outputs[1]), (&rest, &expected)] {
                let off: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
                let off = norm(&off) / norm(&sums);
                assert!(off <= apart(rank), "rank {rank}, step {t} on {device}: {off:e}");
            }
        }
    }
}

/// Where sums are short, a factor is as near to the CPU's as binary32 has it: numbers of fewer bits, as tensor cores
/// multiply, would be seen. Columns are off from orthonormal by 16 U in each backend, the CPU sums 16 terms, tensor
/// cores add six times (others round less), and what comes of it is rounded.
fn short_sums_are_near(device: &Device) {
    let near = SPLIT + 6.0 * ADDED + (2.0 * 16.0 + 16.0 + 2.0) * U;
    for (rank, rows, columns) in [(9, 300, 16), (12, 300, 16), (16, 270, 16), (12, 16, 300), (16, 16, 270)] {
        let tensors = [Matrix::new(rows, columns)];
        let codec = PowerSgd::rank(rank).one_sided().min_compression(0.0);
        let mut theirs = codec.state(&tensors, Seed::new(4)).expect("valid");
        let mut compared = 0;
        for t in 0..3 {
            let gradient = cases::normal(elements(&tensors), 90 + t);
            let mut mine = theirs.clone();
            let [found, expected] = [(device, &mut mine), (&Device::cpu(), &mut theirs)].map(|(on, state)| {
                let mut factor = vec![0.0; state.factor_len()];
                on.begin_low_rank(state, &gradient, &mut factor).expect("valid");
                state.abandon();
                factor
            });
            let sums: Vec<f32> = theirs.residual().expect("idle");
            let off: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
            // The side that sums over the short one.
            if expected.len() as u64 == u64::from(rank) * rows.max(columns) {
                let bound = near * f64::from(rank).sqrt() * norm(&sums);
                assert!(norm(&off) <= bound, "rank {rank}, step {t} on {device}: {:e} and not {bound:e}", norm(&off));
                compared += 1;
            }
            step(&Device::cpu(), &mut theirs, &gradient);
        }
        assert!(compared > 0, "rank {rank}");
    }
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

fn the_cpu_is_near(device: &Device) {
    // Of the large model the interpreter takes one rank but in a whole sweep: five columns on one machine, and on that
    // with tensor cores twelve, which are for them. The small one has every rank.
    let some = is_ptx_machine(device) && !Depth::of_tests().sweeps();
    let only = if device.name().contains("sm_90") { 12 } else { 5 };
    for (model, chosen) in [(&MODEL[..], some.then_some(only)), (&SMALL, None)] {
        let outcome = low_rank_checks::near_the_cpu_at(device, model, |rank| chosen.is_none_or(|only| rank == only));
        assert!(matches!(outcome, Ok(1..)), "{device}: {outcome:?}");
    }
}

/// What is sent is taken off: the next step's M, less its gradient, is what the residual was said to be.
fn what_was_sent_is_what_is_taken_off(device: &Device) {
    // Rows that begin at sectors, and rows that do not.
    for (rank, n, m) in [(1, 300, 290), (4, 300, 290), (9, 300, 290), (17, 300, 290), (3, 301, 304), (8, 45, 272)] {
        let codec = PowerSgd::rank(rank).min_compression(0.0);
        let mut state = codec.state(&[Matrix::new(n as u64, m as u64)], Seed::new(4)).expect("valid");
        let x = cases::normal(n * m, 8);
        let sent = step(device, &mut state, &x);
        let residual = state.residual().expect("idle");
        let mut factor = vec![0.0; state.factor_len()];
        device.begin_low_rank(&mut state, &vec![0.0; n * m], &mut factor).expect("valid");
        state.abandon();
        let formed = state.residual().expect("idle");
        let terms = Dense::of(n, m, &sent).norm() / ((n * m) as f64).sqrt();
        for i in 0..n * m {
            // Exact but on backends that may contract: those round r products and sums otherwise.
            let bound = if device.kind() == gradwire::BackendKind::Wgpu {
                2.0 * f64::from(rank) * U * (8.0 * terms + f64::from(x[i].abs()))
            } else {
                0.0
            };
            assert!(f64::from((formed[i] - residual[i]).abs()) <= bound, "rank {rank}, {i} on {device}");
            assert!(f64::from((x[i] - sent[i] - residual[i]).abs()) <= bound, "rank {rank}, {i} on {device}");
        }
    }
}

fn golden_vectors_have_their_bits(device: &Device) {
    let outcome = low_rank_checks::golden(device);
    assert!(matches!(outcome, Ok(1..)), "{device}: {outcome:?}");
}

fn steps_on_the_device_have_the_same_bits(device: &Device) {
    if device.kind() == gradwire::BackendKind::Cpu {
        return;
    }
    let outcome = low_rank_checks::resident(device, &SMALL);
    assert!(matches!(outcome, Ok(1..)), "{device}: {outcome:?}");
}

gradwire_tests::on_every_device!(
    golden_vectors_have_their_bits,
    steps_on_the_device_have_the_same_bits,
    the_cpu_is_near,
    many_columns_are_formed_once,
    short_sums_are_near,
    what_was_sent_is_what_is_taken_off
);

/// Outputs and states of some steps.
fn run(device: &Device, codec: PowerSgd, tensors: &[Matrix], steps: u64) -> (Vec<u32>, Vec<u8>) {
    let mut state = codec.state(tensors, Seed::new(9)).expect("valid");
    let mut outputs = Vec::new();
    for t in 0..steps {
        outputs.extend(bits(&step(device, &mut state, &cases::normal(elements(tensors), 60 + t))));
    }
    (outputs, state.to_bytes().expect("idle"))
}

#[cfg(feature = "cuda")]
/// Two steps of a state on the device, by the passes for some limits: the outputs and the state.
fn by_limits(device: &Device, tensors: &[Matrix], limits: &Limits) -> Result<Vec<u8>, Error> {
    let steps = PowerSgd::rank(2).min_compression(0.0).resident(tensors, Dtype::F32, Seed::new(4))?;
    let n = elements(tensors);
    let mut session = device.session(steps.sizes())?;
    session.write(Role::Workspace, 0, &steps.image())?;
    session.write(Role::Residual, 0, &vec![0; 4 * n])?;
    let passes = steps.passes_of_step(limits)?.concat();
    let mut bytes = Vec::new();
    for seed in 0..2 {
        session.write(Role::Input, 0, bytemuck::cast_slice(&cases::normal(n, seed)))?;
        // SAFETY: a whole step over the image that begins a state, or over what the step before left of it.
        unsafe { session.run_trusted(&passes)? };
        let mut output = vec![0; 4 * n];
        session.read(Role::Output, 0, &mut output)?;
        bytes.extend(output);
    }
    let mut state = vec![0; steps.saved_bytes() as usize];
    session.read(Role::Workspace, 0, &mut state)?;
    bytes.extend(state);
    Ok(bytes)
}

mod ptx {
    use gradwire_tests::low_rank::{TARGETS, ptx_machine};
    use gradwire_tests::traffic;

    use super::*;

    /// Blocks that take 512 rows of a factor, and launches of three blocks.
    #[test]
    fn tall_factors_and_launches_that_are_cut() {
        let tensors = [Matrix::new(16_400, 14), Matrix::vector(500), Matrix::new(70, 300)];
        let device = ptx_machine(90, 1);
        low_rank_checks::near_the_cpu(&device, &tensors[..1]).unwrap_or_else(|error| panic!("{error}"));
        let [whole, cut] = [device.limits(), Limits { groups: 3, ..device.limits() }]
            .map(|limits| by_limits(&device, &tensors, &limits).expect("they run"));
        assert!(whole == cut);
    }

    #[test]
    fn passes_for_shaders_are_refused() {
        let device = ptx_machine(90, 1);
        let limits = Limits { shares_factors: false, ..device.limits() };
        let error = by_limits(&device, &[Matrix::new(40, 50)], &limits).expect_err("they are a shader's");
        assert!(matches!(error, Error::Unavailable { backend: BackendKind::Cuda, .. }), "{error:?}");
    }

    /// Whatever the order in which warps run, and for whatever the kernels are compiled, but that there are tensor
    /// cores.
    #[test]
    fn the_same_bits_in_any_order_and_for_every_target() {
        let tensors = [
            Matrix::new(45, 272),
            Matrix::new(65, 47),
            Matrix::vector(13),
            Matrix::new(9, 2500),
            Matrix::new(300, 259),
            Matrix::new(700, 33),
        ];
        let few = PowerSgd::rank(5).min_compression(1.0);
        for codec in [few, PowerSgd::rank(12).one_sided()] {
            let [without, with] = TARGETS.map(|target| {
                let expected = run(&ptx_machine(target, 1), codec, &tensors, 2);
                assert!(run(&ptx_machine(target, 2), codec, &tensors, 2) == expected, "{codec:?} in another order");
                expected
            });
            // Above rank 8 tensor cores sum in another order, of other parts; up to it there are none.
            assert_eq!(without == with, codec == few, "{codec:?}");
            for (target, device) in traffic::machines() {
                // sm_60 and sm_70 have the instructions of sm_35.
                if ["sm_60", "sm_70"].contains(&&*target) && !Depth::of_tests().sweeps() {
                    continue;
                }
                let device = device.expect("an artifact that fits");
                let expected = if ["sm_80", "sm_90"].contains(&&*target) { &with } else { &without };
                assert!(run(&device, codec, &tensors, 2) == *expected, "{codec:?} for {target}");
            }
        }
    }
}

#[cfg(feature = "wgpu")]
mod webgpu {
    use gradwire::backend::wgpu::Wgpu;
    use gradwire_tests::require;

    use super::*;

    fn limited(binding_bytes: u64, groups: u32) -> Option<Device> {
        if let Err(error) = require::open(BackendKind::Wgpu) {
            eprintln!("not tested: {error}");
            return None;
        }
        let wgpu = Wgpu::open().expect("it was just opened");
        Some(Device::from_wgpu(wgpu.with_limits(Limits { binding_bytes, groups, ..Limits::NONE })))
    }

    #[test]
    fn a_model_is_bound_in_parts_and_has_the_same_bits() {
        for codec in [PowerSgd::rank(3), PowerSgd::rank(9).one_sided()] {
            let (Some(whole), Some(parts)) = (limited(u64::MAX, u32::MAX), limited(5 << 19, 7)) else { return };
            let expected = run(&whole, codec, &MODEL, 2);
            assert!(run(&whole, codec, &MODEL, 2) == expected, "{codec:?} again");
            assert!(run(&parts, codec, &MODEL, 2) == expected, "{codec:?} in parts");
        }
    }

    #[test]
    fn passes_for_blocks_that_share_a_factor_are_refused() {
        let Some(device) = limited(u64::MAX, u32::MAX) else { return };
        let limits = Limits { shares_factors: true, ..device.limits() };
        let error = by_limits(&device, &[Matrix::new(40, 50)], &limits).expect_err("they are CUDA's");
        assert!(matches!(error, Error::Unavailable { backend: BackendKind::Wgpu, .. }), "{error:?}");
    }

    #[test]
    fn limits_that_are_too_small_are_typed_errors() {
        let Some(device) = limited(1 << 20, 7) else { return };
        // Rows of a tile that are not bound at once, and factors that are not.
        for tensors in [[Matrix::new(300, 2000)], [Matrix::new(100_000, 3)]] {
            let codec = PowerSgd::rank(1).min_compression(0.0);
            let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
            let before = state.clone();
            let x = cases::normal(elements(&tensors), 3);
            let mut output = vec![0.0; x.len()];
            let error = device.low_rank_step(&mut state, &x, &mut output, alone).expect_err("too small");
            let Error::Limit { found, needed, .. } = error else { panic!("{error:?}") };
            assert!(found == 1 << 20 && needed > found);
            assert_eq!(state, before);
        }
    }
}
