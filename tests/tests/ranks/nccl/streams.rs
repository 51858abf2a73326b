//! Exchanges beside what the caller computes, on two streams whose work is done as late as their order allows.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, EventId, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};
use gradwire::backend::cuda::{Cuda, DeviceSlice};
use gradwire::{Compressor, Device, Error};
use gradwire_collectives::Threads;
use gradwire_ptx_machine::Machine;

use super::queued::Echo;
use super::work;

const COMPUTE: u64 = 0xabc0;
const EXCHANGES: u64 = 0xdef0;

/// The PTX machine, on which a stream does nothing before it is waited for: then it does what is queued there, and of
/// another stream what an event asks for. What lacks an event runs in the wrong order.
struct Lazy {
    machine: Machine,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: HashMap<u64, Stream>,
    /// Of each event, the stream and how much work was queued there.
    events: HashMap<u64, (u64, u64)>,
    /// Waits so far, and the one that is left out.
    waits: u64,
    left_out: Option<u64>,
}

#[derive(Default)]
struct Stream {
    queued: u64,
    done: u64,
    work: VecDeque<Work>,
}

type Call = dyn FnOnce(&Machine) -> Result<(), DriverError> + Send;

enum Work {
    Call(Box<Call>),
    /// So much of another stream is to be done before.
    Behind(u64, u64),
}

impl Lazy {
    fn new() -> Self {
        Self { machine: Machine::new((8, 0), 1), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn queue(&self, stream: StreamId, work: Work) -> Result<(), DriverError> {
        let mut state = self.state();
        let stream = state.streams.entry(stream.to_u64()).or_default();
        stream.work.push_back(work);
        stream.queued += 1;
        Ok(())
    }

    fn call(
        &self,
        stream: StreamId,
        call: impl FnOnce(&Machine) -> Result<(), DriverError> + Send + 'static,
    ) -> Result<(), DriverError> {
        self.queue(stream, Work::Call(Box::new(call)))
    }

    /// Does the work of a stream until so much of it is done.
    fn run(&self, stream: u64, until: u64) -> Result<(), DriverError> {
        loop {
            let next = {
                let mut state = self.state();
                let Some(stream) = state.streams.get_mut(&stream).filter(|stream| stream.done < until) else {
                    return Ok(());
                };
                stream.done += 1;
                stream.work.pop_front().expect("it was queued")
            };
            match next {
                Work::Call(call) => call(&self.machine)?,
                Work::Behind(other, much) => self.run(other, much)?,
            }
        }
    }

    /// Work that is queued on a stream, and not done.
    fn left(&self, stream: u64) -> u64 {
        self.state().streams.get(&stream).map_or(0, |stream| stream.queued - stream.done)
    }
}

impl Driver for Lazy {
    fn info(&self) -> &DeviceInfo {
        self.machine.info()
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        self.machine.load_module(ptx)
    }

    fn unload_module(&self, module: ModuleId) {
        self.machine.unload_module(module);
    }

    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        self.machine.function(module, name)
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        self.machine.alloc(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.free(ptr) }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError> {
        let bytes = src.to_vec();
        // SAFETY: the machine checks the range, and copies at once.
        self.call(stream, move |machine| unsafe { machine.copy_in(dst, &bytes, StreamId::OWN) })
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError> {
        self.synchronize(stream)?;
        // SAFETY: as above.
        unsafe { self.machine.copy_out(dst, src, StreamId::OWN) }
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        self.call(stream, move |machine| unsafe { machine.copy_within(dst, src, bytes, StreamId::OWN) })
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: as above.
        self.call(stream, move |machine| unsafe { machine.fill_zero(dst, bytes, StreamId::OWN) })
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let args: Vec<Result<DevicePtr, Vec<u8>>> = args
            .iter()
            .map(|arg| match arg {
                KernelArg::Bytes(bytes) => Err(bytes.to_vec()),
                KernelArg::Pointer(at) => Ok(*at),
            })
            .collect();
        self.call(stream, move |machine| {
            let args = args.iter().map(|arg| match arg {
                Err(bytes) => KernelArg::Bytes(bytes),
                Ok(at) => KernelArg::Pointer(*at),
            });
            // SAFETY: the machine checks arguments and ranges, and runs at once.
            unsafe { machine.launch(function, grid, block, &args.collect::<Vec<_>>(), StreamId::OWN) }
        })
    }

    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        self.machine.memory_at(ptr)
    }

    fn is_own_stream(&self, _stream: StreamId) -> Result<bool, DriverError> {
        Ok(true)
    }

    fn event(&self) -> Result<EventId, DriverError> {
        let mut state = self.state();
        let number = state.events.len() as u64 + 1;
        state.events.insert(number, (0, 0));
        Ok(EventId(number))
    }

    unsafe fn record(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let mut state = self.state();
        let queued = state.streams.get(&stream.to_u64()).map_or(0, |stream| stream.queued);
        state.events.insert(event.0, (stream.to_u64(), queued));
        Ok(())
    }

    unsafe fn wait_for(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let (other, much) = {
            let mut state = self.state();
            state.waits += 1;
            if state.left_out == Some(state.waits) {
                return Ok(());
            }
            state.events[&event.0]
        };
        self.queue(stream, Work::Behind(other, much))
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError> {
        let queued = self.state().streams.get(&stream.to_u64()).map_or(0, |stream| stream.queued);
        self.run(stream.to_u64(), queued)
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.machine.elapsed(stream, work)
    }
}

const STEPS: u64 = 3;

/// Which stream is waited for before anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Compute,
    Exchanges,
}

/// What an optimizer on the caller's stream sees in each step, with one wait left out.
fn steps(compressor: &Compressor, first: First, left_out: Option<u64>) -> Vec<Vec<u32>> {
    let driver = Arc::new(Lazy::new());
    let cuda = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
    // SAFETY: the driver has any stream.
    let of =
        |stream: u64| unsafe { (cuda.on_stream(stream as *mut c_void), StreamId::from_raw(stream as *mut c_void)) };
    let [(compute, on_compute), (exchanges, on_exchanges)] = [COMPUTE, EXCHANGES].map(of);
    let (compute, mut threads) = (compute.expect("its own"), Threads::group(1).expect("one").remove(0));
    let mut queued = compressor.queued(&exchanges.expect("its own"), &mut threads).expect("valid");
    driver.synchronize(on_exchanges).expect("done");
    let n = queued.elements();
    let bytes = 4 * n as u64;
    let [gradient, seen] = [driver.alloc(bytes), driver.alloc(bytes)].map(|at| at.expect("there is memory"));
    // What the first step finds where it comes too early.
    // SAFETY: the machine checks ranges itself, here and below.
    unsafe { driver.fill_zero(gradient, bytes, on_compute) }.expect("queued");
    driver.synchronize(on_compute).expect("done");
    driver.state().left_out = left_out;
    let mut group = Echo { driver: driver.clone(), ranks: 1, stream: EXCHANGES };
    let step = |step| {
        let given = work::gradient(n, 0, step);
        // SAFETY: as above.
        unsafe { driver.copy_in(gradient, bytemuck::cast_slice(&given), on_compute) }.expect("queued");
        // SAFETY: as above; nothing uses the gradient before the join.
        unsafe { queued.start(&mut group, DeviceSlice::new(gradient.0, bytes), &compute) }.expect("queued");
        match first {
            First::Compute => {
                driver.synchronize(on_compute).expect("done");
                assert!(driver.left(EXCHANGES) > 2, "the caller's stream waits for an exchange that it did not join");
            }
            First::Exchanges => driver.synchronize(on_exchanges).expect("done"),
        }
        queued.join(&compute).expect("queued");
        let mut values = vec![0u32; n];
        // SAFETY: as above.
        unsafe { driver.copy_within(seen, gradient, bytes, on_compute) }.expect("queued");
        // SAFETY: as above.
        unsafe { driver.copy_out(bytemuck::cast_slice_mut(&mut values), seen, on_compute) }.expect("done");
        values
    };
    let all = (0..STEPS).map(step).collect();
    // SAFETY: as above.
    unsafe { queued.wait(&mut group) }.expect("done");
    all
}

fn compressor(text: &str) -> Compressor {
    Compressor::new(text, [vec![64, 20], vec![64], vec![1, 700]], 11).expect(text)
}

#[test]
fn exchanges_run_beside_the_caller_s_work_and_in_the_order_that_events_give() {
    for text in ["none", "qsgd:bits=4,bucket=64+ef", "topk:0.02+momentum=0.9"] {
        let (mut host, mut group) = (compressor(text), Threads::group(1).expect("one").remove(0));
        let expected = (0..STEPS).map(|step| {
            let mut gradient = work::gradient(host.elements(), 0, step);
            host.exchange(&Device::cpu(), &mut group, &mut gradient).expect(text);
            gradient.iter().map(|value| value.to_bits()).collect()
        });
        let expected: Vec<Vec<u32>> = expected.collect();
        for first in [First::Compute, First::Exchanges] {
            assert!(steps(&compressor(text), first, None) == expected, "{text}: {first:?}");
        }
        // Of each step, the exchange's wait for the gradient, and the caller's for the exchange.
        for left_out in 1..=2 * STEPS {
            let [compute, exchanges] = [First::Compute, First::Exchanges]
                .map(|first| steps(&compressor(text), first, Some(left_out)) == expected);
            let found = if left_out % 2 == 1 { !exchanges } else { !compute };
            // Without compression one rank's mean is its gradient, whoever comes first.
            assert!(found || text == "none", "{text}: nobody missed wait {left_out}");
        }
    }
}

#[test]
fn a_stream_of_another_device_is_refused_before_anything_is_queued() {
    let [mine, other] = [(); 2].map(|()| {
        let driver = Arc::new(Lazy::new());
        (Cuda::with_driver(driver.clone(), None).expect("an artifact that fits"), driver)
    });
    // SAFETY: the driver has any stream.
    let exchanges = unsafe { mine.0.on_stream(EXCHANGES as *mut c_void) }.expect("its own");
    let mut threads = Threads::group(1).expect("one").remove(0);
    let mut queued = compressor("qsgd:bits=4,bucket=64+ef").queued(&exchanges, &mut threads).expect("valid");
    let bytes = 4 * queued.elements() as u64;
    let at = mine.1.alloc(bytes).expect("there is memory");
    let (mut group, left) = (Echo { driver: mine.1.clone(), ranks: 1, stream: EXCHANGES }, mine.1.left(EXCHANGES));
    // SAFETY: it is refused.
    let error = unsafe { queued.start(&mut group, DeviceSlice::new(at.0, bytes), &other.0) }.expect_err("another");
    assert!(matches!(error, Error::Stream { .. }), "{error}");
    assert_eq!((queued.steps(), mine.1.left(EXCHANGES)), (0, left));
    queued.join(&other.0).expect("nothing was started");
}
