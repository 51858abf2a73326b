//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gradwire::backend::cuda::driver::{Driver, FunctionId, KernelArg, ModuleId, StreamId};

use crate::device::known;
use crate::driver;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, code, current, handles, machine, put};

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
    /// Runs it, and is done with it.
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
        current()?;
        known(stream)?;
        if [grid_y, grid_z, block_y, block_z] != [1; 4] || shared_bytes != 0 || !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        if grid_x == 0 || block_x == 0 {
            return Err(INVALID_VALUE);
        }
        let id = FunctionId(function as u64);
        let sizes = machine().parameters(id).ok_or(INVALID_HANDLE)?;
        let args: Vec<&[u8]> = sizes
            .iter()
            .enumerate()
            // SAFETY: as `cuda.h` has it, `params` has the address of each parameter, and each is of its size.
            .map(|(index, bytes)| unsafe { std::slice::from_raw_parts((*params.add(index)).cast(), *bytes as usize) })
            .collect();
        let args: Vec<KernelArg<'_>> = args.into_iter().map(KernelArg::Bytes).collect();
        // SAFETY: the machine checks what the kernel does.
        unsafe { machine().launch(id, grid_x, block_x, &args, StreamId::OWN) }.map_err(|error| code(&error))
    }
}
