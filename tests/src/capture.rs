//! A CUDA driver that stands before another one and lets through, while it is armed, only what a stream that is being
//! captured into a graph allows: kernels, fills, copies within the device, and questions that queue nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};

/// An address that the driver says is the host's.
pub const HOST: u64 = 0x7fff_0000_0000;
/// An address that the driver says is another device's.
pub const ELSEWHERE: u64 = 0x7ffe_0000_0000;
/// A stream that the driver says is of its context, beside its own.
pub const STREAM: u64 = 0xabc0;

/// See the module.
pub struct Capture<D> {
    inner: D,
    armed: AtomicBool,
    modules: AtomicU64,
    queued: Mutex<Vec<u64>>,
}

impl<D: Driver> Capture<D> {
    /// Unarmed, it lets everything through.
    pub fn new(inner: D) -> Self {
        Self { inner, armed: AtomicBool::new(false), modules: AtomicU64::new(0), queued: Mutex::default() }
    }

    /// The driver behind it.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Runs `work` armed, and tells on which streams it queued, one entry a kernel or fill.
    pub fn while_armed<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<u64>) {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.armed.store(true, Ordering::SeqCst);
        let value = work();
        self.armed.store(false, Ordering::SeqCst);
        (value, std::mem::take(&mut *self.queued.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// How many modules were loaded.
    pub fn modules(&self) -> u64 {
        self.modules.load(Ordering::SeqCst)
    }

    fn refuse(&self, call: &'static str) -> Result<(), DriverError> {
        if !self.armed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (name, message) = ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".to_owned(), "a capture is going on".to_owned());
        Err(DriverError::Call { call, code: 900, name, message })
    }

    fn note(&self, stream: StreamId) -> StreamId {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner).push(stream.to_u64());
        StreamId::OWN
    }
}

impl<D: Driver> Driver for Capture<D> {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        self.refuse("cuModuleLoadDataEx")?;
        self.modules.fetch_add(1, Ordering::SeqCst);
        self.inner.load_module(ptx)
    }

    fn is_capturing(&self, _stream: StreamId) -> Result<bool, DriverError> {
        Ok(self.armed.load(Ordering::SeqCst))
    }

    fn unload_module(&self, module: ModuleId) {
        self.inner.unload_module(module);
    }

    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        self.inner.function(module, name)
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        self.refuse("cuMemAlloc_v2")?;
        self.inner.alloc(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: the caller has done with the memory.
        unsafe { self.inner.free(ptr) }
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        self.refuse("cuMemHostAlloc")?;
        self.inner.alloc_host(bytes)
    }

    unsafe fn free_host(&self, at: *mut u8, bytes: usize) {
        // SAFETY: the caller has done with the memory.
        unsafe { self.inner.free_host(at, bytes) }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], _stream: StreamId) -> Result<(), DriverError> {
        self.refuse("cuMemcpyHtoDAsync_v2")?;
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_in(dst, src, StreamId::OWN) }
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, _stream: StreamId) -> Result<(), DriverError> {
        self.refuse("cuMemcpyDtoHAsync_v2")?;
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_out(dst, src, StreamId::OWN) }
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_within(dst, src, bytes, self.note(stream)) }
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.fill_zero(dst, bytes, self.note(stream)) }
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's arguments are those that the kernel takes, and name memory that is there.
        unsafe { self.inner.launch(function, grid, block, args, self.note(stream)) }
    }

    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { self.inner.launch_dependent(function, grid, block, args, self.note(stream)) }
    }

    fn memory_at(&self, at: DevicePtr) -> Result<MemoryAt, DriverError> {
        match at.0 {
            HOST => Ok(MemoryAt::Host),
            ELSEWHERE => Ok(MemoryAt::OtherDevice(1)),
            _ => self.inner.memory_at(at),
        }
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        Ok(stream == StreamId::OWN || stream.to_u64() == STREAM)
    }

    fn synchronize(&self, _stream: StreamId) -> Result<(), DriverError> {
        self.refuse("cuStreamSynchronize")
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.inner.elapsed(stream, work)
    }
}
