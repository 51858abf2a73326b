//! A driver whose nth call fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};
use gradwire_ptx_machine::Machine;

/// The PTX machine, of whose calls one fails, and does nothing.
pub(crate) struct Faulty {
    machine: Arc<Machine>,
    /// Calls that succeed before it; none fails at 2^32 - 1.
    left: AtomicU32,
}

impl Faulty {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self { machine, left: AtomicU32::new(u32::MAX) }
    }

    /// The call behind `calls` others fails.
    pub(crate) fn fail_behind(&self, calls: u32) {
        self.left.store(calls, Ordering::Relaxed);
    }

    /// Whether a call has failed since.
    pub(crate) fn has_failed(&self) -> bool {
        self.left.load(Ordering::Relaxed) == u32::MAX
    }

    fn count(&self) -> Result<(), DriverError> {
        let next = |left: u32| if left == u32::MAX { None } else { Some(left.wrapping_sub(1)) };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(0) => Err(DriverError::Unsupported { what: "the call that a test has chosen" }),
            _ => Ok(()),
        }
    }
}

impl Driver for Faulty {
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
        self.count()?;
        self.machine.alloc(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.free(ptr) }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError> {
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.copy_in(dst, src, stream) }
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError> {
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.copy_out(dst, src, stream) }
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.copy_within(dst, src, bytes, stream) }
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.fill_zero(dst, bytes, stream) }
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.launch(function, grid, block, args, stream) }
    }

    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        self.machine.memory_at(ptr)
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        self.machine.is_own_stream(stream)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError> {
        self.count()?;
        self.machine.synchronize(stream)
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.machine.elapsed(stream, work)
    }
}
