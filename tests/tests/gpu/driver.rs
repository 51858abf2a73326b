//! The table of the driver's functions, against whatever `libcuda` is found: a GPU's, or the stand-in of
//! `cargo xtask embed`. Without one there is nothing to call, and the test says so.

use gradwire::backend::cuda::driver::{DevicePtr, Driver, MemoryAt, StreamId};
use gradwire::backend::cuda::{Cuda, DeviceSlice, RealDriver};
use gradwire::embed::{Encode, EncodeBuffers};
use gradwire::{BackendKind, Codec, Device, Dtype, Error, Qsgd, Seed};
use gradwire_tests::{cases, require};

fn driver() -> Option<RealDriver> {
    match require::open(BackendKind::Cuda).map_err(|e| e.to_string()) {
        Ok(_) => Some(RealDriver::open(0).expect("it opened a moment ago")),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

#[test]
fn memory_is_known_by_its_address_and_streams_by_their_context() {
    let Some(driver) = driver() else { return };
    let memory = driver.alloc(1024).expect("there is memory");
    let at = |offset: u64| driver.memory_at(DevicePtr(memory.0 + offset)).expect("an answer");
    assert_eq!(at(0), MemoryAt::Device { left: Some(1024) });
    assert_eq!(at(1000), MemoryAt::Device { left: Some(24) });
    let on_host = [0u8; 16];
    let found = driver.memory_at(DevicePtr(on_host.as_ptr() as u64)).expect("an answer");
    assert!(matches!(found, MemoryAt::Unknown | MemoryAt::Host), "{found:?}");
    assert_eq!(driver.memory_at(DevicePtr::NULL).expect("an answer"), MemoryAt::Unknown);
    assert!(driver.is_own_stream(StreamId::OWN).expect("an answer"));
    // SAFETY: null is the legacy default stream, which is always there.
    let null = unsafe { StreamId::from_raw(std::ptr::null_mut()) };
    assert!(driver.is_own_stream(null).expect("an answer"));
    // SAFETY: nothing uses it.
    unsafe { driver.free(memory) };
}

#[test]
fn page_locked_memory_is_copied_from_and_to() {
    let Some(driver) = driver() else { return };
    let (memory, at) =
        (driver.alloc(4096).expect("there is memory"), driver.alloc_host(4096).expect("there is memory"));
    // SAFETY: there are as many bytes, which nothing else uses and no copy before it was waited for.
    let bytes = unsafe {
        at.write_bytes(7, 4096);
        std::slice::from_raw_parts_mut(at, 4096)
    };
    let mut read = vec![0; 4096];
    // SAFETY: all ranges lie in the memory, and each call is waited for.
    unsafe {
        driver.copy_in(memory, bytes, StreamId::OWN).expect("it fits");
        driver.copy_out(&mut read, memory, StreamId::OWN).expect("it fits");
        assert_eq!(read, [7; 4096]);
        driver.fill_zero(memory, 4096, StreamId::OWN).expect("it fits");
        driver.copy_out(bytes, memory, StreamId::OWN).expect("it fits");
        assert!(bytes.iter().all(|byte| *byte == 0));
        driver.free_host(at, 4096);
        driver.free(memory);
    }
    assert!(driver.alloc_host(0).expect("no bytes").is_null());
    // SAFETY: null is no memory.
    unsafe { driver.free_host(std::ptr::null_mut(), 0) };
}

#[test]
fn a_stream_waits_for_an_event_of_another_one() {
    let Some(driver) = driver() else { return };
    let event = driver.event().expect("an event");
    // SAFETY: null is the legacy default stream, which is always there; the event is freed once.
    unsafe {
        let null = StreamId::from_raw(std::ptr::null_mut());
        driver.record(event, StreamId::OWN).expect("it is there");
        driver.wait_for(event, null).expect("it is there");
        driver.synchronize(null).expect("nothing fails");
        driver.free_event(event);
    }
}

#[test]
fn copies_and_fills_are_of_exactly_the_bytes_that_were_asked_for() {
    let Some(driver) = driver() else { return };
    let bytes: Vec<u8> = (0..100).collect();
    let memory = driver.alloc(100).expect("there is memory");
    let (from, own) = (|offset| DevicePtr(memory.0 + offset), StreamId::OWN);
    let mut read = vec![0; 100];
    // SAFETY: all ranges lie in the memory, and each call is waited for.
    unsafe {
        driver.copy_in(from(0), &bytes, own).expect("it fits");
        // From an odd address on, so that whole words and single bytes are filled.
        driver.fill_zero(from(3), 10, own).expect("it fits");
        driver.copy_within(from(50), from(20), 7, own).expect("apart");
        driver.copy_out(&mut read, from(0), own).expect("it fits");
    }
    let mut expected = bytes;
    expected[3..13].fill(0);
    expected.copy_within(20..27, 50);
    assert_eq!(read, expected);
    // SAFETY: nothing uses it.
    unsafe { driver.free(memory) };
}

#[test]
fn a_context_of_the_callers_is_worked_in_and_host_memory_is_refused() {
    let Some(driver) = driver() else { return };
    let (context, n) = (driver.raw_context(), 5000);
    // SAFETY: the context is the driver's, which outlives this; null is its legacy default stream.
    let cuda = unsafe { Cuda::from_raw(context, std::ptr::null_mut()) }.expect("the driver's own context");
    // SAFETY: as above.
    let again = unsafe { Cuda::from_raw(context, std::ptr::null_mut()) }.expect("the same");
    assert_eq!(cuda.name(), again.name());
    let x = cases::normal(n, 1);
    let plan = Qsgd::bits(4).plan(n, Dtype::F32).expect("valid");
    let body_bytes = plan.header().body_bytes();
    let [gradient, body] = [4 * n as u64, body_bytes].map(|b| DeviceSlice::new(driver.alloc(b).expect("room").0, b));
    let host = DeviceSlice::new(x.as_ptr() as u64, 4 * n as u64);
    let mut bytes = vec![0; body_bytes as usize];
    let device = |s: DeviceSlice| DevicePtr(s.address());
    // SAFETY: the memory lives until it was waited for, below.
    unsafe {
        driver.copy_in(device(gradient), bytemuck::cast_slice(&x), StreamId::OWN).expect("it fits");
        driver.fill_zero(device(body), body_bytes, StreamId::OWN).expect("it fits");
        driver.synchronize(StreamId::OWN).expect("done");
        let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
        cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, buffers).expect("queued");
        let error = cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, EncodeBuffers { gradient: host, ..buffers });
        assert!(matches!(error, Err(Error::Memory { what: "gradient", .. })), "{error:?}");
        driver.synchronize(StreamId::from_raw(std::ptr::null_mut())).expect("done");
        driver.copy_out(&mut bytes, device(body), StreamId::OWN).expect("it fits");
    }
    let expected = Device::cpu().encode(&Qsgd::bits(4), &x, Seed::new(1)).expect("the CPU encodes");
    assert_eq!(plan.header().seal(&bytes).expect("of that length"), expected);
    drop((cuda, again));
    for slice in [gradient, body] {
        // SAFETY: nothing uses it any more.
        unsafe { driver.free(device(slice)) };
    }
}
