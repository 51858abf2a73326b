//! A CUDA driver that stands before another one, notes which modules are compiled and loaded, and refuses what a test
//! says.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};

/// What a driver was asked to do with a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// To compile and load a PTX text, of which this is the first kernel.
    Text(String),
    /// To compile it to bytes.
    Compile(String),
    /// To load bytes.
    Image,
}

/// Tells what becomes of a call: none if the driver behind does it.
type Verdict = Box<dyn FnMut(&Load, &str) -> Option<DriverError> + Send>;

/// See the module.
pub struct Loads<D> {
    inner: D,
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loads: Vec<Load>,
    verdict: Option<Verdict>,
    unloads: usize,
}

impl<D: Driver> Loads<D> {
    /// Lets everything through.
    pub fn new(inner: D) -> Self {
        let info = inner.info().clone();
        Self { inner, info, state: Mutex::default() }
    }

    /// The same driver, which says that it is for another CUDA release.
    #[must_use]
    pub fn of_release(self, driver_version: (u32, u32)) -> Self {
        Self { info: DeviceInfo { driver_version, ..self.info }, ..self }
    }

    /// From now on, an error that this gives is what comes of a call. It is handed the call and the text.
    pub fn refusing(&self, verdict: impl FnMut(&Load, &str) -> Option<DriverError> + Send + 'static) {
        self.state().verdict = Some(Box::new(verdict));
    }

    /// Refuses nothing any more.
    pub fn refusing_nothing(&self) {
        self.state().verdict = None;
    }

    /// What was asked for since the last call.
    pub fn take(&self) -> Vec<Load> {
        std::mem::take(&mut self.state().loads)
    }

    /// How many modules were unloaded.
    pub fn unloads(&self) -> usize {
        self.state().unloads
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, load: Load, text: &str) -> Result<(), DriverError> {
        let mut state = self.state();
        let refused = state.verdict.as_mut().and_then(|verdict| verdict(&load, text));
        state.loads.push(load);
        refused.map_or(Ok(()), Err)
    }
}

/// The first kernel of a text.
fn first(ptx: &str) -> String {
    let entry = ptx.split(".visible .entry ").nth(1).unwrap_or_default();
    entry.split('(').next().unwrap_or_default().to_owned()
}

impl<D: Driver> Driver for Loads<D> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        self.note(Load::Text(first(ptx)), ptx)?;
        self.inner.load_module(ptx)
    }

    fn compile(&self, ptx: &str) -> Result<Vec<u8>, DriverError> {
        self.note(Load::Compile(first(ptx)), ptx)?;
        self.inner.compile(ptx)
    }

    unsafe fn load_image(&self, image: &[u8]) -> Result<ModuleId, DriverError> {
        self.note(Load::Image, "")?;
        // SAFETY: the caller answers for the bytes.
        unsafe { self.inner.load_image(image) }
    }

    fn unload_module(&self, module: ModuleId) {
        self.state().unloads += 1;
        self.inner.unload_module(module);
    }

    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        self.inner.function(module, name)
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        self.inner.alloc(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        // SAFETY: the caller has done with the memory.
        unsafe { self.inner.free(ptr) }
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        self.inner.alloc_host(bytes)
    }

    unsafe fn free_host(&self, at: *mut u8, bytes: usize) {
        // SAFETY: the caller has done with the memory.
        unsafe { self.inner.free_host(at, bytes) }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_in(dst, src, stream) }
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_out(dst, src, stream) }
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.copy_within(dst, src, bytes, stream) }
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the memory, and the ranges lie in it.
        unsafe { self.inner.fill_zero(dst, bytes, stream) }
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
        unsafe { self.inner.launch(function, grid, block, args, stream) }
    }

    fn memory_at(&self, at: DevicePtr) -> Result<MemoryAt, DriverError> {
        self.inner.memory_at(at)
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        self.inner.is_own_stream(stream)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError> {
        self.inner.synchronize(stream)
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.inner.elapsed(stream, work)
    }
}
