//! A CUDA driver whose launches run the kernels' Rust source on threads of this machine.
//!
//! It stands behind the seam that the real driver stands behind, so that launch shapes, parameter bytes and passes are
//! tested as they ship. What it does not test is what the compiler made of the source: the PTX.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};
use gradwire::plan::Kernel;

/// Memory of the emulated device, in pieces of the alignment that `cuMemAlloc` gives at the least.
#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

/// See the module.
pub struct Emulated {
    info: DeviceInfo,
    memory: Mutex<HashMap<u64, Vec<Line>>>,
}

impl Default for Emulated {
    fn default() -> Self {
        let info = DeviceInfo {
            name: "kernels' source on threads".to_owned(),
            compute_capability: (7, 0),
            driver_version: (0, 0),
            total_memory: 0,
            multiprocessors: 1,
        };
        Self { info, memory: Mutex::default() }
    }
}

impl Emulated {
    fn memory(&self) -> MutexGuard<'_, HashMap<u64, Vec<Line>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Emulated {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load_module(&self, _ptx: &str) -> Result<ModuleId, DriverError> {
        Ok(ModuleId(1))
    }

    fn unload_module(&self, _module: ModuleId) {}

    fn function(&self, _module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        match Kernel::ALL.iter().position(|k| k.name() == name) {
            Some(index) => Ok(FunctionId(index as u64)),
            None => Err(DriverError::MissingFunction { name: name.to_owned() }),
        }
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        // Not zeros: what a kernel reads without having written it should show.
        let lines = vec![Line([0xa5; 256]); bytes.div_ceil(256) as usize];
        let address = lines.as_ptr() as u64;
        self.memory().insert(address, lines);
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        self.memory().remove(&ptr.0);
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], _stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: the caller's promise; device memory is this process's.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst.0 as *mut u8, src.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, _stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(src.0 as *const u8, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { std::ptr::copy(src.0 as *const u8, dst.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, _stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(dst.0 as *mut u8, 0, bytes as usize) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        _block: u32,
        args: &[KernelArg<'_>],
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        let name = Kernel::ALL[function.0 as usize].name();
        let mut buffers = [std::ptr::null_mut::<c_void>(); 6];
        let mut params: &[u8] = &[];
        let mut next = buffers.iter_mut();
        for arg in args {
            match arg {
                KernelArg::Bytes(bytes) => params = bytes,
                KernelArg::Pointer(pointer) => {
                    if let Some(buffer) = next.next() {
                        *buffer = pointer.0 as *mut c_void;
                    }
                }
            }
        }
        // SAFETY: the caller launches as the kernel asks.
        if unsafe { gradwire_kernels::emulate::launch(name, grid, params, buffers) } {
            Ok(())
        } else {
            Err(DriverError::MissingFunction { name: name.to_owned() })
        }
    }

    fn memory_at(&self, _ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        Ok(MemoryAt::Device { left: None })
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        Ok(stream == StreamId::OWN)
    }

    fn synchronize(&self, _stream: StreamId) -> Result<(), DriverError> {
        Ok(())
    }

    fn elapsed(
        &self,
        _stream: StreamId,
        work: &mut dyn FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    }
}
