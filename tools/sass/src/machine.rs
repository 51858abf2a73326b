//! The machine code as a CUDA driver: the host crate's backend launches on it as on a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradwire::backend::cuda::driver::{
    DeviceInfo, DevicePtr, Driver, DriverError, FunctionId, KernelArg, MemoryAt, ModuleId, StreamId,
};

use super::error::SassError;
use super::inst;
use super::kernel::Kernel;
use super::memory::Global;
use super::run::{Block, Context, Site, Trace};
use super::tools::Tools;

/// Blocks that run at once, so that those that wait for others are not alone.
const TOGETHER: usize = 132 * 8;

/// A launch that came to its end.
pub(super) struct Launched {
    pub(super) kernel: Arc<Kernel>,
    /// Blocks, and threads of each.
    pub(super) grid: u32,
    pub(super) threads: u32,
    /// Whether its blocks may begin before the launch before it is done.
    pub(super) early: bool,
    /// What the first blocks executed.
    pub(super) traces: Vec<Trace>,
    /// What each instruction cost, of all blocks.
    pub(super) sites: Vec<Site>,
}

#[derive(Default)]
struct State {
    modules: HashMap<u64, Vec<Arc<Kernel>>>,
    functions: HashMap<u64, (u64, Arc<Kernel>)>,
    global: Global,
    numbers: u64,
    launched: Vec<Launched>,
}

/// A device that runs the machine code that the assembler makes.
pub(super) struct Machine {
    info: DeviceInfo,
    sm: u32,
    tools: Arc<Tools>,
    /// Blocks of each launch of which is kept what they executed.
    kept: usize,
    state: Mutex<State>,
}

fn error(call: &'static str, message: String) -> DriverError {
    DriverError::Call { call, code: 1, name: "SASS".to_owned(), message }
}

impl Machine {
    /// A device of a capability, which keeps what the first `kept` blocks of each launch execute.
    pub(super) fn new(tools: Arc<Tools>, sm: u32, kept: usize) -> Self {
        let info = DeviceInfo {
            name: "SASS machine".to_owned(),
            compute_capability: (sm / 10, sm % 10),
            driver_version: (13, 0),
            total_memory: 0,
            multiprocessors: 132,
        };
        Self { info, sm, tools, kept, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launches since the last call, in their order.
    pub(super) fn take_launched(&self) -> Vec<Launched> {
        std::mem::take(&mut self.state().launched)
    }

    fn load(&self, ptx: &str) -> Result<Vec<Arc<Kernel>>, SassError> {
        let assembled = self.tools.assemble(ptx, self.sm)?;
        let codes = inst::read(&self.tools.disassemble(&assembled.path)?, &assembled.cubin)?;
        codes.into_iter().map(|code| Kernel::new(code, &assembled.cubin).map(Arc::new)).collect()
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn bytes(&mut self, call: &'static str, at: DevicePtr, count: usize) -> Result<&mut [u8], DriverError> {
        let outside = || error(call, format!("{count} bytes at {:#x} are in no allocation", at.0));
        self.global.bytes(at.0, count).ok_or_else(outside)
    }

    fn launch(
        &mut self,
        kernel: &Arc<Kernel>,
        grid: u32,
        threads: u32,
        parameters: &[u8],
        kept: usize,
        early: bool,
    ) -> Result<(), SassError> {
        if early && !kernel.waits_first() {
            return Err(SassError::TooEarly { kernel: kernel.code.name.clone() });
        }
        self.global.launch += 1;
        let banks = kernel.banks(parameters);
        let (mut next, mut running, mut traces) = (0, Vec::new(), Vec::new());
        let mut sites = vec![Site::default(); kernel.does.len()];
        while next < grid || !running.is_empty() {
            while running.len() < TOGETHER && next < grid {
                running.push(Block::new(kernel, &banks, next, threads));
                next += 1;
            }
            let mut left = Vec::with_capacity(running.len());
            for mut block in running {
                let tracing = (block.number as usize) < kept;
                let mut context = Context { kernel, global: &mut self.global, sites: &mut sites, tracing };
                if !block.turn(&mut context)? {
                    left.push(block);
                } else if tracing {
                    traces.push((block.number, block.trace()));
                }
            }
            running = left;
        }
        traces.sort_by_key(|(number, _)| *number);
        let traces = traces.into_iter().map(|(_, trace)| trace).collect();
        self.launched.push(Launched { kernel: kernel.clone(), grid, threads, early, traces, sites });
        Ok(())
    }
}

impl Driver for Machine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load_module(&self, ptx: &str) -> Result<ModuleId, DriverError> {
        let kernels = self.load(ptx).map_err(|e| error("load_module", e.to_string()))?;
        let mut state = self.state();
        let number = state.number();
        state.modules.insert(number, kernels);
        Ok(ModuleId(number))
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
        let Some(kernel) = kernels.iter().find(|k| k.code.name == name).cloned() else {
            return Err(DriverError::MissingFunction { name: name.to_owned() });
        };
        let number = state.number();
        state.functions.insert(number, (module.0, kernel));
        Ok(FunctionId(number))
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })?;
        Ok(if size == 0 { DevicePtr::NULL } else { DevicePtr(self.state().global.allocate(size)) })
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if ptr != DevicePtr::NULL {
            self.state().global.free(ptr.0);
        }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: &[u8], _stream: StreamId) -> Result<(), DriverError> {
        if !src.is_empty() {
            self.state().bytes("copy_in", dst, src.len())?.copy_from_slice(src);
        }
        Ok(())
    }

    unsafe fn copy_out(&self, dst: &mut [u8], src: DevicePtr, _stream: StreamId) -> Result<(), DriverError> {
        if !dst.is_empty() {
            dst.copy_from_slice(self.state().bytes("copy_out", src, dst.len())?);
        }
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })?;
        if size > 0 {
            let mut state = self.state();
            let between = state.bytes("copy_within", src, size)?.to_vec();
            state.bytes("copy_within", dst, size)?.copy_from_slice(&between);
        }
        Ok(())
    }

    unsafe fn fill_zero(&self, dst: DevicePtr, bytes: u64, _stream: StreamId) -> Result<(), DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::TooLarge { bytes })?;
        if size > 0 {
            self.state().bytes("fill_zero", dst, size)?.fill(0);
        }
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
        self.launched(function, grid, block, args, false)
    }

    unsafe fn launch_dependent(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        _stream: StreamId,
    ) -> Result<(), DriverError> {
        self.launched(function, grid, block, args, true)
    }

    fn memory_at(&self, ptr: DevicePtr) -> Result<MemoryAt, DriverError> {
        let left = self.state().global.left(ptr.0);
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
        _work: &mut dyn FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        Err(error("elapsed", "the SASS machine counts, and does not time".to_owned()))
    }
}

impl Machine {
    /// Runs a launch.
    fn launched(
        &self,
        function: FunctionId,
        grid: u32,
        block: u32,
        args: &[KernelArg<'_>],
        early: bool,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        let Some((_, kernel)) = state.functions.get(&function.0).cloned() else {
            return Err(DriverError::NotLoaded { what: "function", id: function.0 });
        };
        if grid == 0 {
            return Ok(());
        }
        // Structs of words, and addresses, each aligned as its parts are.
        let mut parameters = Vec::new();
        for arg in args {
            let (bytes, unit) = match arg {
                KernelArg::Bytes(bytes) => (bytes.to_vec(), 4),
                KernelArg::Pointer(DevicePtr(address)) => (address.to_le_bytes().to_vec(), 8),
            };
            parameters.resize(parameters.len().next_multiple_of(unit), 0);
            parameters.extend(bytes);
        }
        if parameters.len() != kernel.parameters.1 {
            let (name, wanted) = (&kernel.code.name, kernel.parameters.1);
            return Err(error("launch", format!("{name} takes {wanted} bytes, and {} were given", parameters.len())));
        }
        let ran = state.launch(&kernel, grid, block, &parameters, self.kept, early);
        ran.map_err(|e| error("launch", e.to_string()))
    }
}
