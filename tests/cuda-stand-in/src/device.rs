//! Devices, contexts, streams and events.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::driver;
use crate::state::{
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED, PRIMARY, capability, contexts, current,
    handles, put,
};

/// Whether streams are said to be captured.
static CAPTURING: AtomicBool = AtomicBool::new(false);

/// Has streams said to be captured, or no longer. Work is done as before.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gradwire_stand_in_capture(capturing: bool) {
    CAPTURING.store(capturing, SeqCst);
}

const NAME: &CStr = c"PTX machine (stand-in for a CUDA device, no GPU)";
/// What `cuMemGetInfo` and `cuDeviceTotalMem` tell.
const MEMORY: usize = 8 << 30;

fn ordinal(device: c_int) -> Result<(), i32> {
    if device == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

driver! {
    /// Nothing to do.
    fn cuInit(_flags: c_uint) { Ok(()) }
    /// CUDA 13.0: what the machine reads.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(version, 13_000) }
    }
    /// The code in words is for people; programs look at the number.
    fn cuGetErrorName(_code: i32, name: *mut *const c_char) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(name, c"CUDA_ERROR_OF_STAND_IN".as_ptr()) }
    }
    /// As above.
    fn cuGetErrorString(_code: i32, text: *mut *const c_char) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(text, c"see standard error".as_ptr()) }
    }
    /// One.
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(count, 1) }
    }
    /// The one.
    fn cuDeviceGet(device: *mut c_int, number: c_int) {
        ordinal(number)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { put(device, 0) }
    }
    /// What it is.
    fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) {
        ordinal(device)?;
        let bytes = NAME.to_bytes_with_nul();
        if name.is_null() || (room as usize) < bytes.len() {
            return Err(crate::state::INVALID_VALUE);
        }
        // SAFETY: there is room for all of it.
        unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }
    /// Of the attributes only the capability and the multiprocessors are known; the rest are zero.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        ordinal(device)?;
        let (major, minor) = capability();
        let known = match attribute {
            16 => 1,
            75 => major,
            76 => minor,
            _ => 0,
        };
        // SAFETY: as `cuda.h` has it.
        unsafe { put(value, known as c_int) }
    }
    /// See [`MEMORY`].
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        ordinal(device)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { put(bytes, MEMORY) }
    }
    /// The primary context is always there.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        ordinal(device)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { put(context, PRIMARY) }
    }
    /// As above.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { ordinal(device) }
    /// The flags say how a thread waits, and none does.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) { ordinal(device) }
    /// A context of its own.
    fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, device: c_int) {
        ordinal(device)?;
        let made = handles().number();
        contexts(|stack| stack.push(made));
        // SAFETY: as `cuda.h` has it.
        unsafe { put(context, made) }
    }
    /// Takes it from the thread's stack, if it is there.
    fn cuCtxDestroy_v2(context: usize) {
        contexts(|stack| stack.retain(|c| *c != context));
        Ok(())
    }
    /// Onto the thread's stack.
    fn cuCtxPushCurrent_v2(context: usize) {
        if context == 0 {
            return Err(INVALID_CONTEXT);
        }
        contexts(|stack| stack.push(context));
        Ok(())
    }
    /// From the thread's stack.
    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let top = contexts(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: as `cuda.h` has it.
        unsafe { put(context, top) }
    }
    /// In place of the top of the thread's stack.
    fn cuCtxSetCurrent(context: usize) {
        contexts(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }
    /// The top of the thread's stack; null where there is none.
    fn cuCtxGetCurrent(context: *mut usize) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(context, contexts(|stack| stack.last().copied().unwrap_or(0))) }
    }
    /// The one device.
    fn cuCtxGetDevice(device: *mut c_int) {
        current()?;
        // SAFETY: as `cuda.h` has it.
        unsafe { put(device, 0) }
    }
    /// As the driver's version.
    fn cuCtxGetApiVersion(_context: usize, version: *mut c_uint) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(version, 13_000) }
    }
    /// All work is done.
    fn cuCtxSynchronize() { current().map(|_| ()) }
    /// A stream of the current context.
    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) {
        let context = current()?;
        let mut handles = handles();
        let number = handles.number();
        handles.streams.insert(number, context);
        // SAFETY: as `cuda.h` has it.
        unsafe { put(stream, number) }
    }
    /// As above.
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) {
        // SAFETY: as `cuda.h` has it.
        match unsafe { cuStreamCreate(stream, flags) } { 0 => Ok(()), code => Err(code) }
    }
    /// Forgets it.
    fn cuStreamDestroy_v2(stream: usize) {
        handles().streams.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    /// All work is done.
    fn cuStreamSynchronize(stream: usize) { known(stream) }
    /// All work is done but what another library queued.
    fn cuStreamQuery(stream: usize) {
        exists(stream)?;
        if crate::held::is_held(stream) { Err(NOT_READY) } else { Ok(()) }
    }
    /// All work is done.
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) { is_event(event).and_then(|()| known(stream)) }
    /// The context that it was made in; the current one for the default streams.
    fn cuStreamGetCtx(stream: usize, context: *mut usize) {
        let found = if stream <= 2 { current()? } else { *handles().streams.get(&stream).ok_or(INVALID_HANDLE)? };
        // SAFETY: as `cuda.h` has it.
        unsafe { put(context, found) }
    }
    /// Nothing is captured, whatever a test has this say.
    fn cuStreamIsCapturing(_stream: usize, status: *mut c_uint) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(status, u32::from(CAPTURING.load(SeqCst))) }
    }
    /// No thread's mode makes a difference where nothing is captured.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(mode, 0) }
    }
    /// A number.
    fn cuEventCreate(event: *mut usize, _flags: c_uint) {
        current()?;
        let mut handles = handles();
        let number = handles.number();
        handles.events.insert(number);
        // SAFETY: as `cuda.h` has it.
        unsafe { put(event, number) }
    }
    /// Nothing to record.
    fn cuEventRecord(event: usize, stream: usize) { is_event(event).and_then(|()| known(stream)) }
    /// All work is done.
    fn cuEventSynchronize(event: usize) { is_event(event) }
    /// All work is done.
    fn cuEventQuery(event: usize) { is_event(event) }
    /// The machine counts, and does not time.
    fn cuEventElapsedTime(_milliseconds: *mut f32, _from: usize, _to: usize) { Err(NOT_SUPPORTED) }
    /// Forgets it.
    fn cuEventDestroy_v2(event: usize) {
        if handles().events.remove(&event) { Ok(()) } else { Err(INVALID_HANDLE) }
    }
}

/// Whether a stream is there: one that was made, or one of the three that always are. Waits until what another library
/// queued on it is done.
pub(crate) fn known(stream: usize) -> Result<(), i32> {
    exists(stream)?;
    crate::held::wait(stream);
    Ok(())
}

/// Whether an event is there.
fn is_event(event: usize) -> Result<(), i32> {
    if handles().events.contains(&event) { Ok(()) } else { Err(INVALID_HANDLE) }
}

fn exists(stream: usize) -> Result<(), i32> {
    if stream <= 2 || handles().streams.contains_key(&stream) { Ok(()) } else { Err(INVALID_HANDLE) }
}
