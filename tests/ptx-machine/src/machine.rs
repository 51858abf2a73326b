//! The machine as a CUDA driver: the host crate's backend launches on it as on a device.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, Header, KernelArg, MemoryAt, ModuleId, StreamId,
};

use crate::count::Counts;
use crate::fault::{Fault, Rejected};
use crate::memory::{Global, Words};
use crate::module::{Module, Placed};
use crate::run::{Block, Launch, Random};

/// A launch that has come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether it might begin before the kernel before it was done: [`Driver::launch_dependent`].
    pub dependent: bool,
    /// What it cost.
    pub counts: Counts,
}

#[derive(Default)]
struct State {
    modules: HashMap<u64, Vec<Placed>>,
    /// The module and the kernel's index in it.
    functions: HashMap<u64, (u64, usize)>,
    global: Global,
    /// Identifiers and launches given out.
    numbers: u64,
    launches: u32,
    /// Launches since the order of warps was begun anew.
    ordered: u32,
    launched: Vec<Launched>,
    spare: Vec<Block>,
    faults: Vec<Fault>,
    /// Whether a module had what was to be replaced.
    planted: bool,
}

/// A device that interprets PTX: a [`Driver`] for `Cuda::with_driver`.
///
/// A launch runs before the call returns, and is an error where the kernel does anything that [`Fault`] describes. The
/// same seed gives the same order of warps and blocks, and so the same faults.
///
/// ```
/// use std::sync::Arc;
///
/// use gradwire::backend::cuda::Cuda;
/// use gradwire::{Device, Qsgd, Seed};
/// use gradwire_ptx_machine::Machine;
///
/// let machine = Arc::new(Machine::new((8, 0), 1).counting());
/// let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None)?);
/// let gradient = [0.25f32; 512];
/// let payload = device.encode(&Qsgd::bits(4), &gradient, Seed::new(7))?;
/// assert_eq!(payload, Device::cpu().encode(&Qsgd::bits(4), &gradient, Seed::new(7))?);
///
/// let launched = machine.take_launched();
/// assert_eq!(launched.last().map(|l| l.kernel.as_str()), Some("qsgd_fixed_f32_4"));
/// # Ok::<(), gradwire::Error>(())
/// ```
pub struct Machine {
    info: DeviceInfo,
    seed: u64,
    /// What to put in place of what, in every text.
    planted: Option<(String, String)>,
    /// Whether launches are kept.
    counting: bool,
    /// Whether it looks for no races.
    trusting: bool,
    /// Whether it tells its own time.
    rehearsing: bool,
    state: Mutex<State>,
}

impl Machine {
    /// A machine of that compute capability. The seed decides the order in which warps run.
    #[must_use]
    pub fn new(compute_capability: (u32, u32), seed: u64) -> Self {
        let info = DeviceInfo {
            name: "PTX machine".to_owned(),
            compute_capability,
            driver_version: (13, 0),
            total_memory: 0,
            multiprocessors: 1,
        };
        Self { info, seed, planted: None, counting: false, trusting: false, rehearsing: false, state: Mutex::default() }
    }

    /// The same machine, which keeps what each launch cost for [`Machine::take_launched`].
    #[must_use]
    pub fn counting(self) -> Self {
        Self { counting: true, ..self }
    }

    /// The same machine, which looks for no races, and is the faster for it: to count what kernels do with much data
    /// that are looked at with less elsewhere.
    #[must_use]
    pub fn trusting(self) -> Self {
        Self { trusting: true, ..self }
    }

    /// The same machine, which tells how long it took itself where a device's time is asked for: to rehearse what
    /// measures a device. Such a time is an interpreter's, and says nothing of any GPU.
    #[must_use]
    pub fn rehearsing(self) -> Self {
        Self { rehearsing: true, ..self }
    }

    /// The same machine, which reads `to` wherever a module says `from`: plants a fault, to see that a test finds it.
    /// [`Machine::is_planted`] tells whether any module said so.
    #[must_use]
    pub fn planting(self, from: &str, to: &str) -> Self {
        Self { planted: Some((from.to_owned(), to.to_owned())), ..self }
    }

    /// Whether a module that was loaded had what [`Machine::planting`] replaces.
    pub fn is_planted(&self) -> bool {
        self.state().planted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a defect of the machine, and the test that met it has failed by it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a kernel; none if it is not loaded.
    pub fn name(&self, function: FunctionId) -> Option<String> {
        let state = self.state();
        let (module, index) = state.functions.get(&function.0)?;
        Some(state.modules.get(module)?.get(*index)?.kernel.name.clone())
    }

    /// Bytes of each parameter of a kernel; none if it is not loaded.
    pub fn parameters(&self, function: FunctionId) -> Option<Vec<u32>> {
        let state = self.state();
        let (module, index) = state.functions.get(&function.0)?;
        Some(state.modules.get(module)?.get(*index)?.kernel.params.clone())
    }

    /// The launches since the last call, in their order, of a machine that is [`counting`](Machine::counting); of
    /// another, none.
    pub fn take_launched(&self) -> Vec<Launched> {
        std::mem::take(&mut self.state().launched)
    }

    /// Begins the order of warps anew, so that the next launches run in that of the first ones.
    pub fn rewind(&self) {
        self.state().ordered = 0;
    }

    /// The faults since the last call, in their order.
    pub fn take_faults(&self) -> Vec<Fault> {
        std::mem::take(&mut self.state().faults)
    }

    /// Parses and checks a module.
    fn load(&self, ptx: &str) -> Result<Vec<Placed>, Rejected> {
        let first = |why: String| Rejected { line: 1, why };
        let changed = match &self.planted {
            Some((from, to)) if ptx.contains(from) => {
                self.state().planted = true;
                Some(ptx.replace(from, to))
            }
            _ => None,
        };
        let module = Module::parse(changed.as_deref().unwrap_or(ptx))?;
        let (major, minor) = self.info.compute_capability;
        if module.target > major * 10 + minor {
            return Err(first(format!("the target is sm_{}, and this machine is {major}.{minor}", module.target)));
        }
        if module.version > (9, 0) {
            let (major, minor) = module.version;
            return Err(first(format!("PTX ISA {major}.{minor} is newer than this machine, which knows up to 9.0")));
        }
        module.kernels()
    }
}

/// What a compiled module of the machine's begins with.
const IMAGE: &[u8] = b"compiled for the PTX machine\n";

/// An error of the machine's own, as the driver's errors are given.
fn error(call: &'static str, name: &str, message: String) -> DriverError {
    DriverError::Call { call, code: 1, name: name.to_owned(), message }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A range that the host asks for.
    fn range(
        &mut self,
        call: &'static str,
        at: DevicePtr,
        bytes: usize,
    ) -> Result<(&mut crate::memory::Buffer, usize), DriverError> {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let buffer = self.global.at(at.0, size).map_err(|e| error(call, "INVALID_VALUE", e.to_string()))?;
        let offset = buffer.offset(at.0);
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.len()) {
            let message = format!("{bytes} bytes at offset {offset} are more than the {} there", buffer.len());
            return Err(error(call, "INVALID_VALUE", message));
        }
        Ok((buffer, offset))
    }

    fn launch(
        &mut self,
        seed: u64,
        [counting, races, dependent]: [bool; 3],
        function: FunctionId,
        grid: u32,
        threads: u32,
        args: &[KernelArg<'_>],
    ) -> Result<(), DriverError> {
        let known = self.functions.get(&function.0);
        let kernel = known.and_then(|(module, index)| self.modules.get(module)?.get(*index));
        let Some(Placed { kernel, lines_before }) = kernel else {
            return Err(DriverError::NotLoaded { what: "function", id: function.0 });
        };
        if grid == 0 {
            return Ok(());
        }
        let params: Vec<Vec<u8>> = args
            .iter()
            .map(|arg| match arg {
                KernelArg::Bytes(bytes) => bytes.to_vec(),
                KernelArg::Pointer(DevicePtr(address)) => address.to_le_bytes().to_vec(),
            })
            .collect();
        let sizes: Vec<u32> = params.iter().map(|p| p.len() as u32).collect();
        if sizes != kernel.params {
            let message =
                format!("{}'s parameters have {:?} bytes, and {sizes:?} were given", kernel.name, kernel.params);
            return Err(error("launch", "INVALID_VALUE", message));
        }
        if !(1..=1024).contains(&threads) {
            return Err(error("launch", "INVALID_VALUE", format!("a block of {threads} threads")));
        }
        self.launches += 1;
        self.ordered += 1;
        let launch = Launch {
            kernel,
            lines_before: *lines_before,
            grid,
            threads,
            params: &params,
            global: &mut self.global,
            number: self.launches,
            random: Random(seed ^ u64::from(self.ordered) << 32),
            spare: &mut self.spare,
            counts: Counts::default(),
            counting,
            dependent,
            races,
            sites: vec![Default::default(); kernel.code.len()],
            words: Words::default(),
            waited: BTreeSet::new(),
        };
        match launch.run() {
            Ok(counts) => {
                if counting {
                    self.launched.push(Launched { kernel: kernel.name.clone(), grid, threads, dependent, counts });
                }
                Ok(())
            }
            Err(fault) => {
                let message = fault.to_string();
                self.faults.push(fault);
                Err(error("launch", "LAUNCH_FAILED", message))
            }
        }
    }
}

impl Driver for Machine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        let kernels = self.load(ptx).map_err(|rejected| DriverError::Jit {
            code: 218,
            name: "INVALID_PTX".to_owned(),
            log: rejected.to_string(),
            header: Header::parse(ptx),
            driver_version: self.info.driver_version,
            compute_capability: self.info.compute_capability,
        })?;
        let mut state = self.state();
        let number = state.number();
        state.modules.insert(number, kernels);
        Ok(ModuleId(number))
    }

    /// The text itself, after a line of the machine's own: there is nothing to compile.
    fn compile(&self, ptx: &str) -> Result<Vec<u8>, DriverError> {
        let module = self.load_module(ptx)?;
        self.unload_module(module);
        Ok([IMAGE, ptx.as_bytes()].concat())
    }

    unsafe fn load_image(&self, image: &[u8]) -> Result<ModuleId, DriverError> {
        let text = image.strip_prefix(IMAGE).and_then(|text| std::str::from_utf8(text).ok());
        let refused = || DriverError::Image { code: 200, name: "INVALID_IMAGE".to_owned(), bytes: image.len() as u64 };
        self.load_module(text.ok_or_else(refused)?).map_err(|_| refused())
    }

    fn unload_module(&self, module: ModuleId) {
        let mut state = self.state();
        state.modules.remove(&module.0);
        state.functions.retain(|_, (of, _)| *of != module.0);
    }

    fn function(&self, module: ModuleId, name: &str) -> Result<FunctionId, DriverError> {
        let mut state = self.state();
        let Some(kernels) = state.modules.get(&module.0) else {
            return Err(DriverError::NotLoaded { what: "module", id: module.0 });
        };
        let Some(index) = kernels.iter().position(|k| k.kernel.name == name) else {
            return Err(DriverError::MissingFunction { name: name.to_owned() });
        };
        let number = state.number();
        state.functions.insert(number, (module.0, index));
        Ok(FunctionId(number))
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let address = self.state().global.allocate(bytes);
        address.map(DevicePtr).ok_or(DriverError::OutOfMemory { asked: bytes, free: 0, total: 0 })
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if ptr != DevicePtr::NULL {
            self.state().global.free(ptr.0);
        }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], _stream: StreamId) -> Result<(), DriverError> {
        if src.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        let (buffer, offset) = state.range("copy_in", dst, src.len())?;
        buffer.bytes_mut(offset, src.len()).copy_from_slice(src);
        buffer.mark(offset, src.len());
        Ok(())
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, _stream: StreamId) -> Result<(), DriverError> {
        if dst.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        let (buffer, offset) = state.range("copy_out", src, dst.len())?;
        if let Some(at) = buffer.unwritten(offset, dst.len()) {
            return Err(error("copy_out", "INVALID_VALUE", format!("nothing wrote the byte at offset {at}")));
        }
        dst.copy_from_slice(buffer.bytes(offset, dst.len()));
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })?;
        if size == 0 {
            return Ok(());
        }
        // Before as much is allocated.
        self.state().range("copy_within", src, size)?;
        let mut between = vec![0; size];
        // SAFETY: this driver checks every range itself.
        unsafe {
            self.copy_out(&mut between, src, stream)?;
            self.copy_in(dst, &between, stream)
        }
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, _stream: StreamId) -> Result<(), DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })?;
        if size == 0 {
            return Ok(());
        }
        let mut state = self.state();
        let (buffer, offset) = state.range("fill_zero", dst, size)?;
        buffer.bytes_mut(offset, size).fill(0);
        buffer.mark(offset, size);
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        self.state().launch(self.seed, [self.counting, !self.trusting, false], function, grid, block, args)
    }

    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        self.state().launch(self.seed, [self.counting, !self.trusting, true], function, grid, block, args)
    }

    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        let mut state = self.state();
        let Ok(buffer) = state.global.at(ptr.0, 1) else { return Ok(MemoryAt::Unknown) };
        let left = buffer.len().checked_sub(buffer.offset(ptr.0));
        Ok(left.map_or(MemoryAt::Unknown, |left| MemoryAt::Device { left: Some(left as u64) }))
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
        if self.rehearsing {
            let start = Instant::now();
            return work().map(|()| start.elapsed().as_secs_f64());
        }
        // Its own speed says nothing of a device's, so it gives no time that could be taken for one.
        Err(error("elapsed", "NOT_SUPPORTED", "the PTX machine counts, and does not time".to_owned()))
    }
}
