//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gradwire::backend::cuda::driver::{Driver, FunctionId, KernelArg, ModuleId, StreamId};

use crate::device::known;
use crate::driver;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, capability, code, current, handles, machine, put};

/// # Safety
/// `image` is a text that ends in NUL: the machine reads no other image.
unsafe fn load(image: *const c_void) -> Result<usize, i32> {
    current()?;
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's image is a text that ends in NUL.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| INVALID_VALUE)?;
    let module = machine().load_module(text).map_err(|error| code(&error))?;
    Ok(module.0 as usize)
}

driver! {
    /// Reads a PTX text.
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) {
        // SAFETY: as `cuda.h` has it, of a PTX text.
        unsafe { put(module, load(image)?) }
    }
    /// Reads a PTX text. What the machine has to say goes to standard error, not to the caller's log.
    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const c_void,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        unsafe { put(module, load(image)?) }
    }
    /// Forgets it.
    fn cuModuleUnload(module: usize) {
        machine().unload_module(ModuleId(module as u64));
        handles().functions.retain(|_, of| *of != module as u64);
        Ok(())
    }
    /// The kernel of that name.
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: as `cuda.h` has it.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| INVALID_VALUE)?;
        let found = machine().function(ModuleId(module as u64), name).map_err(|error| code(&error))?;
        handles().functions.insert(found.0 as usize, module as u64);
        // SAFETY: as above.
        unsafe { put(function, found.0 as usize) }
    }
    /// Runs it, and is done with it. Of attributes it knows the one by which a kernel waits for the one before it by
    /// itself, which a device below 9.0 refuses: no library of ours may ask it for that.
    fn cuLaunchKernelEx(config: *const Config, function: usize, params: *mut *mut c_void, extra: *mut *mut c_void) {
        if config.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as `cuda.h` has it.
        let Config { grid, block, shared_bytes, stream, attributes, count } = unsafe { config.read() };
        if count > 0 && attributes.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut is_dependent = false;
        for index in 0..count as usize {
            // SAFETY: as `cuda.h` has it, there are as many.
            let Attribute { id, value, .. } = unsafe { attributes.add(index).read() };
            match id {
                0 => {}
                PROGRAMMATIC if capability() >= (9, 0) => is_dependent = value.number != 0,
                _ => return Err(NOT_SUPPORTED),
            }
        }
        // SAFETY: as `cuda.h` has it.
        unsafe { launch(function, grid, block, shared_bytes, stream, [params, extra], is_dependent) }
    }
    /// The same without attributes.
    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        // SAFETY: as `cuda.h` has it.
        unsafe { launch(function, grid, block, shared_bytes, stream, [params, extra], false) }
    }
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC: c_uint = 6;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const Attribute,
    count: c_uint,
}

/// `CUlaunchAttribute`, whose value begins at a multiple of 8.
#[repr(C)]
pub(crate) struct Attribute {
    id: c_uint,
    _pad: [u8; 4],
    value: Value,
}

/// `CUlaunchAttributeValue`: 64 bytes, here a number.
#[repr(C, align(8))]
pub(crate) struct Value {
    number: c_int,
    _rest: [u8; 60],
}

/// # Safety
/// The first of `params` has the address of each parameter of the kernel, and each is of its size.
unsafe fn launch(
    function: usize,
    [grid, grid_y, grid_z]: [c_uint; 3],
    [block, block_y, block_z]: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    [params, extra]: [*mut *mut c_void; 2],
    is_dependent: bool,
) -> Result<(), i32> {
    current()?;
    known(stream)?;
    if [grid_y, grid_z, block_y, block_z] != [1; 4] || shared_bytes != 0 || !extra.is_null() {
        return Err(NOT_SUPPORTED);
    }
    if grid == 0 || block == 0 {
        return Err(INVALID_VALUE);
    }
    let id = FunctionId(function as u64);
    let sizes = machine().parameters(id).ok_or(INVALID_HANDLE)?;
    let args: Vec<&[u8]> = sizes
        .iter()
        .enumerate()
        // SAFETY: the caller answers for the parameters.
        .map(|(index, bytes)| unsafe { std::slice::from_raw_parts((*params.add(index)).cast(), *bytes as usize) })
        .collect();
    let args: Vec<KernelArg<'_>> = args.into_iter().map(KernelArg::Bytes).collect();
    crate::queued::launch(&machine().name(id).unwrap_or_default(), is_dependent);
    // SAFETY: the machine checks what the kernel does.
    let launched = unsafe {
        if is_dependent {
            machine().launch_dependent(id, grid, block, &args, StreamId::OWN)
        } else {
            machine().launch(id, grid, block, &args, StreamId::OWN)
        }
    };
    launched.map_err(|error| code(&error))
}
