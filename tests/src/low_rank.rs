//! Steps of PowerSGD, alone and of several workers, and what they are given: for the tests of every backend.

use gradwire::{Device, Error, LowRankState, Matrix, PowerSgd, Seed};

use crate::cases::Random;
use crate::models;
use crate::oracle::powersgd::Dense;

/// Layers of the transformer that is measured.
pub const LAYERS: usize = 100;
/// Its width: entries of an activation.
pub const WIDTH: u64 = 1024;

/// The tensors of ResNet-50, as the hook takes them: the first dimension by the others.
#[must_use]
pub fn resnet50() -> Vec<Matrix> {
    models::resnet50().iter().map(|shape| Matrix::of(shape)).collect()
}

/// So many layers of a transformer (Radford et al., 2019): two normalisations, attention's two matrices and the two of
/// a hidden layer four times as wide, with their biases.
#[must_use]
pub fn transformer(layers: usize, width: u64) -> Vec<Matrix> {
    let dense = |out: u64, into: u64| [Matrix::new(out, into), Matrix::vector(out)];
    let norm = [Matrix::vector(width), Matrix::vector(width)];
    let attention = [norm, dense(3 * width, width), dense(width, width)].concat();
    let hidden = [norm, dense(4 * width, width), dense(width, 4 * width)].concat();
    [attention, hidden].concat().repeat(layers)
}

/// Every matrix compressed.
pub fn compress_all(rank: u32) -> PowerSgd {
    PowerSgd::rank(rank).min_compression(0.0)
}

/// A state for one matrix.
///
/// # Panics
/// Where the codec refuses the matrix.
pub fn state(codec: PowerSgd, n: usize, m: usize) -> LowRankState {
    codec.state(&[Matrix::new(n as u64, m as u64)], Seed::new(7)).expect("valid")
}

/// The collective of a single worker.
///
/// # Errors
/// None.
pub fn alone(_: &mut [f32]) -> Result<(), Error> {
    Ok(())
}

/// A step of a single worker.
///
/// # Panics
/// Where the step is refused.
pub fn step(device: &Device, state: &mut LowRankState, gradient: &[f32]) -> Vec<f32> {
    let mut output = vec![f32::NAN; gradient.len()];
    device.low_rank_step(state, gradient, &mut output, alone).expect("valid");
    output
}

/// As bits, so that NaN compares.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Standard normal entries.
pub fn normal(n: usize, m: usize, seed: u64) -> Dense {
    let mut random = Random(seed);
    let x: Vec<f64> = (0..n * m).map(|_| random.normal()).collect();
    Dense { n, m, x }
}

/// Random directions with these singular values, rounded to f32.
pub fn with_values(n: usize, m: usize, values: &[f64], seed: u64) -> Vec<f32> {
    let (u, v) = (normal(n, values.len(), seed).orthonormal(), normal(m, values.len(), seed + 1).orthonormal());
    let scaled = Dense::new(n, values.len(), |i, k| u.at(i, k) * values[k]);
    scaled.times(&v.t()).x.iter().map(|v| *v as f32).collect()
}

/// Steps of several workers with a mean in f64, as a collective would; the outputs, which must be the same.
///
/// # Panics
/// Where a call is refused, or workers disagree.
pub fn together(device: &Device, states: &mut [LowRankState], gradients: &[Vec<f32>]) -> Vec<f32> {
    let rounds = states[0].rounds();
    let mut factors = Vec::new();
    for (state, gradient) in states.iter_mut().zip(gradients) {
        let mut factor = vec![0.0; state.factor_len()];
        device.begin_low_rank(state, gradient, &mut factor).expect("valid");
        factors.push(factor);
    }
    for round in 1..=rounds {
        let mean: Vec<f32> = (0..factors[0].len())
            .map(|i| (factors.iter().map(|f| f64::from(f[i])).sum::<f64>() / factors.len() as f64) as f32)
            .collect();
        if round == rounds {
            let finish = |state: &mut LowRankState| {
                let mut output = vec![0.0; state.elements()];
                device.finish_low_rank(state, &mean, &mut output).expect("valid");
                output
            };
            let outputs: Vec<Vec<f32>> = states.iter_mut().map(finish).collect();
            assert!(outputs.iter().all(|output| bits(output) == bits(&outputs[0])), "workers disagree");
            return outputs[0].clone();
        }
        for (state, factor) in states.iter_mut().zip(&mut factors) {
            let mut next = vec![0.0; state.factor_len()];
            device.advance_low_rank(state, &mean, &mut next).expect("valid");
            *factor = next;
        }
    }
    unreachable!("a step has a last round")
}

/// A model whose tensors end at every remainder there is, with rows and columns of more than a slab and a panel.
pub const MODEL: [Matrix; 9] = [
    Matrix::new(65, 47),
    Matrix::vector(13),
    Matrix::new(1100, 33),
    Matrix::new(9, 5000),
    Matrix::new(0, 7),
    Matrix::new(31, 1),
    Matrix::new(700, 2049),
    Matrix::new(16, 2048),
    Matrix::new(2, 2),
];

/// Half the distance of binary32 numbers about 1.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;

/// What a product of two numbers is off by that are each written as the sum of two of 11 bits: each by 2^-22, and by
/// the product of what is small of both, 2^-22 again.
pub const SPLIT: f64 = 12.0 * U;
/// What a tensor core's addition of eight products is off by: its nine numbers are aligned to the largest and cut two
/// bits after binary32's last, each by a quarter of 2 U at most, and the sum is cut to binary32. The ISA does not say
/// so: it is the premise.
pub const ADDED: f64 = 7.0 * U;

/// The tolerance between backends that is documented: how far two of them may be apart in a factor that is sent, or in
/// what is left of it, as a part of |M|.
///
/// Each sums at most 514 terms of an entry one after another in binary32 (the CPU; other backends 68), so it is off by
/// 514 U |M| |q| for the unit column q, and a factor of r columns by sqrt(r) times that. Columns are off from
/// orthonormal by 16 U at most, which is less than another 514 U; two backends may be off to two sides.
///
/// Tensor cores add 96 times to an entry, eight products at once. Products are off by [`SPLIT`], and an addition by
/// [`ADDED`]: 684 U in all, which with the columns' 16 is less than the 1028 U of one side.
#[must_use]
pub fn apart(rank: u32) -> f64 {
    4.0 * 514.0 * U * f64::from(rank).sqrt()
}

/// Compute capabilities, times ten, below and from which on PowerSGD's PTX uses tensor cores above rank 8.
pub const TARGETS: [u32; 2] = [70, 90];

/// A PTX machine with the artifact for a compute capability, times ten.
///
/// # Panics
/// Where the machine refuses it.
#[cfg(feature = "cuda")]
#[must_use]
pub fn ptx_machine(target: u32, seed: u64) -> Device {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire_ptx_machine::Machine;

    let machine = Arc::new(Machine::new((target / 10, target % 10), seed));
    Device::from_cuda(Cuda::with_driver(machine, Some(target)).expect("an artifact that fits"))
}

/// Makes of functions that take a device a test for each and each kind of device: the CPU, the committed PTX on its
/// machine, and WGPU and CUDA if there are any.
#[macro_export]
macro_rules! on_every_device {
    ($($name:ident),* $(,)?) => {
        mod on {
            $(mod $name {
                #[test]
                fn cpu() {
                    super::super::$name(&gradwire::Device::cpu());
                }

                #[cfg(feature = "cuda")]
                #[test]
                fn ptx() {
                    super::super::$name(&$crate::low_rank::ptx_machine($crate::low_rank::TARGETS[0], 1));
                }

                #[cfg(feature = "cuda")]
                #[test]
                fn ptx_with_tensor_cores() {
                    super::super::$name(&$crate::low_rank::ptx_machine($crate::low_rank::TARGETS[1], 1));
                }

                #[cfg(feature = "cuda")]
                #[test]
                fn cuda() {
                    match $crate::require::open(gradwire::BackendKind::Cuda) {
                        Ok(device) => super::super::$name(&device),
                        Err(error) => eprintln!("not tested: {error}"),
                    }
                }

                #[cfg(feature = "wgpu")]
                #[test]
                fn wgpu() {
                    match $crate::require::open(gradwire::BackendKind::Wgpu) {
                        Ok(device) => super::super::$name(&device),
                        Err(error) => eprintln!("not tested: {error}"),
                    }
                }
            })*
        }
    };
}
