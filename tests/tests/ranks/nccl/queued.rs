//! Exchanges that are queued: gradient, state and payloads in device memory.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock};

use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
use gradwire::backend::cuda::{Cuda, DeviceSlice, RealDriver};
use gradwire::embed::{Encode, EncodeBuffers};
use gradwire::{
    Codec, CodecId, Compressor, Device, Dtype, Error, ExchangeError, Policy, Qsgd, QueuedCompressor, Seed,
    StreamCollective, Tensor, Transfer,
};
use gradwire_collectives::{Collective, CollectiveError, Nccl, Threads};
use gradwire_ptx_machine::Machine;
use gradwire_tests::capture::{Capture, STREAM};

use super::queue::Memory;
use super::stand_in::{Fault, LONG, fault, has_code, id, on, settings, spread};
use super::work;

const SHAPES: [&[u64]; 6] = [&[64, 20], &[64], &[40, 30], &[1, 700], &[3, 5], &[36, 35]];
const RUN: u64 = 11;
const STEPS: u64 = 3;

/// Every kind of part: codes, entries, factors, momentum; and tensors that go whole beside them.
const TEXTS: [&str; 24] = [
    "none",
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=8,bucket=whole",
    "uniform:bits=4,bucket=32+momentum=0.9",
    "onebit",
    "sign",
    "natural:bits=8+ef",
    "qsgd:bits=4,bucket=64+noef+momentum=0.5",
    "topk:0.02+ef",
    "topk:k=5",
    "topk:k=2,block=64+ef",
    "topk:0.02+momentum=0.9",
    "topk:0.02+momentum=0.9+nesterov",
    "quantile:levels=16,bucket=256+ef",
    "powersgd:rank=2",
    "powersgd:rank=1+momentum=0.5",
    "powersgd:rank=2,onesided",
    "randomk:0.05",
    "randomk:k=40+noef",
    "randomk:0.6,unbiased",
    "dct:block=16+topk:k=6,block=256+ef",
    "dct+qsgd:bits=4,bucket=64+momentum=0.5+nesterov",
    "dct:block=8+randomk:0.1",
    "dct:block=8,tiles+topk:k=6,block=256+ef",
];

fn tensors() -> Vec<Tensor> {
    SHAPES.iter().zip(["a", "b", "c", "d", "e", "f"]).map(|(shape, name)| Tensor::new(name, *shape)).collect()
}

fn of(text: &str) -> Compressor {
    Compressor::with_policy(&Policy::new(text).expect(text), &tensors(), RUN).expect(text)
}

/// Parts of every kind side by side, so that tensors are packed.
fn mixed() -> Compressor {
    let policy = Policy::new("qsgd:bits=4,bucket=64+ef").and_then(|p| p.named("c", "topk:0.1+momentum=0.5"));
    let policy = policy.and_then(|p| p.named("a", "powersgd:rank=2")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Entries that the seed draws, of some tensors packed.
fn with_random() -> Compressor {
    let policy = Policy::new("randomk:0.1").and_then(|p| p.named("c", "topk:0.1+momentum=0.5")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Coefficients of some tensors, packed, and of another one.
fn with_cosines() -> Compressor {
    let policy = Policy::new("dct:block=8+qsgd:bits=4,bucket=64+ef").and_then(|p| p.named("c", "dct+topk:0.1+ef"));
    Compressor::with_policy(&policy.expect("valid"), &tensors(), RUN).expect("valid")
}

fn all() -> Vec<Compressor> {
    TEXTS.iter().map(|text| of(text)).chain([mixed(), with_random(), with_cosines()]).collect()
}

/// The stand-in for a driver.
fn driver() -> Arc<RealDriver> {
    let path = settings(LONG).driver.expect("a path");
    // SAFETY: it is the stand-in.
    Arc::new(unsafe { RealDriver::open_library(&path, 0) }.expect("the stand-in"))
}

/// The stand-in for a device, in which kernels are compiled once for all ranks.
fn device() -> &'static Cuda {
    static DEVICE: OnceLock<Cuda> = OnceLock::new();
    DEVICE.get_or_init(|| Cuda::with_driver(driver(), None).expect("an artifact that fits"))
}

/// A rank's memory and stream, and the device on that stream.
fn place() -> (Memory, Cuda) {
    let memory = Memory::new();
    // SAFETY: the stream is there until the process ends.
    let cuda = unsafe { device().on_stream(memory.stream) }.expect("a stream of its context");
    (memory, cuda)
}

/// Threads, but for sums, which begin with the last rank as those of the stand-in for NCCL do.
struct Backwards(Threads);

impl Collective for Backwards {
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

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mut all = Vec::new();
        self.0.all_gather(bytemuck::cast_slice(values), &mut all)?;
        let mut parts = all.iter().rev().map(|part| bytemuck::pod_collect_to_vec::<u8, f32>(part));
        values.copy_from_slice(&parts.next().expect("this rank's"));
        parts.for_each(|part| values.iter_mut().zip(part).for_each(|(sum, value)| *sum += value));
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.broadcast(root, bytes)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Of each step the mean; and the state after the last one. What factors keep of tensors that go whole is of no use.
type Outcome = (Vec<Vec<u32>>, Vec<u8>);

fn state(of: &Compressor) -> Vec<u8> {
    match format!("{:?}", of.recipes()).contains("factors: Some") {
        true => bytemuck::cast_slice(&of.residual().expect("there is memory")).to_vec(),
        false => of.state().expect("idle"),
    }
}

/// The gradient of a rank in a step.
type Given = fn(usize, u32, u64) -> Vec<f32>;

/// Steps of an exchange between threads, on the same device where factors need it.
fn expected(compressor: &Compressor, ranks: u32, given: Given) -> Vec<Outcome> {
    let factors = format!("{:?}", compressor.recipes()).contains("factors: Some");
    let groups = Arc::new(Mutex::new(Threads::group(ranks).expect("a group")));
    let compressor = compressor.clone();
    let mut all = spread(ranks, move |_| {
        let mut group = Backwards(groups.lock().expect("no panic").pop().expect("one for each"));
        let device = if factors { Device::from(device().clone()) } else { Device::cpu() };
        let mut compressor = compressor.clone();
        let mut step = |step| {
            let mut gradient = given(compressor.elements(), group.rank(), step);
            compressor.exchange(&device, &mut group, &mut gradient).expect("threads do not fail");
            bits(&gradient)
        };
        let means = (0..STEPS).map(&mut step).collect();
        (group.rank(), (means, state(&compressor)))
    });
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Queues a step, and gives the gradient after it.
fn step(compressor: &mut QueuedCompressor, group: &mut Nccl, memory: &Memory, step: u64) -> Result<Vec<u32>, Error> {
    queue(compressor, group, memory, &work::gradient(compressor.elements(), Collective::rank(group), step))
}

/// Queues a step of this gradient, and gives the gradient after it.
fn queue(
    compressor: &mut QueuedCompressor,
    group: &mut Nccl,
    memory: &Memory,
    given: &[f32],
) -> Result<Vec<u32>, Error> {
    let at = memory.put(given);
    // SAFETY: the memory is there until the process ends.
    unsafe { compressor.exchange(group, DeviceSlice::new(at, 4 * given.len() as u64)) }?;
    Ok(bits(&memory.get(at, given.len())))
}

/// Holds that queued steps leave what steps between threads leave. With `undone`, a step of another gradient comes before
/// each, and is taken back; one of them has a NaN on rank 0.
fn expect_the_bits_of_threads(all: fn() -> Vec<Compressor>, ranks: u32, given: Given, undone: bool) {
    let expected: Vec<_> = all().iter().map(|compressor| expected(compressor, ranks, given)).collect();
    let found = on(id(), ranks, LONG, move |mut group| {
        let (memory, cuda) = place();
        let outcomes = all().into_iter().map(|compressor| {
            let name = format!("{:?}", compressor.recipes());
            let mut queued = compressor.queued(&cuda, &mut group).expect(&name);
            let steps = (0..STEPS).map(|at| {
                if undone {
                    let other = with_a_nan(compressor.elements(), Collective::rank(&group), at);
                    queue(&mut queued, &mut group, &memory, &other).expect(&name);
                    queued.undo().expect("a step was queued");
                    assert!(matches!(queued.undo(), Err(Error::Exchange(ExchangeError::NothingToUndo))), "{name}");
                }
                let given = given(compressor.elements(), Collective::rank(&group), at);
                queue(&mut queued, &mut group, &memory, &given).expect(&name)
            });
            let steps = steps.collect();
            // SAFETY: the group is of the same context.
            let host = unsafe { queued.download(&mut group) }.expect(&name);
            assert_eq!((host.steps(), queued.steps()), (STEPS, STEPS));
            assert!(queued.last_bytes() > 0, "{name}");
            (steps, state(&host))
        });
        let outcomes: Vec<Outcome> = outcomes.collect();
        group.finish().expect("all ranks end");
        outcomes
    });
    for (index, expected) in expected.iter().enumerate() {
        let name = format!("{:?}", all()[index].recipes());
        for (rank, (means, state)) in expected.iter().enumerate() {
            let (found_means, found_state) = &found[rank][index];
            for (step, (found, mean)) in found_means.iter().zip(means).enumerate() {
                let differs = found.iter().zip(mean).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{name}: rank {rank} of {ranks}, step {step}");
            }
            assert!(found_state == state, "{name}: state of rank {rank} of {ranks}");
        }
    }
}

#[test]
fn queued_exchanges_have_the_bits_of_threads_for_1_to_4_ranks() {
    for ranks in 1..=4 {
        expect_the_bits_of_threads(all, ranks, work::gradient, false);
    }
}

#[test]
fn a_queued_step_that_is_taken_back_leaves_the_state_as_it_was() {
    expect_the_bits_of_threads(all, 2, work::gradient, true);
}

/// Those that keep a state and whose steps do not depend on how many were skipped; and one of several blocks.
fn with_state() -> Vec<Compressor> {
    let several = Compressor::new("sign+momentum=0.9", [[150, 100]], RUN).expect("valid");
    let keeps = |of: &Compressor| {
        let recipes = format!("{:?}", of.recipes());
        !recipes.contains("one_sided: true") && of.recipes().iter().any(|recipe| !recipe.is_none())
    };
    all().into_iter().filter(keeps).chain([several]).collect()
}

/// Rank 0 has a NaN in step 1.
fn with_a_nan(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut gradient = work::gradient(elements, rank, step);
    if (rank, step) == (0, 1) {
        gradient[7] = f32::NAN;
    }
    gradient
}

/// More infinite elements than a selection keeps, on rank 1, in the first step.
fn with_infinities(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut gradient = work::gradient(elements, rank, step);
    if (rank, step) == (1, 0) {
        gradient.iter_mut().step_by(3).for_each(|value| *value = f32::NEG_INFINITY);
    }
    gradient
}

/// An infinite element in a vector that goes uncompressed, in the last step of rank 1.
fn with_an_infinite_vector(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut gradient = work::gradient(elements, rank, step);
    if (rank, step) == (1, STEPS - 1) {
        gradient[64 * 20 + 3] = f32::INFINITY;
    }
    gradient
}

#[test]
fn a_queued_step_that_is_not_finite_on_one_rank_is_skipped_on_all() {
    for given in [with_a_nan as Given, with_infinities, with_an_infinite_vector] {
        expect_the_bits_of_threads(with_state, 2, given, false);
    }
    expect_the_bits_of_threads(with_state, 3, with_a_nan, true);
}

/// Finite elements of which a sum of two steps is not.
fn large(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    work::gradient(elements, rank, step).into_iter().map(|value| if step < 2 { 2.2e38 } else { value }).collect()
}

/// The same of a few elements, of which random-k sends none or few: what is left of them is in the residual alone.
fn large_and_few(elements: usize, rank: u32, step: u64) -> Vec<f32> {
    let mut gradient = work::gradient(elements, rank, step);
    gradient[..4].copy_from_slice(&large(elements, rank, step)[..4]);
    gradient
}

/// A residual, a momentum, and values that are scaled up when they are sent.
fn with_sums() -> Vec<Compressor> {
    ["topk:0.02+ef", "topk:0.02+momentum=0.9", "randomk:0.05", "randomk:0.6,unbiased+noef"].map(of).into()
}

#[test]
fn a_queued_step_whose_sums_are_not_finite_is_skipped() {
    expect_the_bits_of_threads(with_sums, 2, large, false);
    expect_the_bits_of_threads(with_sums, 2, large_and_few, false);
}

/// With one side a step, the side of a skipped step has had its turn, and factors and residual stay.
#[test]
fn with_one_side_a_step_a_skipped_step_leaves_the_residual_as_it_was() {
    on(id(), 2, LONG, |mut group| {
        let (memory, cuda) = place();
        let mut queued = of("powersgd:rank=2,onesided").queued(&cuda, &mut group).expect("valid");
        let residual = |queued: &mut QueuedCompressor, group: &mut Nccl| {
            // SAFETY: the group is of the same context.
            unsafe { queued.download(group) }.expect("done").residual().expect("there is memory")
        };
        // Of three steps the first is skipped, so that each side is skipped, and comes after a skipped step.
        for step in [0, 1, 2] {
            let before = residual(&mut queued, &mut group);
            let spoiled = with_a_nan(queued.elements(), Collective::rank(&group), 1);
            let mean = queue(&mut queued, &mut group, &memory, &spoiled).expect("queued");
            assert!(mean.iter().all(|bits| f32::from_bits(*bits).is_nan()), "step {step}");
            assert!(bits(&residual(&mut queued, &mut group)) == bits(&before), "step {step}");
            for further in 0..2 {
                let mean = self::step(&mut queued, &mut group, &memory, 2 * step + further).expect("queued");
                assert!(mean.iter().all(|bits| f32::from_bits(*bits).is_finite()), "step {step}");
                assert!(mean.iter().any(|bits| *bits << 1 != 0), "step {step}");
            }
        }
        group.finish().expect("all ranks end");
    });
}

/// A group whose other ranks all have what this one has: its operations are copies on one stream of a driver.
pub(super) struct Echo<D> {
    pub(super) driver: Arc<D>,
    pub(super) ranks: u32,
    pub(super) stream: u64,
}

impl<D: Driver> Echo<D> {
    fn copy(&self, from: u64, to: u64, bytes: usize, stream: *mut c_void) {
        assert_eq!(stream.addr() as u64, self.stream);
        // SAFETY: the machine behind the driver checks ranges itself, and has any stream.
        let copied = unsafe {
            let stream = StreamId::from_raw(stream);
            self.driver.copy_within(DevicePtr(to), DevicePtr(from), bytes as u64, stream)
        };
        copied.expect("it fits");
    }
}

impl<D: Driver> StreamCollective for Echo<D> {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    unsafe fn queue_all_gather(
        &mut self,
        mine: u64,
        all: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError> {
        (0..u64::from(self.ranks)).for_each(|rank| self.copy(mine, all + rank * bytes as u64, bytes, stream));
        Ok(())
    }

    unsafe fn queue_all_reduce_sum(
        &mut self,
        mine: u64,
        sums: u64,
        values: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError> {
        assert_eq!(self.ranks, 1, "a sum of one rank is a copy");
        self.copy(mine, sums, 4 * values, stream);
        Ok(())
    }

    unsafe fn queue_broadcast(&mut self, _: u32, _: u64, _: usize, _: *mut c_void) -> Result<(), CollectiveError> {
        Ok(())
    }

    unsafe fn queue_transfers(&mut self, _: &[Transfer], _: *mut c_void) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn check(&mut self) -> Result<(), CollectiveError> {
        Ok(())
    }

    unsafe fn wait(&mut self, stream: *mut c_void) -> Result<(), CollectiveError> {
        // SAFETY: as above.
        self.driver.synchronize(unsafe { StreamId::from_raw(stream) }).expect("done");
        Ok(())
    }
}

/// What a capture into a CUDA graph forbids: allocations, copies from and to the host, compiling, and waits.
#[test]
fn a_step_allocates_nothing_and_waits_for_nothing() {
    let driver = Arc::new(Capture::new(Machine::new((8, 0), 1)));
    let cuda = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
    // SAFETY: the machine has this stream.
    let cuda = unsafe { cuda.on_stream(STREAM as *mut c_void) }.expect("its own");
    let mut group = Echo { driver: driver.clone(), ranks: 1, stream: STREAM };
    for compressor in all() {
        let name = format!("{:?}", compressor.recipes());
        let mut threads = Threads::group(1).expect("one").remove(0);
        let mut queued = compressor.queued(&cuda, &mut threads).expect(&name);
        let n = compressor.elements();
        let at = driver.alloc(4 * n as u64).expect("there is memory");
        for step in 0..2 {
            let given = work::gradient(n, 0, step);
            // SAFETY: the machine checks ranges itself, and copies at once.
            unsafe { driver.copy_in(at, bytemuck::cast_slice(&given), StreamId::OWN) }.expect("it fits");
            let slice = DeviceSlice::new(at.0, 4 * n as u64);
            // SAFETY: as above.
            let exchange = || unsafe { queued.exchange(&mut group, slice) };
            let (done, streams) = driver.while_armed(exchange);
            done.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(streams.len() > 2, "{name}: {streams:?}");
            assert!(streams.iter().all(|stream| *stream == STREAM), "{name}: {streams:?}");
        }
    }
}

#[test]
fn what_cannot_be_queued_is_refused_on_all_ranks_and_the_group_goes_on() {
    let refused = [
        ("qsgd+finite", "leave out finite"),
        ("dgc:ratio=0.1,clip=5", "leave out clip"),
        ("topk:0.1+ef+peers:norm=9", "leave out peers"),
        ("topk:0.1+ef21", "or ef"),
        ("onebit+ef:beta=0.5", "or ef"),
        ("qsgd:bits=4+elias", "leave out elias, delta, base3 and sparse"),
        ("ternary+base3", "leave out elias, delta, base3 and sparse"),
        ("topk:above=0.1", "or topk with a part or a number"),
        ("topk:0.1,estimate=sidco", "or leave out estimate"),
        ("topk:0.1,persign", "or leave out persign"),
        ("topk:0.1+qsgd:bits=4", "leave out what stands behind topk"),
        ("topk:0.1+f16", "leave out what stands behind topk"),
        ("dgc:ratio=0.01,warmup=4", "leave out warmup"),
        ("signum+vote", "leave out vote"),
        ("rotate+qsgd", "leave out rotate, eden and drive"),
        ("eden:bits=2", "leave out rotate, eden and drive"),
        ("powersgd:rank=2+qsgd:bits=8", "leave out the quantizer"),
        ("dct+topk:0.1+ef:beta=0.5", "or ef"),
        ("dct+topk:0.1,estimate=sidco+ef", "or leave out estimate"),
        ("topk:0.1+ef+gtopk", "leave out gtopk and twophase"),
        ("qsgd+twophase", "leave out gtopk and twophase"),
    ];
    for (text, remedy) in refused {
        let mut threads = Threads::group(1).expect("one").remove(0);
        let error = of(text).queued(device(), &mut threads).expect_err(text);
        assert!(matches!(error, Error::Recipe(_)) && error.to_string().ends_with(remedy), "{text}: {error}");
    }
    on(id(), 2, LONG, |mut group| {
        let (memory, cuda) = place();
        let rank = Collective::rank(&group);
        let text = if rank == 1 { "qsgd+finite" } else { "qsgd" };
        let error = of(text).queued(&cuda, &mut group).expect_err("rank 1 refuses");
        match rank {
            0 => assert!(matches!(error, Error::Exchange(ExchangeError::Model { rank: 1 })), "{error}"),
            _ => assert!(matches!(error, Error::Recipe(_)), "{error}"),
        }
        // Behind its warm-up a selection is of one size.
        let mut queued = {
            let mut warm = of("topk:0.1,warmup=1+ef");
            let mut gradient = work::gradient(warm.elements(), rank, 0);
            warm.exchange(&Device::cpu(), &mut group, &mut gradient).expect("a step of the warm-up");
            warm.queued(&cuda, &mut group).expect("the group goes on")
        };
        step(&mut queued, &mut group, &memory, 1).expect("a step");
        // SAFETY: the group is of the same context.
        unsafe { queued.wait(&mut group) }.expect("done");
        group.finish().expect("all ranks end");
    });
}

#[test]
fn ranks_see_beforehand_whether_they_agree() {
    on(id(), 2, LONG, |mut group| {
        let (_memory, cuda) = place();
        let (rank, other) = (Collective::rank(&group), 1 - Collective::rank(&group));
        let mut fails = |of: Compressor, cuda: &Cuda| of.queued(cuda, &mut group).expect_err("they differ");
        let runs = Compressor::new("qsgd", SHAPES, u64::from(rank)).expect("valid");
        let error = fails(runs, &cuda);
        assert!(matches!(error, Error::Exchange(ExchangeError::Model { rank }) if rank == other), "{error}");
        let mut steps = of("qsgd");
        if rank == 1 {
            let mut alone = Threads::group(1).expect("one").remove(0);
            let mut gradient = work::gradient(steps.elements(), 0, 0);
            steps.exchange(&Device::cpu(), &mut alone, &mut gradient).expect("a step");
        }
        let error = fails(steps, &cuda);
        assert!(matches!(error, Error::Exchange(ExchangeError::Step { rank, .. }) if rank == other), "{error}");
        // A device without a stream for others, on one rank.
        let machine = Cuda::with_driver(Arc::new(Machine::new((8, 0), 1)), None).expect("an artifact that fits");
        let error = fails(of("qsgd"), if rank == 1 { &machine } else { &cuda });
        match rank {
            0 => assert!(matches!(error, Error::Exchange(ExchangeError::Unready { rank: 1 })), "{error}"),
            _ => assert!(matches!(error, Error::Stream { .. }), "{error}"),
        }
        group.finish().expect("all ranks end");
    });
}

#[test]
fn what_is_found_before_the_queue_changes_nothing() {
    on(id(), 1, LONG, |mut group| {
        let (memory, cuda) = place();
        for compressor in [of("qsgd:bits=4,bucket=64+ef"), mixed()] {
            let mut queued = compressor.queued(&cuda, &mut group).expect("valid");
            step(&mut queued, &mut group, &memory, 0).expect("a step");
            // SAFETY: the group is of the same context.
            let before = unsafe { queued.download(&mut group) }.and_then(|host| host.state()).expect("done");
            let n = queued.elements() as u64;
            let at = memory.put(&work::gradient(n as usize, 0, 1));
            let slices =
                [DeviceSlice::new(at, 4 * n - 4), DeviceSlice::new(at + 2, 4 * n), DeviceSlice::new(12, 4 * n)];
            for slice in slices {
                // SAFETY: it is refused before anything is queued.
                let error = unsafe { queued.exchange(&mut group, slice) }.expect_err("no gradient");
                assert!(matches!(error, Error::Length { .. } | Error::Memory { what: "gradient", .. }), "{error}");
            }
            let mut other = Echo { driver: Arc::new(Capture::new(Machine::new((8, 0), 1))), ranks: 3, stream: STREAM };
            // SAFETY: as above.
            let error = unsafe { queued.exchange(&mut other, DeviceSlice::new(at, 4 * n)) }.expect_err("3 ranks");
            let expected = ExchangeError::Group { of: 0, of_ranks: 1, rank: 0, ranks: 3 };
            assert!(matches!(&error, Error::Exchange(found) if *found == expected), "{error}");
            // SAFETY: as above.
            let after = unsafe { queued.download(&mut group) }.and_then(|host| host.state()).expect("idle");
            assert!(after == before);
            step(&mut queued, &mut group, &memory, 1).expect("it goes on");
            // SAFETY: as above.
            unsafe { queued.wait(&mut group) }.expect("done");
        }
        // A group that failed between steps, with nothing queued.
        let mut queued = of("qsgd:bits=4,bucket=64+ef").queued(&cuda, &mut group).expect("valid");
        let own = Transfer { peer: 0, send: 0, receive: 0, bytes: 4 };
        // SAFETY: it is refused.
        unsafe { group.queue_transfers(&[own], memory.stream) }.expect_err("to itself");
        let error = step(&mut queued, &mut group, &memory, 0).expect_err("the group has failed");
        assert!(matches!(error, Error::Collective(CollectiveError::Rank { .. })), "{error}");
        // SAFETY: as above.
        unsafe { queued.download(&mut group) }.expect("the state is as it was");
    });
}

fn expect_broken(queued: &mut QueuedCompressor, group: &mut Nccl, memory: &Memory) {
    for _ in 0..2 {
        let error = step(queued, group, memory, 9).expect_err("broken off");
        assert!(matches!(error, Error::Exchange(ExchangeError::BrokenOff)), "{error}");
    }
    // SAFETY: the group is of the same context.
    unsafe { queued.download(group) }.expect_err("broken off");
}

#[test]
fn a_step_that_was_queued_and_fails_is_broken_off() {
    // Two operations make ready, and a step has six.
    for kind in [Fault::Fail, Fault::Refuse] {
        for operation in 9..15 {
            let id = id();
            fault(&id, 0, operation, kind, 2);
            on(id, 1, LONG, move |mut group| {
                let (memory, cuda) = place();
                let mut queued = mixed().queued(&cuda, &mut group).expect("valid");
                let error = (0..20).find_map(|at| step(&mut queued, &mut group, &memory, at).err());
                let error = error.expect("20 steps without the operation");
                assert!(matches!(&error, Error::Collective(error) if has_code(error, 2)), "{error}");
                expect_broken(&mut queued, &mut group, &memory);
            });
        }
    }
}

#[test]
fn a_rank_that_ends_breaks_the_step_of_the_others_off() {
    let id = id();
    // Two operations make ready, and a step has a gather of what was found, a sum and a gather.
    fault(&id, 1, 5, Fault::Lost, 0);
    on(id, 2, LONG, |mut group| {
        let (memory, cuda) = place();
        let mut queued = of("qsgd:bits=4,bucket=64+ef").queued(&cuda, &mut group).expect("valid");
        step(&mut queued, &mut group, &memory, 0).expect("a good step");
        // SAFETY: the group is of the same context.
        unsafe { queued.wait(&mut group) }.expect("done");
        if Collective::rank(&group) == 1 {
            // On another stream, since nothing that is on the compressor's ends.
            let other = Memory::new();
            let at = other.put(&[0.0; 2]);
            // SAFETY: the memory is there until the process ends.
            unsafe { group.queue_all_reduce_sum(at, at + 4, 1, other.stream) }.expect("queued");
            return;
        }
        let error = (1..20).find_map(|at| step(&mut queued, &mut group, &memory, at).err()).expect("rank 1 has ended");
        assert!(matches!(&error, Error::Collective(error) if has_code(error, 6)), "{error}");
        expect_broken(&mut queued, &mut group, &memory);
    });
}

/// A launch may wait until its stream has space, and so for other ranks. The stand-in's waits for all that is queued.
#[test]
fn a_launch_that_waits_for_another_rank_lets_that_rank_compile() {
    let driver = driver();
    let (sender, receiver) = std::sync::mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    on(id(), 2, LONG, move |mut group| {
        let memory = Memory::new();
        let at = memory.put(&[1.0; 4]);
        let cuda = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
        // SAFETY: the stream is there until the process ends.
        let cuda = unsafe { cuda.on_stream(memory.stream) }.expect("a stream of its context");
        let sum = |group: &mut Nccl| {
            // SAFETY: the memory is there until the process ends.
            unsafe { group.queue_all_reduce_sum(at, at + 8, 2, memory.stream) }.expect("queued");
        };
        let rounded = || {
            let plan = Qsgd::bits(4).plan(2, Dtype::F32).expect("valid");
            let pieces = EncodeBuffers {
                gradient: DeviceSlice::new(at + 8, 8),
                residual: None,
                body: DeviceSlice::new(memory.put(&[0.0; 128]), plan.header().body_bytes()),
                workspace: None,
            };
            // SAFETY: as above.
            unsafe { cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, pieces) }.expect("queued");
        };
        if Collective::rank(&group) == 0 {
            cuda.warm_up(&[CodecId::Qsgd.into()]).expect("it compiles");
            sum(&mut group);
            sender.send(()).expect("the other rank waits");
            rounded();
        } else {
            receiver.lock().expect("no panic").recv_timeout(LONG / 2).expect("the other rank begins");
            // It may not be in the launch yet; then nothing is shown.
            std::thread::sleep(std::time::Duration::from_millis(200));
            cuda.warm_up(&[CodecId::Qsgd.into()]).expect("it compiles");
            rounded();
            sum(&mut group);
        }
        group.finish().expect("all ranks end");
    });
}
