//! Memory and copies.

use std::alloc::Layout;
use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use gradwire::backend::cuda::driver::{DevicePtr, Driver, DriverError, MemoryAt, StreamId};

use crate::device::known;
use crate::driver;
use crate::state::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, code, current, handles, machine, put};

fn done(result: Result<(), DriverError>) -> Result<(), i32> {
    result.map_err(|error| code(&error))
}

/// # Safety
/// `src` holds that many bytes.
unsafe fn copy_in(dst: u64, src: *const c_void, bytes: usize) -> Result<(), i32> {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller's source holds that many bytes; the machine checks the device's range, and copies at once.
    done(unsafe { machine().copy_in(DevicePtr(dst), std::slice::from_raw_parts(src.cast(), bytes), StreamId::OWN) })
}

/// # Safety
/// `dst` has room for that many bytes.
unsafe fn copy_out(dst: *mut c_void, src: u64, bytes: usize) -> Result<(), i32> {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    let mut read = vec![0; bytes];
    // SAFETY: the machine checks the device's range, and copies at once.
    done(unsafe { machine().copy_out(&mut read, DevicePtr(src), StreamId::OWN) })?;
    // SAFETY: the caller's destination has room for that many bytes.
    unsafe { dst.cast::<u8>().copy_from_nonoverlapping(read.as_ptr(), bytes) };
    Ok(())
}

fn copy_within(dst: u64, src: u64, bytes: usize) -> Result<(), i32> {
    current()?;
    // SAFETY: the machine checks both ranges, and copies at once.
    done(unsafe { machine().copy_within(DevicePtr(dst), DevicePtr(src), bytes as u64, StreamId::OWN) })
}

/// Fills with a pattern, over and over.
fn fill(dst: u64, pattern: &[u8], times: usize) -> Result<(), i32> {
    let bytes = pattern.repeat(times);
    // SAFETY: the slice holds as many bytes.
    unsafe { copy_in(dst, bytes.as_ptr().cast(), bytes.len()) }
}

fn allocate(bytes: usize) -> Result<u64, i32> {
    current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    machine().alloc(bytes as u64).map(|at| at.0).map_err(|error| code(&error))
}

fn free(address: u64) -> Result<(), i32> {
    current()?;
    // SAFETY: the machine ignores what it did not give out, and nothing is queued.
    unsafe { machine().free(DevicePtr(address)) };
    Ok(())
}

fn host_layout(bytes: usize) -> Result<Layout, i32> {
    Layout::from_size_align(bytes, 4096).ok().filter(|_| bytes > 0).ok_or(INVALID_VALUE)
}

driver! {
    /// Ordinary memory, which the device reaches like any other.
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        current()?;
        let room = host_layout(bytes)?;
        // SAFETY: the layout has bytes.
        let at = unsafe { std::alloc::alloc(room) };
        if at.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        handles().host.insert(at.addr(), bytes);
        // SAFETY: as `cuda.h` has it.
        unsafe { put(address, at.cast()) }
    }
    /// As above.
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) {
        // SAFETY: as `cuda.h` has it.
        match unsafe { cuMemHostAlloc(address, bytes, 0) } { 0 => Ok(()), code => Err(code) }
    }
    /// Gives it back. What was not given out is refused.
    fn cuMemFreeHost(address: *mut c_void) {
        current()?;
        let bytes = handles().host.remove(&address.addr()).ok_or(INVALID_VALUE)?;
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(address.cast(), host_layout(bytes)?) };
        Ok(())
    }
    /// What is free is as much as there is.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(free, 8 << 30).and_then(|()| put(total, 8 << 30)) }
    }
    /// Memory that nothing has written.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        // SAFETY: as `cuda.h` has it.
        unsafe { put(address, allocate(bytes)?) }
    }
    /// As above; streams are done when a call returns.
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) {
        known(stream)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { put(address, allocate(bytes)?) }
    }
    /// Gives it back.
    fn cuMemFree_v2(address: u64) { free(address) }
    /// Gives it back.
    fn cuMemFreeAsync(address: u64, stream: usize) { known(stream).and_then(|()| free(address)) }
    /// To the device.
    fn cuMemcpyHtoD_v2(dst: u64, src: *const c_void, bytes: usize) {
        // SAFETY: as `cuda.h` has it.
        unsafe { copy_in(dst, src, bytes) }
    }
    /// To the device.
    fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, bytes: usize, stream: usize) {
        known(stream)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { copy_in(dst, src, bytes) }
    }
    /// From the device.
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: u64, bytes: usize) {
        // SAFETY: as `cuda.h` has it.
        unsafe { copy_out(dst, src, bytes) }
    }
    /// From the device.
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: usize, stream: usize) {
        known(stream)?;
        // SAFETY: as `cuda.h` has it.
        unsafe { copy_out(dst, src, bytes) }
    }
    /// Within the device.
    fn cuMemcpyDtoD_v2(dst: u64, src: u64, bytes: usize) { copy_within(dst, src, bytes) }
    /// Within the device.
    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: usize) {
        known(stream).and_then(|()| copy_within(dst, src, bytes))
    }
    /// Fills with a byte.
    fn cuMemsetD8_v2(dst: u64, value: c_uchar, times: usize) { fill(dst, &value.to_ne_bytes(), times) }
    /// Fills with two bytes.
    fn cuMemsetD16_v2(dst: u64, value: c_ushort, times: usize) { fill(dst, &value.to_ne_bytes(), times) }
    /// Fills with a word.
    fn cuMemsetD32_v2(dst: u64, value: c_uint, times: usize) { fill(dst, &value.to_ne_bytes(), times) }
    /// Fills with a byte.
    fn cuMemsetD8Async(dst: u64, value: c_uchar, times: usize, stream: usize) {
        known(stream).and_then(|()| fill(dst, &value.to_ne_bytes(), times))
    }
    /// Fills with a word.
    fn cuMemsetD32Async(dst: u64, value: c_uint, times: usize, stream: usize) {
        known(stream).and_then(|()| fill(dst, &value.to_ne_bytes(), times))
    }
    /// What is known of an address: zeros for what is unknown, as the driver has it.
    fn cuPointerGetAttributes(count: c_uint, which: *const c_uint, places: *mut *mut c_void, address: u64) {
        current()?;
        let left = match machine().memory_at(DevicePtr(address)) {
            Ok(MemoryAt::Device { left: Some(left) }) => Some(left),
            _ => None,
        };
        for index in 0..count as usize {
            // SAFETY: as `cuda.h` has it, there are as many of each.
            let (attribute, place) = unsafe { (*which.add(index), *places.add(index)) };
            // SAFETY: as above, each place is one for its attribute.
            unsafe {
                match attribute {
                    2 => put(place.cast::<c_uint>(), if left.is_some() { 2 } else { 0 })?,
                    8 => put(place.cast::<bool>(), false)?,
                    9 => put(place.cast::<i32>(), if left.is_some() { 0 } else { -1 })?,
                    11 => put(place.cast::<u64>(), if left.is_some() { address } else { 0 })?,
                    12 => put(place.cast::<usize>(), left.unwrap_or(0) as usize)?,
                    _ => return Err(NOT_SUPPORTED),
                }
            }
        }
        Ok(())
    }
}
