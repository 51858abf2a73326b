//! The one narrow seam between the CUDA backend and whatever runs its kernels.
//!
//! The backend knows this trait alone. NVIDIA's driver implements it as [`RealDriver`](super::RealDriver); an
//! interpreter of PTX can implement it as well, which is how the committed artifacts are tested on machines without
//! a GPU.
//!
//! Modules and functions are numbers that the driver gives out and looks up again, so a wrong one is an error. Device
//! addresses and streams are the driver's own and are taken on trust, so whatever dereferences an address is `unsafe`,
//! and so is naming a stream of one's own.

use std::ffi::c_void;

pub use super::artifacts::Header;
pub use super::error::{DriverError, DriverUnavailable};
use super::sys::STREAM_LEGACY;

/// What a driver says of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name, for people.
    pub name: String,
    /// Compute capability: major, minor.
    pub compute_capability: (u32, u32),
    /// The CUDA release the driver is for: major, minor. It decides which PTX ISA versions the driver reads.
    pub driver_version: (u32, u32),
    /// Device memory in bytes, used and free together.
    pub total_memory: u64,
    /// How many streaming multiprocessors there are.
    pub multiprocessors: u32,
}

/// A loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleId(pub u64);

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u64);

/// An address in device memory; zero is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// What an allocation of no bytes yields.
    pub const NULL: DevicePtr = DevicePtr(0);
}

/// A stream: work queued on one runs in the order of queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// The driver's own stream, which is always there.
    pub const OWN: StreamId = StreamId(0);

    /// A stream of the caller's: a `CUstream`, null for the legacy default stream.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that the stream belongs to the context of every driver that is given this identifier.
    /// - The caller guarantees that it is not destroyed before the last call that is given this identifier has
    ///   returned.
    #[must_use]
    pub unsafe fn from_raw(stream: *mut c_void) -> StreamId {
        // Null and `CU_STREAM_LEGACY` are one stream; by its other name it cannot be mistaken for `OWN`.
        if stream.is_null() { StreamId(STREAM_LEGACY) } else { StreamId(stream as u64) }
    }

    /// The `CUstream` as a number, or zero for [`StreamId::OWN`].
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

/// An event: a place in the work of a stream, which other streams can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// What a driver knows of the memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAt {
    /// Memory of the driver's device, or managed memory that it can reach.
    Device {
        /// Bytes from the address to the end of its allocation, where the driver says so.
        left: Option<u64>,
    },
    /// Memory of another device, by its number.
    OtherDevice(i32),
    /// Memory of the host.
    Host,
    /// No allocation that the driver knows.
    Unknown,
}

/// One argument of a kernel, in the order of its parameters.
#[derive(Clone, Copy, Debug)]
pub enum KernelArg<'a> {
    /// A struct passed by value: its bytes, exactly as many as the kernel's parameter has.
    Bytes(&'a [u8]),
    /// An address in device memory.
    Pointer(DevicePtr),
}

/// How ordinary memory stands in for page-locked memory; none for more than can be addressed.
fn host_layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, 256).ok()
}

/// What the CUDA backend asks of a driver.
///
/// Every call may come from any thread. A size or a grid of zero is allowed everywhere and does nothing, so that an
/// empty tensor needs no special case above. Work on a stream is queued, not done, when a call returns; a failure of
/// queued work may show in any later call.
pub trait Driver: Send + Sync {
    /// What the driver says of its device.
    fn info(&self) -> &DeviceInfo;

    /// Compiles a PTX text for the device and loads it.
    ///
    /// # Errors
    ///
    /// [`DriverError::Jit`] if the driver refuses the text, in which case a lower target may fare better.
    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError>;

    /// Compiles a PTX text for the device, and returns the module's bytes for [`load_image`](Driver::load_image), in
    /// this process or in a later one.
    ///
    /// # Errors
    ///
    /// [`DriverError::Jit`] if the driver refuses the text; [`DriverError::Unsupported`] if it cannot hand out
    /// what it compiles.
    fn compile(&self, ptx: &str) -> Result<Vec<u8>, DriverError> {
        let _ = ptx;
        Err(DriverError::Unsupported { what: "compiling to bytes" })
    }

    /// Loads a module that [`compile`](Driver::compile) made.
    ///
    /// # Errors
    ///
    /// [`DriverError::Image`] if the driver refuses the bytes, as those of another device or driver;
    /// [`DriverError::Unsupported`] if it loads nothing but PTX.
    ///
    /// # Safety
    ///
    /// The caller guarantees that the bytes are what [`compile`](Driver::compile) of some driver returned, unchanged: a
    /// driver trusts the lengths and offsets in a module.
    unsafe fn load_image(&self, image: &[u8]) -> Result<ModuleId, DriverError> {
        let _ = image;
        Err(DriverError::Unsupported { what: "loading compiled bytes" })
    }

    /// Unloads a module after waiting for all work of the context; its functions are gone with it. Does nothing for a
    /// module that is not loaded.
    fn unload_module(&self, module: ModuleId);

    /// The kernel of that name.
    ///
    /// # Errors
    ///
    /// [`DriverError::MissingFunction`] if the module has none.
    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError>;

    /// Allocates device memory, aligned for every type; [`DevicePtr::NULL`] for no bytes. What it holds is undefined.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`] if the device has no such piece free.
    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError>;

    /// Gives memory back; nothing for [`DevicePtr::NULL`].
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `ptr` is from [`alloc`](Driver::alloc) of this driver and was not freed before.
    /// - The caller guarantees that no work still queued, on whatever stream, touches it.
    unsafe fn free(&self, ptr: DevicePtr);

    /// Allocates memory of the host that the device copies from and to by itself; null for no bytes. What it holds is
    /// undefined. It is the driver's to lock, so that it is kept and used again.
    ///
    /// Without an implementation, it is ordinary memory of the process: right for a driver that copies at once.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoHostMemory`] if there is none left.
    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        if bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        // SAFETY: the layout has bytes.
        let at = host_layout(bytes).map_or(std::ptr::null_mut(), |layout| unsafe { std::alloc::alloc(layout) });
        if at.is_null() { Err(DriverError::NoHostMemory { asked: bytes as u64 }) } else { Ok(at) }
    }

    /// Gives memory of the host back; nothing for null.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `at` is from [`alloc_host`](Driver::alloc_host) of this driver for as many bytes,
    ///   and was not freed before.
    /// - The caller guarantees that no copy still queued, on whatever stream, touches it.
    unsafe fn free_host(&self, at: *mut u8, bytes: usize) {
        if let Some(layout) = host_layout(bytes).filter(|_| !at.is_null()) {
            // SAFETY: the caller answers for the memory, which was allocated with this layout.
            unsafe { std::alloc::dealloc(at, layout) };
        }
    }

    /// Queues a copy of `src` into device memory.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `src.len()` bytes of device memory are allocated at `dst`, and that no work on
    ///   another stream uses them meanwhile.
    /// - The caller guarantees that `src` stays allocated and unchanged until [`synchronize`](Driver::synchronize) of
    ///   this stream has returned. CUDA allows the copy from ordinary memory to finish early, and promises it of none.
    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError>;

    /// Copies device memory into `dst`, after the work queued on the stream so far, and waits for it.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `dst.len()` bytes of device memory are allocated at `src`, and that no work on
    ///   another stream writes to them meanwhile.
    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError>;

    /// Queues a copy from device memory to device memory.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `bytes` bytes of device memory are allocated at `dst` and at `src` until the copy
    ///   is done, that the two ranges do not overlap, and that no work on another stream conflicts with the copy.
    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError>;

    /// Queues the filling of device memory with zeros.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `bytes` bytes of device memory are allocated at `dst` until the filling is done,
    ///   and that no work on another stream uses them meanwhile.
    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError>;

    /// Queues a kernel over `grid` blocks of `block` threads, both in one dimension. The arguments are read before the
    /// call returns.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `args` are as many as the kernel's parameters, in their order and of their sizes: a
    ///   driver reads as many bytes as the parameter has, whatever the length of the slice.
    /// - The caller guarantees everything that the kernel's documentation asks for under "Safety" and "Launch
    ///   contract", for as long as the kernel runs.
    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError>;

    /// Queues a kernel as [`launch`](Driver::launch) does, and lets its blocks begin while the kernel that was queued
    /// before it on the stream still runs: it waits for that one by itself.
    ///
    /// Without an implementation it begins when that kernel is done: right for every driver.
    ///
    /// # Safety
    ///
    /// - As [`launch`](Driver::launch).
    /// - The caller guarantees that every thread of the kernel executes `griddepcontrol.wait` before it touches memory
    ///   and before it ends.
    /// - The caller guarantees as much of the kernel that is queued before it, or that all work before that one is done
    ///   when that one begins, as it is after [`launch`](Driver::launch): to wait for it is then to wait for all that
    ///   was queued earlier.
    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller answers for as much.
        unsafe { self.launch(function, grid, block, args, stream) }
    }

    /// What is known of the memory at an address. Queues nothing and waits for nothing.
    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError>;

    /// Whether the stream belongs to this driver's context. Queues nothing and waits for nothing.
    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError>;

    /// The `CUstream` of an identifier, for other libraries that queue there; none if there is no such stream,
    /// as for [`StreamId::OWN`] of a driver that is not NVIDIA's.
    fn raw_stream(&self, stream: StreamId) -> Option<*mut c_void> {
        (stream != StreamId::OWN).then_some(stream.to_u64() as *mut c_void)
    }

    /// Whether work that is queued on the stream is recorded into a CUDA graph at the moment. Queues nothing and waits
    /// for nothing.
    fn is_capturing(&self, stream: StreamId) -> Result<bool, DriverError> {
        let _ = stream;
        Ok(false)
    }

    /// Makes an event that keeps no time.
    ///
    /// Without an implementation, events do nothing: right for a driver whose work is done when a call returns.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn event(&self) -> Result<EventId, DriverError> {
        Ok(EventId(0))
    }

    /// Gives an event back. What waits for it goes on waiting.
    ///
    /// # Safety
    ///
    /// The caller guarantees that `event` is from [`event`](Driver::event) of this driver and was not freed before.
    unsafe fn free_event(&self, event: EventId) {
        let _ = event;
    }

    /// Puts an event after the work that is queued on a stream. Where it was before, it is no longer.
    ///
    /// # Safety
    ///
    /// As [`free_event`](Driver::free_event) has it of the event.
    unsafe fn record(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let _ = (event, stream);
        Ok(())
    }

    /// Lets what is queued on a stream from now on begin when an event, where it is now, is reached. Nobody waits here.
    ///
    /// # Safety
    ///
    /// As [`record`](Driver::record).
    unsafe fn wait_for(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let _ = (event, stream);
        Ok(())
    }

    /// Waits until the work queued on the stream so far is done.
    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError>;

    /// Runs `work` once, waits for what it queued on the stream, and tells the seconds it took there, by the device's
    /// clock.
    ///
    /// Work queued before does not count. Time for which the device stands idle while `work` is still queueing does, so
    /// only a span that is long beside the queueing measures the device.
    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError>;
}

#[cfg(test)]
mod tests {
    use super::super::RealDriver;
    use super::*;

    #[test]
    fn the_callers_null_stream_is_not_the_drivers_own() {
        // SAFETY: no driver is given these.
        let (null, other) =
            unsafe { (StreamId::from_raw(std::ptr::null_mut()), StreamId::from_raw(0x7f00 as *mut c_void)) };
        assert_ne!(null, StreamId::OWN);
        assert_eq!(null.to_u64(), STREAM_LEGACY);
        assert_eq!(other.to_u64(), 0x7f00);
    }

    #[test]
    fn the_backend_can_hold_any_driver() {
        fn takes(_: &dyn Driver) {}
        let _: fn(&RealDriver) = |driver| takes(driver);
    }
}
