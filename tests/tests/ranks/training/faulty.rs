//! A driver whose nth call fails, and that copies from the host as late as a driver may.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};
use gradwire_ptx_machine::Machine;

/// The PTX machine, of whose calls one fails, and does nothing. Copies from the host are made when the next work is
/// queued or waited for: memory that is written or freed before that is found.
pub(crate) struct Faulty {
    machine: Arc<Machine>,
    /// Calls that succeed before it; none fails at 2^32 - 1.
    left: AtomicU32,
    /// Whether there is no page-locked memory left.
    locked_out: AtomicBool,
    allocations: AtomicU32,
    late: Mutex<Vec<Late>>,
}

/// A copy that is yet to be made.
struct Late {
    to: DevicePtr,
    from: usize,
    bytes: usize,
}

impl Faulty {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        let (left, locked_out, allocations) = (AtomicU32::new(u32::MAX), AtomicBool::new(false), AtomicU32::new(0));
        Self { machine, left, locked_out, allocations, late: Mutex::default() }
    }

    /// From now on there is page-locked memory, or none.
    pub(crate) fn lock_out(&self, out: bool) {
        self.locked_out.store(out, Ordering::Relaxed);
    }

    /// Allocations so far, of the device's memory and of page-locked memory.
    pub(crate) fn allocations(&self) -> u32 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Makes the copies that are late.
    fn catch_up(&self) -> Result<(), DriverError> {
        let late = std::mem::take(&mut *self.late.lock().expect("no panic"));
        late.into_iter().try_for_each(|Late { to, from, bytes }| {
            // SAFETY: whoever queued the copy keeps the memory until it was waited for.
            let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(from), bytes) };
            // SAFETY: the machine checks the range, and copies at once.
            unsafe { self.machine.copy_in(to, bytes, StreamId::OWN) }
        })
    }

    /// The call after `calls` others fails.
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
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.machine.alloc(bytes)
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        self.count()?;
        if self.locked_out.load(Ordering::Relaxed) {
            return Err(DriverError::NoHostMemory { asked: bytes as u64 });
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.machine.alloc_host(bytes)
    }

    unsafe fn free_host(&self, at: *mut u8, bytes: usize) {
        let within = |late: &Late| (at.addr()..at.addr() + bytes).contains(&late.from);
        assert!(!self.late.lock().expect("no panic").iter().any(within), "freed before it was copied from");
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.free_host(at, bytes) }
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.free(ptr) }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError> {
        self.count()?;
        assert_eq!(stream, StreamId::OWN);
        let late = Late { to: dst, from: src.as_ptr().expose_provenance(), bytes: src.len() };
        self.late.lock().expect("no panic").push(late);
        Ok(())
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError> {
        self.catch_up()?;
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
        self.catch_up()?;
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.copy_within(dst, src, bytes, stream) }
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        self.catch_up()?;
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
        self.catch_up()?;
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.launch(function, grid, block, args, stream) }
    }

    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        self.catch_up()?;
        self.count()?;
        // SAFETY: the caller's guarantees are the machine's.
        unsafe { self.machine.launch_dependent(function, grid, block, args, stream) }
    }

    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        self.machine.memory_at(ptr)
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        self.machine.is_own_stream(stream)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError> {
        self.catch_up()?;
        self.count()?;
        self.machine.synchronize(stream)
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.machine.elapsed(stream, work)
    }
}
