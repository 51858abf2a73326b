//! The [`Driver`] trait over NVIDIA's driver: one driver function or two behind each method.

use std::ffi::{CString, c_uint, c_void};
use std::ptr;

use super::artifacts::Header;
use super::driver::{DeviceInfo, DevicePtr, Driver, EventId, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId};
use super::error::{CAPTURE_IMPLICIT, DriverError, NOT_FOUND, OUT_OF_MEMORY, is_refusal};
use super::real::{Function, Module, RealDriver};
use super::sys::{
    self, CUcontext, CUevent, CUfunction, CUlaunchAttribute, CUlaunchAttributeValue, CUlaunchConfig, CUlinkState,
    CUmodule, CUresult, CUstream,
};

/// The bytes for each of the compiler's two logs.
const LOG_BYTES: usize = 16 * 1024;

impl Driver for RealDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        let image = terminated("the PTX text", ptx)?;
        let mut logs = Logs::new();
        let (mut options, mut values) = logs.options();

        let _current = self.enter()?;
        let _mode = RelaxedCapture::enter(self);
        let mut module = CUmodule::NULL;
        // SAFETY: the image ends in NUL; there are as many values as options, and four; each log has the size that is
        // declared for it, and outlives the call.
        let result = unsafe {
            (self.api.module_load_data_ex)(
                &raw mut module,
                image.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.compiled("cuModuleLoadDataEx", result, ptx, &logs)?;
        Ok(self.keep(module))
    }

    fn compile(&self, ptx: &str) -> Result<Vec<u8>, DriverError> {
        let (Some(create), Some(add), Some(complete), Some(destroy)) =
            (self.api.link_create, self.api.link_add_data, self.api.link_complete, self.api.link_destroy)
        else {
            return Err(DriverError::Unsupported { what: "compiling to bytes" });
        };
        let text = terminated("the PTX text", ptx)?;
        let mut logs = Logs::new();
        let (mut options, mut values) = logs.options();

        let _current = self.enter()?;
        let _mode = RelaxedCapture::enter(self);
        let mut state = CUlinkState::NULL;
        // SAFETY: there are as many values as options, and four; each log has the size that is declared for it, and
        // outlives the linker, which is destroyed below.
        let created =
            unsafe { create(options.len() as c_uint, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state) };
        self.check("cuLinkCreate_v2", created)?;
        let linker = Linker { destroy, state };
        let bytes = text.as_bytes_with_nul();
        // SAFETY: the linker is alive; the text has that many bytes, ends in NUL and is only read; there are no
        // options.
        let added = unsafe {
            add(
                linker.state,
                sys::JIT_INPUT_PTX,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                c"gradwire.ptx".as_ptr(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        self.compiled("cuLinkAddData_v2", added, ptx, &logs)?;
        let (mut image, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the linker is alive, and both are places for what it gives.
        let completed = unsafe { complete(linker.state, &raw mut image, &raw mut size) };
        self.compiled("cuLinkComplete", completed, ptx, &logs)?;
        if image.is_null() || size == 0 {
            return Err(DriverError::Unsupported { what: "compiling to bytes" });
        }
        // SAFETY: the linker gave out that many bytes, which are its own until it is destroyed, after the copy.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
    }

    unsafe fn load_image(&self, image: &[u8]) -> Result<ModuleId, DriverError> {
        let _current = self.enter()?;
        let _mode = RelaxedCapture::enter(self);
        let mut module = CUmodule::NULL;
        // SAFETY: the caller answers for the bytes, which are a whole module; there are no options.
        let result = unsafe {
            (self.api.module_load_data_ex)(&raw mut module, image.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut())
        };
        if is_refusal(result.0) {
            let name = self.api.describe(result).0;
            return Err(DriverError::Image { code: result.0, name, bytes: image.len() as u64 });
        }
        self.check("cuModuleLoadDataEx", result)?;
        Ok(self.keep(module))
    }

    fn unload_module(&self, module: ModuleId) {
        let Ok(_current) = self.enter() else { return };
        let removed = {
            let mut loaded = self.loaded_mut();
            loaded.functions.retain(|_, function| function.number != module.0);
            loaded.modules.remove(&module.0)
        };
        let Some(removed) = removed else { return };
        removed.end();
        // Kernels of it may still be queued, on streams that only the caller knows. Errors are ignored: there is no
        // caller to report to.
        // SAFETY: the context is current; the module was loaded by this driver, no call holds it, and it left the map
        // just now, so this happens once.
        unsafe {
            (self.api.ctx_synchronize)();
            (self.api.module_unload)(removed.raw);
        }
    }

    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        let not_loaded = DriverError::NotLoaded { what: "module", id: module.0 };
        let known = |(_, function): &(&u64, &Function)| function.number == module.0 && function.name == name;
        let parent = {
            let loaded = self.loaded();
            if let Some((number, _)) = loaded.functions.iter().find(known) {
                return Ok(FunctionId(*number));
            }
            loaded.modules.get(&module.0).cloned()
        };
        let Some(parent) = parent else { return Err(not_loaded) };
        let Some(_held) = parent.hold() else { return Err(not_loaded) };
        let symbol = terminated("the name of a kernel", name)?;
        let _current = self.enter()?;
        let mut raw = CUfunction::NULL;
        // SAFETY: `raw` is a place for a function, the module is loaded and stays so while it is held, and the name
        // ends in NUL.
        let result = unsafe { (self.api.module_get_function)(&raw mut raw, parent.raw, symbol.as_ptr()) };
        if result.0 == NOT_FOUND {
            return Err(DriverError::MissingFunction { name: name.into() });
        }
        self.check("cuModuleGetFunction", result)?;
        let mut loaded = self.loaded_mut();
        // Another thread may have looked it up meanwhile, or begun to unload the module.
        if let Some((number, _)) = loaded.functions.iter().find(known) {
            return Ok(FunctionId(*number));
        }
        if !loaded.modules.contains_key(&module.0) {
            return Err(not_loaded);
        }
        let number = loaded.number();
        let function = Function { number: module.0, name: name.into(), raw, module: parent.clone() };
        loaded.functions.insert(number, function);
        Ok(FunctionId(number))
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let size = host_size(bytes)?;
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: `address` is a place for an address, and the context is current.
        match unsafe { (self.api.mem_alloc)(&raw mut address, size) } {
            CUresult(OUT_OF_MEMORY) => {
                let (mut free, mut total) = (0, 0);
                // Only for the words of the error: where this fails as well, it says zero free, which is near the
                // truth.
                // SAFETY: both are places for a size, and the context is current.
                unsafe { (self.api.mem_get_info)(&raw mut free, &raw mut total) };
                Err(DriverError::OutOfMemory { asked: bytes, free: free as u64, total: self.info.total_memory })
            }
            result => self.check("cuMemAlloc_v2", result).map(|()| DevicePtr(address)),
        }
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if ptr == DevicePtr::NULL {
            return;
        }
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller answers for the address: it is allocated, and no queued work touches it.
            unsafe { (self.api.mem_free)(ptr.0) };
        }
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        if bytes == 0 {
            return Ok(ptr::null_mut());
        }
        let _current = self.enter()?;
        let mut at = ptr::null_mut();
        // SAFETY: `at` is a place for a pointer, and the context is current.
        match unsafe { (self.api.mem_host_alloc)(&raw mut at, bytes, sys::HOST_ALLOC_DEFAULT) } {
            CUresult(OUT_OF_MEMORY) => Err(DriverError::NoHostMemory { asked: bytes as u64 }),
            result => self.check("cuMemHostAlloc", result).map(|()| at.cast()),
        }
    }

    unsafe fn free_host(&self, at: *mut u8, _bytes: usize) {
        if at.is_null() {
            return;
        }
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller answers for the memory: it is allocated, and no queued copy touches it.
            unsafe { (self.api.mem_free_host)(at.cast()) };
        }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<(), DriverError> {
        if src.is_empty() {
            return Ok(());
        }
        let _current = self.enter()?;
        let stream = self.stream(stream);
        // SAFETY: the caller answers for the device memory, and for the slice until the stream is synchronised.
        let result = unsafe { (self.api.memcpy_htod_async)(dst.0, src.as_ptr().cast(), src.len(), stream) };
        self.check("cuMemcpyHtoDAsync_v2", result)
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, stream: StreamId) -> Result<(), DriverError> {
        if dst.is_empty() {
            return Ok(());
        }
        let _current = self.enter()?;
        let stream = self.stream(stream);
        // SAFETY: the caller answers for the device memory; the slice is borrowed until the wait below is over.
        let result = unsafe { (self.api.memcpy_dtoh_async)(dst.as_mut_ptr().cast(), src.0, dst.len(), stream) };
        // The wait comes before the verdict, so that the slice is at rest whatever the copy returned.
        // SAFETY: the stream is alive: the driver's own, or vouched for where its identifier was made.
        let waited = unsafe { (self.api.stream_synchronize)(stream) };
        self.check("cuMemcpyDtoHAsync_v2", result)?;
        self.check("cuStreamSynchronize", waited)
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let size = host_size(bytes)?;
        let _current = self.enter()?;
        // SAFETY: the caller answers for both ranges.
        let result = unsafe { (self.api.memcpy_dtod_async)(dst.0, src.0, size, self.stream(stream)) };
        self.check("cuMemcpyDtoDAsync_v2", result)
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, stream: StreamId) -> Result<(), DriverError> {
        let size = host_size(bytes)?;
        // Whole words where the address allows it, single bytes for the rest.
        let words = if dst.0.is_multiple_of(4) { size / 4 } else { 0 };
        let (rest, tail) = (size - words * 4, dst.0 + words as u64 * 4);
        if size == 0 {
            return Ok(());
        }
        let _current = self.enter()?;
        let stream = self.stream(stream);
        if words > 0 {
            // SAFETY: the caller answers for the range, of which these are the whole words, and the address is a
            // multiple of 4.
            self.check("cuMemsetD32Async", unsafe { (self.api.memset_d32_async)(dst.0, 0, words, stream) })?;
        }
        if rest > 0 {
            // SAFETY: the caller answers for the range, of which these are the last bytes.
            self.check("cuMemsetD8Async", unsafe { (self.api.memset_d8_async)(tail, 0, rest, stream) })?;
        }
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let launch = |raw, addresses: *mut _, stream| {
            // SAFETY: the function is loaded and stays so over the call; the addresses are of arguments that outlive
            // it, and the caller answers for their number and sizes and for what the kernel does with them.
            unsafe { (self.api.launch_kernel)(raw, grid, 1, 1, block, 1, 1, 0, stream, addresses, ptr::null_mut()) }
        };
        self.launched("cuLaunchKernel", function, grid, args, stream, launch)
    }

    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let Some(launch_ex) = self.api.launch_kernel_ex else {
            // SAFETY: the caller answers for as much.
            return unsafe { self.launch(function, grid, block, args, stream) };
        };
        let mut attribute = CUlaunchAttribute {
            id: sys::LAUNCH_PROGRAMMATIC,
            pad: [0; 4],
            value: CUlaunchAttributeValue { number: 1, rest: [0; 60] },
        };
        let attributes = &raw mut attribute;
        let launch = |raw, addresses: *mut _, stream| {
            let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
            let config = CUlaunchConfig { grid, block, shared_bytes: 0, stream, attributes, count: 1 };
            // SAFETY: as in `launch`; the configuration and its one attribute outlive the call.
            unsafe { launch_ex(&raw const config, raw, addresses, ptr::null_mut()) }
        };
        self.launched("cuLaunchKernelEx", function, grid, args, stream, launch)
    }

    fn memory_at(&self, at: DevicePtr) -> Result<MemoryAt, DriverError> {
        let which = [
            sys::POINTER_MEMORY_TYPE,
            sys::POINTER_DEVICE_ORDINAL,
            sys::POINTER_RANGE_START,
            sys::POINTER_RANGE_SIZE,
            sys::POINTER_IS_MANAGED,
        ];
        // Eight bytes are enough for each of them, and zeros where the driver writes fewer.
        let mut found = [0u64; 5];
        let mut places = found.each_mut().map(|place| ptr::from_mut(place).cast::<c_void>());
        let _current = self.enter()?;
        // SAFETY: there are as many places as attributes, each at least of the size that `cuda.h` gives its attribute.
        // Any address may be asked about: what is unknown leaves its attributes at zero.
        let result = unsafe {
            (self.api.pointer_get_attributes)(which.len() as c_uint, which.as_ptr(), places.as_mut_ptr(), at.0)
        };
        self.check("cuPointerGetAttributes", result)?;
        let [kind, device, start, size, managed] = found;
        let device = (device as u32).cast_signed();
        let left = start.checked_add(size).filter(|_| size > 0).map(|end| end.saturating_sub(at.0));
        Ok(match kind as c_uint {
            _ if managed as u8 != 0 => MemoryAt::Device { left },
            sys::MEMORY_HOST => MemoryAt::Host,
            sys::MEMORY_DEVICE if device != self.device() => MemoryAt::OtherDevice(device),
            sys::MEMORY_DEVICE => MemoryAt::Device { left },
            _ => MemoryAt::Unknown,
        })
    }

    fn is_own_stream(&self, stream: StreamId) -> Result<bool, DriverError> {
        if stream == StreamId::OWN || stream.to_u64() == sys::STREAM_LEGACY {
            // The driver's own, and the one that stands for the null stream of whatever context is current.
            return Ok(true);
        }
        let _current = self.enter()?;
        let mut context = CUcontext::NULL;
        // SAFETY: `context` is a place for a context; the stream is alive, as was vouched for where its identifier was
        // made.
        let result = unsafe { (self.api.stream_get_ctx)(self.stream(stream), &raw mut context) };
        self.check("cuStreamGetCtx", result)?;
        Ok(context == self.context())
    }

    fn raw_stream(&self, stream: StreamId) -> Option<*mut c_void> {
        Some(self.stream(stream).0)
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, DriverError> {
        // A driver without the call knows no captures.
        let Some(ask) = self.api.stream_is_capturing else { return Ok(false) };
        let _current = self.enter()?;
        let mut status = sys::CAPTURE_NONE;
        // SAFETY: the stream is alive: the driver's own, or vouched for where its identifier was made; `status` is a
        // place for the answer.
        let result = unsafe { ask(self.stream(stream), &raw mut status) };
        // The legacy default stream waits for others of the context, one of which is being captured.
        if result.0 == CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.check("cuStreamIsCapturing", result)?;
        Ok(status != sys::CAPTURE_NONE)
    }

    fn event(&self) -> Result<EventId, DriverError> {
        let event = Event::new(self, sys::EVENT_DISABLE_TIMING)?;
        let raw = event.raw;
        std::mem::forget(event);
        Ok(EventId(raw.0 as u64))
    }

    unsafe fn free_event(&self, event: EventId) {
        drop(self.event_of(event));
    }

    unsafe fn record(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let event = std::mem::ManuallyDrop::new(self.event_of(event));
        event.record(self.stream(stream))
    }

    unsafe fn wait_for(&self, event: EventId, stream: StreamId) -> Result<(), DriverError> {
        let _current = self.enter()?;
        let (raw, stream) = (CUevent(event.0 as *mut c_void), self.stream(stream));
        // SAFETY: the caller answers for the event, and the stream is alive: the driver's own, or vouched for where its
        // identifier was made.
        let result = unsafe { (self.api.stream_wait_event)(stream, raw, sys::EVENT_WAIT_DEFAULT) };
        self.check("cuStreamWaitEvent", result)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: the stream is alive: the driver's own, or vouched for where its identifier was made.
        self.check("cuStreamSynchronize", unsafe { (self.api.stream_synchronize)(self.stream(stream)) })
    }

    fn elapsed(&self, stream: StreamId, work: &mut dyn FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        let stream = self.stream(stream);
        let [start, stop] = [Event::new(self, sys::EVENT_DEFAULT)?, Event::new(self, sys::EVENT_DEFAULT)?];
        start.record(stream)?;
        // No context is held over this: what it calls finds the thread's contexts as the caller left them.
        work()?;
        stop.record(stream)?;
        let _current = self.enter()?;
        // SAFETY: the event is alive.
        self.check("cuEventSynchronize", unsafe { (self.api.event_synchronize)(stop.raw) })?;
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is a place for a float; both events keep the time, were recorded and are over.
        let result = unsafe { (self.api.event_elapsed_time)(&raw mut milliseconds, start.raw, stop.raw) };
        self.check("cuEventElapsedTime", result)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl RealDriver {
    /// Looks a kernel up, and has `launch` launch it on a stream, with the addresses of its arguments.
    fn launched(
        &self,
        call: &'static str,
        function: FunctionId,
        grid: u32,
        args: &[KernelArg<'_>],
        stream: StreamId,
        launch: impl FnOnce(CUfunction, *mut *mut c_void, CUstream) -> CUresult,
    ) -> Result<(), DriverError> {
        let not_loaded = DriverError::NotLoaded { what: "function", id: function.0 };
        let found = self.loaded().functions.get(&function.0).map(|found| (found.module.clone(), found.raw));
        let Some((module, raw)) = found else { return Err(not_loaded) };
        // Held over the call, so that nobody unloads the module before it ends.
        let Some(_held) = module.hold() else { return Err(not_loaded) };
        if grid == 0 {
            return Ok(());
        }
        // The driver wants the address of each argument, and only reads from it.
        let mut addresses: Vec<*mut c_void> = args
            .iter()
            .map(|arg| match arg {
                KernelArg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
                KernelArg::Pointer(DevicePtr(address)) => ptr::from_ref(address).cast_mut().cast(),
            })
            .collect();
        let _current = self.enter()?;
        self.check(call, launch(raw, addresses.as_mut_ptr(), self.stream(stream)))
    }

    /// The error of a result that compiling gave.
    fn compiled(&self, call: &'static str, result: CUresult, ptx: &str, logs: &Logs) -> Result<(), DriverError> {
        if is_refusal(result.0) {
            return Err(DriverError::Jit {
                code: result.0,
                name: self.api.describe(result).0,
                log: [text(&logs.errors), text(&logs.remarks)].join("\n").trim().to_owned(),
                header: Header::parse(ptx),
                driver_version: self.info.driver_version,
                compute_capability: self.info.compute_capability,
            });
        }
        self.check(call, result)
    }

    /// An event that [`Driver::event`] gave out, which is destroyed where this is dropped.
    fn event_of(&self, event: EventId) -> Event<'_> {
        Event { driver: self, raw: CUevent(event.0 as *mut c_void) }
    }

    /// Keeps a module that was loaded.
    fn keep(&self, module: CUmodule) -> ModuleId {
        let mut loaded = self.loaded_mut();
        let number = loaded.number();
        loaded.modules.insert(number, Module::new(module));
        ModuleId(number)
    }
}

/// Room for the compiler's two logs.
struct Logs {
    errors: Vec<u8>,
    remarks: Vec<u8>,
}

impl Logs {
    fn new() -> Logs {
        Logs { errors: vec![0; LOG_BYTES], remarks: vec![0; LOG_BYTES] }
    }

    /// The options that name the logs, and their values. A size is passed in place of a pointer, and the driver
    /// writes over it how much of the log it used.
    fn options(&mut self) -> ([c_uint; 4], [*mut c_void; 4]) {
        let size = ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        (
            [sys::JIT_ERROR_LOG, sys::JIT_ERROR_LOG_SIZE, sys::JIT_INFO_LOG, sys::JIT_INFO_LOG_SIZE],
            [self.errors.as_mut_ptr().cast(), size, self.remarks.as_mut_ptr().cast(), size],
        )
    }
}

/// A linker, destroyed when dropped, on whichever way out.
struct Linker {
    destroy: unsafe extern "system" fn(CUlinkState) -> CUresult,
    state: CUlinkState,
}

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: the linker was made for this value and is destroyed once, here, with its context current.
        unsafe { (self.destroy)(self.state) };
    }
}

/// Lets the thread load modules while streams are captured, until it is dropped.
///
/// Loading is among the calls that end other streams' captures: those of all threads in the mode "global", and the
/// thread's own in the mode "thread local". A thread in the mode "relaxed" ends none.
struct RelaxedCapture {
    exchange: Option<unsafe extern "system" fn(*mut c_uint) -> CUresult>,
    before: c_uint,
}

impl RelaxedCapture {
    fn enter(driver: &RealDriver) -> RelaxedCapture {
        let mut before = sys::CAPTURE_MODE_RELAXED;
        // SAFETY: `before` holds a mode, and is a place for the one before.
        let exchanged = driver.api.exchange_capture_mode.filter(|f| unsafe { f(&raw mut before) } == CUresult::SUCCESS);
        RelaxedCapture { exchange: exchanged, before }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange {
            // SAFETY: `before` holds the mode that the thread had, and is a place for the one that it has.
            unsafe { exchange(&raw mut self.before) };
        }
    }
}

/// An event, destroyed when dropped, on whichever way out.
struct Event<'a> {
    driver: &'a RealDriver,
    raw: CUevent,
}

impl<'a> Event<'a> {
    fn new(driver: &'a RealDriver, flags: c_uint) -> Result<Event<'a>, DriverError> {
        let _current = driver.enter()?;
        let mut raw = CUevent::NULL;
        // SAFETY: `raw` is a place for an event, and the context is current.
        driver.check("cuEventCreate", unsafe { (driver.api.event_create)(&raw mut raw, flags) })?;
        Ok(Event { driver, raw })
    }

    fn record(&self, stream: CUstream) -> Result<(), DriverError> {
        let _current = self.driver.enter()?;
        // SAFETY: the event is alive, and so is the stream: the driver's own, or vouched for where its identifier was
        // made.
        self.driver.check("cuEventRecord", unsafe { (self.driver.api.event_record)(self.raw, stream) })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if let Ok(_current) = self.driver.enter() {
            // SAFETY: the event was made by this value and is destroyed once, here; the driver keeps it while it is in
            // use.
            unsafe { (self.driver.api.event_destroy)(self.raw) };
        }
    }
}

/// The text with the NUL that C wants after it.
fn terminated(what: &'static str, text: &str) -> Result<CString, DriverError> {
    CString::new(text).map_err(|error| DriverError::NulByte { what, position: error.nul_position() })
}

/// What a log holds: up to its NUL, or all of it where the driver filled it.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim().to_owned()
}

fn host_size(bytes: u64) -> Result<usize, DriverError> {
    usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_would_be_cut_short_is_refused() {
        assert!(terminated("it", "whole").is_ok());
        let error = terminated("the PTX text", "ab\0c").unwrap_err();
        assert_eq!(error, DriverError::NulByte { what: "the PTX text", position: 2 });
    }

    #[test]
    fn a_log_ends_at_its_nul_or_where_it_is_full() {
        assert_eq!(text(b"ptxas fatal\n\0\0\0"), "ptxas fatal");
        assert_eq!(text(b"full"), "full");
        assert_eq!(text(&[0; 4]), "");
        assert_eq!(text(&[0xff, b'x']), "\u{fffd}x");
    }
}
