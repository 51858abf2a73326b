//! Gradients that stay in a device's memory: the bits of an exchange of the host's memory on the same device, and a
//! failure that changes nothing. On whatever adapter this machine has, and on the PTX machine.

#[cfg(feature = "cuda")]
use crate::training::faulty::Faulty;
use crate::training::{
    Failing, RUN, bits, gradient, mixed, of, resident as all, tensors, together, with_cosines, with_tiles,
};
use gradwire::embed::DeviceMemory;
use gradwire::{BackendKind, Collective, Compressor, Device, Error, ExchangeError, Policy, ResidentCompressor};
use gradwire_collectives::Threads;
use gradwire_tests::Depth;

/// A device, and memory of a caller's on it that holds a gradient.
trait Surface: DeviceMemory + Clone + Sync + Sized
where
    Device: From<Self>,
{
    type Memory;

    fn holding(&self, gradient: &[f32]) -> Self::Memory;
    fn values(&self, memory: &Self::Memory, elements: usize) -> Vec<f32>;
    fn exchange(
        compressor: &mut ResidentCompressor<Self>,
        group: &mut impl Collective,
        gradient: &Self::Memory,
    ) -> Result<(), Error>;
}

#[cfg(feature = "wgpu")]
mod on_wgpu {
    use gradwire::backend::wgpu::Wgpu;
    use gradwire::wgpu::{self, BufferUsages};

    use super::*;

    /// The handles of the device, and Gradwire on it.
    pub(crate) fn open() -> Option<Wgpu> {
        gradwire_tests::require::open(gradwire::BackendKind::Wgpu).ok()?;
        Wgpu::open().ok()
    }

    pub(crate) fn buffer(on: &Wgpu, bytes: &[u8], usage: BufferUsages) -> wgpu::Buffer {
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: bytes.len() as u64, usage, mapped_at_creation: true };
        let buffer = on.device().create_buffer(&descriptor);
        buffer.get_mapped_range_mut(..).expect("it is mapped").copy_from_slice(bytes);
        buffer.unmap();
        buffer
    }

    impl Surface for Wgpu {
        type Memory = wgpu::Buffer;

        fn holding(&self, gradient: &[f32]) -> wgpu::Buffer {
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            buffer(self, bytemuck::cast_slice(gradient), usage)
        }

        fn values(&self, memory: &wgpu::Buffer, elements: usize) -> Vec<f32> {
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            let bytes = 4 * elements as u64;
            let to = self.device().create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage,
                mapped_at_creation: false,
            });
            let mut encoder = self.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(memory, 0, &to, 0, bytes);
            self.queue().submit([encoder.finish()]);
            to.map_async(wgpu::MapMode::Read, .., |result| result.expect("it maps"));
            self.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
            bytemuck::pod_collect_to_vec(&to.get_mapped_range(..).expect("it is mapped"))
        }

        fn exchange(
            compressor: &mut ResidentCompressor<Self>,
            group: &mut impl Collective,
            gradient: &wgpu::Buffer,
        ) -> Result<(), Error> {
            compressor.exchange(group, gradient.slice(..))
        }
    }
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use std::sync::{Arc, OnceLock};

    use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
    use gradwire::backend::cuda::{Cuda, DeviceSlice};
    use gradwire_ptx_machine::Machine;

    use super::*;

    static MACHINE: OnceLock<Arc<Machine>> = OnceLock::new();

    pub(crate) fn machine() -> &'static Arc<Machine> {
        MACHINE.get_or_init(|| Arc::new(Machine::new((8, 0), 1)))
    }

    pub(crate) fn open() -> Cuda {
        Cuda::with_driver(machine().clone(), None).expect("an artifact that fits")
    }

    impl Surface for Cuda {
        type Memory = DeviceSlice;

        fn holding(&self, gradient: &[f32]) -> DeviceSlice {
            let bytes = 4 * gradient.len() as u64;
            let at = machine().alloc(bytes).expect("there is memory");
            // SAFETY: the machine checks ranges itself, and copies at once.
            unsafe { machine().copy_in(at, bytemuck::cast_slice(gradient), StreamId::OWN) }.expect("it fits");
            DeviceSlice::new(at.0, bytes)
        }

        fn values(&self, memory: &DeviceSlice, elements: usize) -> Vec<f32> {
            let mut out = vec![0.0f32; elements];
            let bytes = bytemuck::cast_slice_mut(&mut out);
            // SAFETY: as above.
            unsafe { machine().copy_out(bytes, DevicePtr(memory.address()), StreamId::OWN) }.expect("it was written");
            out
        }

        fn exchange(
            compressor: &mut ResidentCompressor<Self>,
            group: &mut impl Collective,
            gradient: &DeviceSlice,
        ) -> Result<(), Error> {
            // SAFETY: the machine checks ranges itself, and has done the work when a call returns.
            unsafe { compressor.exchange(group, *gradient) }
        }
    }
}

/// Runs a test on every surface that this machine has.
macro_rules! on_each {
    ($test:ident) => {
        #[cfg(feature = "wgpu")]
        if let Some(wgpu) = on_wgpu::open() {
            $test(&wgpu);
        }
        #[cfg(feature = "cuda")]
        $test(&on_cuda::open());
    };
}

/// Numbers of recipes: all of [`all`] in a whole sweep, else every `each`-th. The turn and `first` say which.
fn chosen(each: usize, first: usize) -> impl Iterator<Item = usize> {
    (0..all().len()).filter(move |index| Depth::of_tests().takes(index + first, each))
}

/// Gradients with odd values: large ones in each step, and in the second step one that is not finite, on one rank.
fn odd(n: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut gradient = gradient(n, rank, step);
    let values = [1e18, -1e18, f32::from_bits(1), -0.0, f32::from_bits(0x8000_0123)];
    for (index, value) in values.into_iter().enumerate() {
        gradient[3 + 731 * index + step as usize] = value;
    }
    if (rank, step) == (1, 1) {
        gradient[n - 5] = f32::INFINITY;
    }
    gradient
}

fn same_as_on_the_host<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    let device = Device::from(surface.clone());
    // Surfaces take turns.
    for index in chosen(4, usize::from(device.kind() == BackendKind::Wgpu)) {
        let name = format!("{:?}", all()[index]().recipes());
        let factors = name.contains("factors: Some");
        // What a state of factors holds of tensors that were sent whole is of no use, and a device forgets it.
        let kept = |of: &Compressor| match factors {
            true => bytemuck::cast_slice(&of.residual().expect("there is memory")).to_vec(),
            false => of.state().expect("idle"),
        };
        let expected = together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = all()[index]();
            let step = |step| {
                let mut gradient = odd(compressor.elements(), rank, step);
                compressor.exchange(&device, &mut group, &mut gradient).expect(&name);
                (bits(&gradient), kept(&compressor), compressor.last_bytes())
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        let found = together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = all()[index]().resident(surface).expect(&name);
            let step = |step| {
                if step == 2 {
                    // By way of the host.
                    compressor = compressor.download().and_then(|host| host.resident(surface)).expect(&name);
                }
                let n = compressor.elements();
                let memory = surface.holding(&odd(n, rank, step));
                S::exchange(&mut compressor, &mut group, &memory).expect(&name);
                let state = kept(&compressor.download().expect("idle"));
                (bits(&surface.values(&memory, n)), state, compressor.last_bytes())
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                let differs = found.0.iter().zip(&expected.0).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{name}: rank {rank}, step {step}");
                assert!(found.1 == expected.1, "{name}: state of rank {rank}, step {step}");
                assert_eq!(found.2, expected.2, "{name}: bytes of rank {rank}, step {step}");
            }
        }
    }
}

#[test]
fn an_exchange_in_device_memory_leaves_the_bits_of_one_in_the_host_s() {
    on_each!(same_as_on_the_host);
}

fn taken_back<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    // What is put back does not depend on the codec.
    for index in chosen(8, 0) {
        together(Threads::group(2).expect("two"), |rank, mut group| {
            let host = all()[index]();
            let name = format!("{:?}", host.recipes());
            let mut compressor = host.resident(surface).expect(&name);
            let n = compressor.elements();
            let held = |compressor: &ResidentCompressor<S>| {
                let host = compressor.download().expect("idle");
                (host.state().expect("idle"), compressor.last_bytes())
            };
            compressor.undo().expect_err("no step was made");
            for step in 0..3 {
                let before = held(&compressor);
                // The second is skipped.
                let memory = surface.holding(&odd(n, rank, step));
                S::exchange(&mut compressor, &mut group, &memory).expect(&name);
                compressor.undo().expect(&name);
                assert!(held(&compressor) == before, "{name}: step {step}");
                compressor.undo().expect_err("one step is kept, no more");
                S::exchange(&mut compressor, &mut group, &surface.holding(&gradient(n, rank, step))).expect(&name);
            }
        });
    }
}

#[test]
fn a_step_in_device_memory_that_is_taken_back_leaves_no_trace() {
    on_each!(taken_back);
}

fn failing<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    for index in chosen(4, 0) {
        let host = all()[index]();
        let name = format!("{:?}", host.recipes());
        let mut failed = 0;
        for fails in 1..12 {
            let group = Threads::group(1).expect("one").remove(0);
            let mut group = Failing { group, calls: 0, fails: u32::MAX };
            let mut compressor = host.resident(surface).expect(&name);
            let n = compressor.elements();
            S::exchange(&mut compressor, &mut group, &surface.holding(&gradient(n, 0, 0))).expect("nothing fails yet");
            (group.calls, group.fails) = (0, fails);
            let before = compressor.download().and_then(|host| host.state()).expect("idle");
            let given = gradient(n, 0, 1);
            let memory = surface.holding(&given);
            match S::exchange(&mut compressor, &mut group, &memory) {
                Ok(()) => break,
                Err(error) => {
                    assert!(matches!(error, Error::Collective(_)), "{name}: {error:?}");
                    let after = compressor.download().and_then(|host| host.state()).expect("idle");
                    assert!(after == before, "{name}: state after call {fails}");
                    assert_eq!(bits(&surface.values(&memory, n)), bits(&given), "{name}: gradient after call {fails}");
                    failed += 1;
                }
            }
        }
        assert!((1..11).contains(&failed), "{name}: {failed} calls");
    }
}

#[test]
fn a_group_that_fails_anywhere_leaves_device_memory_as_it_was() {
    on_each!(failing);
}

/// One call of the driver fails, whichever it is. Either all is as it was before the step, or nothing goes on until a
/// saved state is restored.
#[cfg(feature = "cuda")]
#[test]
fn a_device_that_fails_anywhere_leaves_all_as_it_was_or_says_that_it_does_not() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;

    let mut outcomes = [0, 0];
    let texts =
        ["qsgd:bits=4,bucket=64+ef", "topk:0.02+ef+momentum=0.9", "powersgd:rank=1", "randomk:0.1", "rotate+qsgd"];
    let more = ["dgc:ratio=0.02,nesterov,clip=3", "powersgd:rank=1+qsgd:bits=8,bucket=64"];
    for host in texts.into_iter().chain(more).map(of).chain([mixed(), with_cosines(), with_tiles()]) {
        let name = format!("{:?}", host.recipes());
        let driver = Arc::new(Faulty::new(on_cuda::machine().clone()));
        let surface = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
        let n = host.elements();
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut calls = 0;
        loop {
            let mut compressor = host.resident(&surface).expect(&name);
            let exchange = |compressor: &mut _, group: &mut _, memory: &_| Cuda::exchange(compressor, group, memory);
            exchange(&mut compressor, &mut group, &surface.holding(&gradient(n, 0, 0))).expect("nothing fails yet");
            let before = compressor.download().and_then(|host| host.state()).expect("idle");
            let (given, again) = (gradient(n, 0, 1), gradient(n, 0, 2));
            let memory = surface.holding(&given);
            driver.fail_behind(calls);
            let done = exchange(&mut compressor, &mut group, &memory);
            if !driver.has_failed() {
                driver.fail_behind(u32::MAX);
                done.expect("no call was left to fail");
                break;
            }
            let error = done.expect_err("a failed call is not passed over");
            assert!(matches!(error, Error::Backend { .. }), "{name}: {error:?} behind {calls} calls");
            match compressor.download() {
                Ok(host) => {
                    assert!(host.state().expect("idle") == before, "{name}: state behind {calls} calls");
                    let found = bits(&surface.values(&memory, n));
                    assert_eq!(found, bits(&given), "{name}: gradient behind {calls} calls");
                    outcomes[0] += 1;
                }
                Err(error) => {
                    let broken = |error| matches!(error, Error::Exchange(ExchangeError::BrokenOff));
                    assert!(broken(error), "{name}: behind {calls} calls");
                    let next = exchange(&mut compressor, &mut group, &surface.holding(&again));
                    assert!(broken(next.expect_err("refused")), "{name}: behind {calls} calls");
                    outcomes[1] += 1;
                }
            }
            calls += 1;
        }
        assert!(calls > 10, "{name}: {calls} calls");
    }
    assert!(outcomes.iter().all(|count| *count > 0), "undone and broken off: {outcomes:?}");
}

/// What crosses the bus in a step goes through memory that the first step has made. The driver copies from it as late
/// as it may, and the bits are those of the CPU.
#[cfg(feature = "cuda")]
#[test]
fn a_step_allocates_nothing_behind_the_first_one_and_waits_before_it_writes_again() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire::backend::cuda::driver::{Driver, StreamId};

    const RANKS: u32 = 5;
    for host in ["qsgd:bits=4,bucket=64+ef", "topk:k=70+ef", "none"].map(of).into_iter().chain([mixed()]) {
        let name = format!("{:?}", host.recipes());
        // Factors have bits of a device's own.
        let compared = !name.contains("factors: Some");
        let expected = together(Threads::group(RANKS).expect("a group"), |rank, mut group| {
            let (mut compressor, device) = (host.clone(), Device::cpu());
            let step = |step| {
                let mut gradient = gradient(compressor.elements(), rank, step);
                compressor.exchange(&device, &mut group, &mut gradient).expect(&name);
                bits(&gradient)
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        let found = together(Threads::group(RANKS).expect("a group"), |rank, mut group| {
            let driver = Arc::new(Faulty::new(on_cuda::machine().clone()));
            let surface = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
            let mut compressor = host.resident(&surface).expect(&name);
            let n = compressor.elements();
            let mut allocations = Vec::new();
            let means = (0..4).map(|step| {
                let memory = surface.holding(&gradient(n, rank, step));
                Cuda::exchange(&mut compressor, &mut group, &memory).expect(&name);
                allocations.push(driver.allocations());
                driver.synchronize(StreamId::OWN).expect("nothing fails");
                bits(&surface.values(&memory, n))
            });
            let means: Vec<_> = means.collect();
            assert_eq!(allocations[1..], [allocations[0]; 3], "{name}: rank {rank}");
            means
        });
        assert!(!compared || found == expected, "{name}");
    }
}

/// Page-locked memory that cannot be had fails the step, and the next one is what it would have been.
#[cfg(feature = "cuda")]
#[test]
fn a_step_without_page_locked_memory_changes_nothing() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;

    let run = |refused: bool| {
        let driver = Arc::new(Faulty::new(on_cuda::machine().clone()));
        let surface = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut compressor = mixed().resident(&surface).expect("valid");
        let n = compressor.elements();
        if refused {
            let before = compressor.download().and_then(|host| host.state()).expect("idle");
            let (given, allocations) = (gradient(n, 0, 0), driver.allocations());
            let memory = surface.holding(&given);
            driver.lock_out(true);
            let error = Cuda::exchange(&mut compressor, &mut group, &memory).expect_err("there is no memory");
            assert!(matches!(error, Error::Backend { .. }) && error.to_string().contains("ulimit -l"), "{error}");
            driver.lock_out(false);
            assert_eq!(driver.allocations(), allocations);
            assert!(compressor.download().and_then(|host| host.state()).expect("idle") == before);
            assert_eq!(bits(&surface.values(&memory, n)), bits(&given));
        }
        let memory = surface.holding(&gradient(n, 0, 1));
        Cuda::exchange(&mut compressor, &mut group, &memory).expect("there is memory");
        let state = compressor.download().and_then(|host| host.state()).expect("idle");
        (bits(&surface.values(&memory, n)), state)
    };
    assert!(run(true) == run(false));
}

/// Factors through a quantizer on two ranks, one of them in a device's memory: each call of its device fails in turn.
/// The other rank is told with a factor, or has all that it needs.
#[cfg(feature = "cuda")]
#[test]
fn a_device_that_fails_between_factors_ends_the_step_on_the_other_rank() {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;

    // Tensors that are not compressed go after the last factor.
    let (shapes, n): ([&[u64]; 2], usize) = ([&[40, 32], &[3, 3]], 1289);
    let (mut told, mut late) = (0, 0);
    for calls in 0.. {
        let driver = Arc::new(Faulty::new(on_cuda::machine().clone()));
        let surface = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
        let done = together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut host = Compressor::new("powersgd:rank=1+qsgd:bits=8,bucket=64", shapes, RUN).expect("valid");
            let given = [gradient(n, rank, 0), gradient(n, rank, 1)];
            if rank == 0 {
                host.exchange(&Device::cpu(), &mut group, &mut given[0].clone()).expect("nothing fails yet");
                let (state, mut x) = (host.state().expect("idle"), given[1].clone());
                let done = host.exchange(&Device::cpu(), &mut group, &mut x);
                let same = bits(&x) == bits(&given[1]) && host.state().expect("idle") == state;
                assert_ne!(same, done.is_ok(), "{calls} calls: {done:?}");
                return (done, false);
            }
            let mut compressor = host.resident(&surface).expect("it fits");
            Cuda::exchange(&mut compressor, &mut group, &surface.holding(&given[0])).expect("nothing fails yet");
            let before = compressor.download().and_then(|host| host.state()).expect("idle");
            let memory = surface.holding(&given[1]);
            driver.fail_behind(calls);
            let done = Cuda::exchange(&mut compressor, &mut group, &memory);
            let has_failed = driver.has_failed();
            driver.fail_behind(u32::MAX);
            if done.is_err() {
                match compressor.download() {
                    Ok(host) => {
                        assert!(host.state().expect("idle") == before, "{calls} calls: the state");
                        assert_eq!(bits(&surface.values(&memory, n)), bits(&given[1]), "{calls} calls: the gradient");
                    }
                    Err(Error::Exchange(ExchangeError::BrokenOff)) => {}
                    Err(error) => panic!("{calls} calls: {error:?}"),
                }
            }
            (done, has_failed)
        });
        if !done[1].1 {
            done.into_iter().for_each(|(done, _)| done.expect("no call was left to fail"));
            break;
        }
        match (&done[1].0, &done[0].0) {
            (Err(Error::Backend { .. }), Err(Error::Exchange(ExchangeError::Refused { rank: 1 }))) => told += 1,
            (Err(Error::Backend { .. }), Ok(())) => late += 1,
            _ => panic!("{calls} calls: {done:?}"),
        }
    }
    assert!(told > 10 && late > 2, "{told} and {late}");
}

fn overflowing_factors<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    type Step = (Result<(), String>, Vec<u32>, Vec<u32>);
    let (device, n) = (Device::from(surface.clone()), 64 * 48 + 40 * 32);
    let of = |text: &str| Compressor::new(text, [[64, 48], [40, 32]], RUN).expect(text);
    let said = |done: Result<(), Error>| done.map_err(|error| format!("{error:?}"));
    // Which NaN it is is a device's own.
    let but_for_nan = |values: &[f32]| {
        let one = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
        values.iter().map(one).collect::<Vec<_>>()
    };
    let quantizers = ["qsgd:bits=4,bucket=512", "qsgd:bits=4,bucket=512+finite", "float:bf16"];
    for text in quantizers.map(|quantizer| format!("powersgd:rank=2+{quantizer}")) {
        // Factors that are not finite, and too large; and one of which the mean is not too large.
        for value in [f32::NAN, f32::INFINITY, 3e38, 1e37, 2e36] {
            let given = |rank, step| {
                let mut x = gradient(n, rank, step);
                if rank == 1 && (1..3).contains(&step) {
                    x[70] = value;
                }
                x
            };
            let expected: Vec<Vec<Step>> = together(Threads::group(2).expect("two"), |rank, mut group| {
                let mut compressor = of(&text);
                let step = |step| {
                    let mut x = given(rank, step);
                    let done = said(compressor.exchange(&device, &mut group, &mut x));
                    (done, but_for_nan(&x), bits(&compressor.residual().expect("idle")))
                };
                (0..5).map(step).collect()
            });
            let found: Vec<Vec<Step>> = together(Threads::group(2).expect("two"), |rank, mut group| {
                let mut compressor = of(&text).resident(surface).expect(&text);
                let step = |step| {
                    let memory = surface.holding(&given(rank, step));
                    let done = said(S::exchange(&mut compressor, &mut group, &memory));
                    let residual = compressor.download().and_then(|host| host.residual()).expect("idle");
                    (done, but_for_nan(&surface.values(&memory, n)), bits(&residual))
                };
                (0..5).map(step).collect()
            });
            let odd = expected[0].iter().any(|(done, mean, _)| done.is_err() || mean.contains(&f32::NAN.to_bits()));
            assert!(odd != (value == 2e36), "{text}, {value}: it is not finite, or too large");
            for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert_eq!(found.0, expected.0, "{text}, {value}, rank {rank}, step {step}");
                    assert!(found.1 == expected.1, "{text}, {value}, rank {rank}, step {step}: the mean");
                    assert!(found.2 == expected.2, "{text}, {value}, rank {rank}, step {step}: the residual");
                }
            }
        }
    }
}

#[test]
fn quantized_factors_that_overflow_in_device_memory_do_as_in_the_host_s() {
    on_each!(overflowing_factors);
}

fn overflowing_rotations<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    let (device, n) = (Device::from(surface.clone()), 64 * 128);
    let (mut odd, mut even) = (0, 0);
    for text in ["eden:bits=2", "rotate:own,block=1024+qsgd:bits=8", "drive:bucket=64+finite"] {
        // Of the first rank, a later one and the last; the sum of a block overflows with the first two values.
        for (of_rank, value) in (0..3).flat_map(|rank| [3e38, -2e38, 1e30].map(|value| (rank, value))) {
            let given = |rank| {
                let mut x = gradient(n, rank, 0);
                if rank == of_rank {
                    x[70..90].fill(value);
                }
                x
            };
            let means = together(Threads::group(3).expect("three"), |rank, mut group| {
                let new = || Compressor::new(text, [[64, 128]], RUN).expect(text);
                let (mut x, memory) = (given(rank), surface.holding(&given(rank)));
                let said = |done: Result<(), Error>| done.map_err(|error| format!("{error:?}"));
                let of_host = said(new().exchange(&device, &mut group, &mut x));
                let of_device = said(S::exchange(&mut new().resident(surface).expect(text), &mut group, &memory));
                assert_eq!(of_device, of_host, "{text}, {value} on rank {of_rank}");
                assert!(bits(&surface.values(&memory, n)) == bits(&x), "{text}, {value} on rank {of_rank}: the mean");
                of_host.is_err() || !x.iter().all(|x| x.is_finite())
            });
            *if means[0] { &mut odd } else { &mut even } += 1;
        }
    }
    assert!(odd >= 9 && even >= 9, "{odd} means overflowed, and {even} did not");
}

#[test]
fn rotations_that_overflow_in_device_memory_do_as_in_the_host_s() {
    on_each!(overflowing_rotations);
}

fn refusing<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    let texts = [
        "none+finite",
        "qsgd:bits=4,bucket=64+ef+finite",
        "uniform:bits=4,bucket=64+momentum=0.5+finite",
        "topk:0.01+ef+finite",
        "topk:0.01+finite",
        "powersgd:rank=2+finite",
        "powersgd:rank=2+qsgd:bits=8,bucket=64+finite",
        "randomk:0.1+finite",
        "rotate+qsgd+finite",
        "rotate:block=64+uniform:bits=4,bucket=64+noef+momentum=0.5+finite",
        "dct+topk:0.1+ef:beta=0.5+finite",
        "dct:block=8+qsgd:bits=4,bucket=64+noef+momentum=0.5+finite",
        "dct+randomk:0.1+finite",
        "dct:block=8,tiles+topk:k=6,block=64,clamped+ef+finite",
    ];
    for text in texts {
        // In a matrix, and in a bias that goes uncompressed.
        for at in [5, 64 * 48 + 3] {
            together(Threads::group(2).expect("two"), |rank, mut group| {
                let policy = Policy::new(text).expect(text);
                let host = Compressor::with_policy(&policy, &tensors(), RUN).expect(text);
                let mut compressor = host.resident(surface).expect(text);
                let n = compressor.elements();
                let mut x = gradient(n, rank, 0);
                if rank == 1 {
                    x[at] = f32::NAN;
                }
                let memory = surface.holding(&x);
                let error = S::exchange(&mut compressor, &mut group, &memory).expect_err(text);
                if rank == 1 {
                    assert!(matches!(error, Error::NotFinite { index } if index == at as u64), "{text}: {error:?}");
                } else {
                    assert!(matches!(error, Error::Exchange(ExchangeError::Refused { rank: 1 })), "{text}: {error:?}");
                }
                let state = compressor.download().and_then(|host| host.state()).expect("idle");
                assert!(state == host.state().expect("idle"), "{text}");
                assert_eq!(bits(&surface.values(&memory, n)), bits(&x), "{text}");
                let memory = surface.holding(&gradient(n, rank, 1));
                S::exchange(&mut compressor, &mut group, &memory).expect("the group can be used again");
            });
        }
    }
}

#[test]
fn a_nan_in_device_memory_fails_the_step_on_all_and_the_group_goes_on() {
    on_each!(refusing);
}

fn overflowing<S: Surface>(surface: &S)
where
    Device: From<S>,
{
    let (device, at) = (Device::from(surface.clone()), 64 * 48 + 64 + 7);
    for text in ["topk:0.1+ef", "topk:0.1+ef:beta=0.5", "qsgd:bits=4,bucket=64+ef", "randomk:0.1"] {
        let text = format!("dct:block=2+{text}+finite");
        let policy = Policy::new(text.as_str()).and_then(|p| p.named("a.weight", "qsgd")).expect(&text);
        let mut host = Compressor::with_policy(&policy, &tensors(), RUN).expect(&text);
        let mut compressor = host.resident(surface).expect(&text);
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut x = gradient(host.elements(), 0, 0);
        // Finite numbers, in one block of the part's, which is the model's third tensor.
        x[at] = f32::MAX;
        x[at - 1] = f32::MAX;
        let given = x.clone();
        let index = |error| match error {
            Error::NotFinite { index } => index,
            other => panic!("{text}: {other:?}"),
        };
        let expected = index(host.exchange(&device, &mut group, &mut x).expect_err(&text));
        let memory = surface.holding(&given);
        let error = S::exchange(&mut compressor, &mut group, &memory).expect_err(&text);
        assert_eq!(index(error), expected, "{text}");
        assert!((at as u64 - 3..=at as u64).contains(&expected), "{text}: {expected} behind {at}");
        assert_eq!(bits(&surface.values(&memory, given.len())), bits(&given), "{text}");
        let state = compressor.download().and_then(|host| host.state()).expect("idle");
        assert!(state == host.state().expect("idle"), "{text}");
    }
}

#[test]
fn coefficients_that_overflow_are_refused_under_the_host_s_number() {
    on_each!(overflowing);
}

#[cfg(feature = "wgpu")]
#[test]
fn a_buffer_that_does_not_fit_is_refused() {
    use gradwire::wgpu::BufferUsages;

    let Some(wgpu) = on_wgpu::open() else { return };
    let mut group = Threads::group(1).expect("one").remove(0);
    let mut compressor = Compressor::new("qsgd", [[64, 64]], RUN).and_then(|c| c.resident(&wgpu)).expect("valid");
    let short = wgpu.holding(&[0.5; 4000]);
    let error = compressor.exchange(&mut group, short.slice(..)).expect_err("it is short");
    assert!(matches!(error, Error::Length { what: "gradient", found: 16_000, expected: 16_384, .. }), "{error:?}");
    let unreadable = on_wgpu::buffer(&wgpu, &[0; 16_384], BufferUsages::STORAGE);
    let error = compressor.exchange(&mut group, unreadable.slice(..)).expect_err("it cannot be copied");
    assert!(matches!(error, Error::Memory { what: "gradient", .. }), "{error:?}");
    let long = wgpu.holding(&[0.5; 5000]);
    let error = compressor.exchange(&mut group, long.slice(4..16_388)).expect_err("it is not aligned");
    assert!(matches!(error, Error::Memory { what: "gradient", .. }), "{error:?}");
    compressor.exchange(&mut group, long.slice(256..16_640)).expect("a part of a buffer will do");
    let voting = Compressor::new("signum+vote", [[64, 64]], RUN).expect("valid");
    let error = voting.resident(&wgpu).expect_err("votes are counted in the host's memory");
    assert!(error.to_string().ends_with("use Compressor::exchange, or leave out vote"), "{error}");
}

/// Momentum and transforms in passes of fewer elements each, over tensors that begin anywhere.
#[cfg(feature = "wgpu")]
#[test]
fn a_step_in_many_passes_is_that_of_one() {
    use gradwire::plan::Limits;

    let Some(wgpu) = on_wgpu::open() else { return };
    let limited = |binding_bytes| wgpu.clone().with_limits(Limits { binding_bytes, ..Limits::NONE });
    let new = |surface: &gradwire::backend::wgpu::Wgpu, text: &str, longest: u64| {
        let shapes = [[longest, 1], [3, 1], [501, 33]].map(|shape| gradwire::Tensor::new("", shape));
        let host = Compressor::with_policy(&Policy::new(text).expect(text).small(0), &shapes, RUN).expect(text);
        host.resident(surface)
    };
    let run = |surface: &gradwire::backend::wgpu::Wgpu, text: &str, longest: u64| {
        let mut compressor = new(surface, text, longest).expect(text);
        let mut group = Threads::group(1).expect("one").remove(0);
        let means = [0, 1, 2].map(|step| {
            let memory = surface.holding(&odd(compressor.elements(), 0, step));
            compressor.exchange(&mut group, memory.slice(..)).expect("it runs");
            bits(&surface.values(&memory, compressor.elements()))
        });
        (means, compressor.download().and_then(|host| host.state()).expect("idle"))
    };
    // A transform takes 2^19 elements at the least, or all.
    for (text, longest, bytes) in [("momentum=0.75", 70_000, 48 << 10), ("momentum=0.75+dct", 530_000, 2 << 20)] {
        let text = format!("uniform:bits=8,bucket=32+{text}");
        assert!(run(&limited(bytes), &text, longest) == run(&wgpu, &text, longest), "{text}");
    }
    let error = new(&limited(1 << 20), "dct+qsgd:bits=4,bucket=64", 1000).expect_err("it is too small");
    assert!(matches!(error, Error::Limit { found: 0x10_0000, needed: 0x20_0000, .. }), "{error:?}");
    // Rows of tiles in three passes each way, and the columns beside them in two.
    let of_tiles = |surface: &gradwire::backend::wgpu::Wgpu, shape: [u64; 2]| {
        let tensors = [[3, 1], shape].map(|shape| gradwire::Tensor::new("", shape));
        let policy = Policy::new("dct:block=16,tiles+onebit").expect("valid").small(0);
        Compressor::with_policy(&policy, &tensors, RUN).and_then(|host| host.resident(surface))
    };
    let step = |surface: &gradwire::backend::wgpu::Wgpu| {
        let mut compressor = of_tiles(surface, [1100, 1033]).expect("it fits");
        let memory = surface.holding(&odd(compressor.elements(), 0, 0));
        let mut group = Threads::group(1).expect("one").remove(0);
        compressor.exchange(&mut group, memory.slice(..)).expect("it runs");
        let state = compressor.download().and_then(|host| host.state()).expect("idle");
        (bits(&surface.values(&memory, compressor.elements())), state)
    };
    assert!(step(&limited(2 << 20)) == step(&wgpu), "tiles in parts");
    let error = of_tiles(&limited(2 << 20), [16, 40_000]).expect_err("a row of tiles is more than a binding");
    assert!(matches!(error, Error::Limit { found: 0x20_0000, needed: 2_560_252, .. }), "{error:?}");
}

#[cfg(feature = "cuda")]
#[test]
fn memory_that_is_not_the_device_s_is_refused() {
    use gradwire::backend::cuda::DeviceSlice;

    let cuda = on_cuda::open();
    let mut group = Threads::group(1).expect("one").remove(0);
    let mut compressor = Compressor::new("qsgd", [[64, 64]], RUN).and_then(|c| c.resident(&cuda)).expect("valid");
    let memory = cuda.holding(&[0.5; 4096]);
    for slice in [DeviceSlice::new(memory.address() + 2, 16_384), DeviceSlice::new(12, 16_384)] {
        // SAFETY: it is refused before anything is queued.
        let error = unsafe { compressor.exchange(&mut group, slice) }.expect_err("it is no gradient");
        assert!(matches!(error, Error::Memory { what: "gradient", .. }), "{error:?}");
    }
    // SAFETY: as above.
    let error = unsafe { compressor.exchange(&mut group, DeviceSlice::new(memory.address(), 16_380)) };
    assert!(matches!(error, Err(Error::Length { what: "gradient", found: 16_380, .. })), "{error:?}");
}
