//! What a lazy residual still holds of what was sent, taken off by the device: bit for bit what the host's pass leaves,
//! on every distribution, within small limits, and for as many bytes as it says.

use gradwire::{Device, LazyResidual, Seed, Segment, TopK};
use gradwire_tests::cases::{self, Fill};
use gradwire_tests::{Depth, selections, sparse};

/// Lengths around a tile, and of several tiles.
const LENGTHS: [usize; 3] = [1, 8193, 70_001];

/// Settings that leave one pending segment, several, and several that share no tile's beginning.
fn settings(n: usize) -> Vec<TopK> {
    let segments = |lens: &[u64]| -> Vec<Segment> {
        let (mut left, mut cut) = (n as u64, Vec::new());
        for len in lens {
            let len = left.min(*len);
            left -= len;
            cut.push(len);
        }
        cut.push(left);
        cut.into_iter().map(|elements| Segment { elements, k: elements.div_ceil(50) }).collect()
    };
    vec![
        TopK::fraction(0.01),
        TopK::fraction(0.5),
        TopK::segments(&segments(&[5, 8200, 1, 0, 9001, 40])),
        TopK::blocks(9000, 7).clamped(),
    ]
}

/// Two steps of each setting; how often something was pending.
fn settles(device: &Device, fill: Fill, lengths: &[usize]) -> usize {
    settles_in(device, fill, lengths, |_| true)
}

/// The same of the settings of some numbers.
fn settles_in(device: &Device, (name, fill): Fill, lengths: &[usize], chosen: impl Fn(usize) -> bool) -> usize {
    let mut pending = 0;
    for &n in lengths {
        for (_, codec) in settings(n).into_iter().enumerate().filter(|(number, _)| chosen(*number)) {
            let mut residual = LazyResidual::from(fill(n));
            for step in 0..2u64 {
                let x = if step == 0 { fill(n) } else { cases::normal(n, 5) };
                let label = format!("{device}: {name}, n = {n}, {codec:?}, step {step}");
                device
                    .encode_sparse_lazily(&codec, &x, &mut residual, Seed::new(1).step(step))
                    .unwrap_or_else(|e| panic!("{label}: {e}"));
                pending += usize::from(residual.is_pending());
                let expected = residual.clone().into_values();
                let mut settled = residual.clone();
                device.settle(&mut settled).unwrap_or_else(|e| panic!("{label}: {e}"));
                assert!(!settled.is_pending(), "{label}");
                let differ = settled.into_values().iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                assert_eq!(differ, None, "{label}");
            }
        }
    }
    pending
}

/// All distributions: in every setting, or in two of them in turn.
fn all(device: &Device) {
    let whole = Depth::of_tests().sweeps() || device.kind() == gradwire::BackendKind::Cpu;
    let fills = sparse::FILLS.into_iter().chain(selections::MISLEADING).enumerate();
    let pending: usize = fills
        .map(|(index, fill)| settles_in(device, fill, &[20_011], |number| whole || (number + index) % 2 == 0))
        .sum();
    let pending = pending + settles(device, sparse::FILLS[0], &LENGTHS);
    // On the CPU nothing is ever late.
    assert_eq!(pending > 50, device.kind() != gradwire::BackendKind::Cpu, "{device}: {pending}");
}

#[test]
fn on_the_cpu_nothing_is_pending() {
    all(&Device::cpu());
}

#[cfg(feature = "cuda")]
mod ptx {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire_ptx_machine::Machine;

    use super::*;

    #[test]
    fn the_hosts_residual_on_every_distribution() {
        for compute in [(7, 0), (9, 0)] {
            let machine = Arc::new(Machine::new(compute, 5));
            all(&Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("an artifact that fits")));
            assert_eq!(machine.take_faults(), []);
        }
    }

    #[test]
    fn at_every_target() {
        for (name, device) in gradwire_tests::traffic::machines() {
            eprintln!("{name}");
            let device = device.expect("an artifact that fits");
            settles(&device, sparse::FILLS[14], &[8193, 20_011]);
        }
    }

    /// Every element once, and a sector for each that becomes zero: no more.
    #[test]
    fn it_moves_what_it_says() {
        let machine = Arc::new(Machine::new((8, 0), 1).counting());
        let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("an artifact that fits"));
        let n = 1 << 18;
        let mut residual = LazyResidual::zeros(n);
        let sent = device
            .encode_sparse_lazily(&TopK::fraction(0.01), &cases::normal(n, 9), &mut residual, Seed::new(1))
            .expect("it selects");
        machine.take_launched();
        device.settle(&mut residual).expect("it settles");
        let launched = machine.take_launched();
        let [settle] = &launched[..] else { panic!("{} launches", launched.len()) };
        assert_eq!((settle.kernel.as_str(), settle.grid), ("topk_settle", 32));
        let (read, written) = (settle.counts.loads.moved(), settle.counts.stores.moved());
        // A warp asks for the table's five words, five sectors at most.
        let table = 32 * 8 * 5 * 32;
        assert!((4 * n as u64..=4 * n as u64 + table).contains(&read), "{read}");
        let zeros = 32 * sent.indices().len() as u64;
        assert!(written > zeros / 2 && written <= zeros, "{written} of {zeros}");
        device.settle(&mut residual).expect("there is nothing to do");
        assert_eq!(machine.take_launched().len(), 0);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn on_wgpu_within_its_limits_and_within_small_ones() {
    use gradwire::backend::wgpu::Wgpu;
    use gradwire::plan::Limits;
    use gradwire::{BackendKind, Error};
    use gradwire_tests::require;

    let wgpu = match require::open(BackendKind::Wgpu).and_then(|_| Wgpu::open()) {
        Ok(wgpu) => wgpu,
        Err(error) => {
            eprintln!("not tested: {error}");
            return;
        }
    };
    all(&Device::from_wgpu(wgpu.clone()));
    // The residual is settled on a device that binds three tiles at once, and on one that binds none.
    let lazily = |residual: &mut LazyResidual| {
        let device = Device::from_wgpu(wgpu.clone());
        let x = cases::normal(residual.len(), 3);
        device.encode_sparse_lazily(&TopK::blocks(9000, 90), &x, residual, Seed::new(1)).expect("it selects");
    };
    let mut residual = LazyResidual::zeros(90_000);
    lazily(&mut residual);
    let expected = residual.clone().into_values();
    for limits in [
        Limits { binding_bytes: 100_000, groups: 65_535, ..Limits::NONE },
        Limits { binding_bytes: 1 << 27, groups: 2, ..Limits::NONE },
    ] {
        let mut settled = residual.clone();
        Device::from_wgpu(wgpu.clone().with_limits(limits)).settle(&mut settled).expect("tile by tile");
        assert!(settled.into_values().iter().map(|v| v.to_bits()).eq(expected.iter().map(|v| v.to_bits())));
    }
    let before = residual.clone();
    let none = Device::from_wgpu(wgpu.with_limits(Limits { binding_bytes: 32_768, groups: 65_535, ..Limits::NONE }));
    let error = none.settle(&mut residual).expect_err("a tile and what it begins with is more");
    assert!(matches!(error, Error::Limit { found: 32_768, .. }), "{error:?}");
    assert_eq!(residual, before);
}
