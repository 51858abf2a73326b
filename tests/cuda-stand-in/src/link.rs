//! The linker, which compiles PTX to what a cache on disk keeps.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gradwire::backend::cuda::driver::Driver;

use crate::driver;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, code, current, handles, machine, put};

/// `CU_JIT_INPUT_PTX`.
const PTX: c_uint = 1;

driver! {
    /// A linker with nothing in it.
    fn cuLinkCreate_v2(_count: c_uint, _options: *mut c_int, _values: *mut *mut c_void, state: *mut usize) {
        current()?;
        let mut handles = handles();
        let number = handles.number();
        handles.linkers.insert(number, Vec::new());
        // SAFETY: as `cuda.h` has it.
        unsafe { put(state, number) }
    }
    /// Takes one PTX text, which the machine has to read.
    fn cuLinkAddData_v2(
        state: usize,
        kind: c_uint,
        data: *mut c_void,
        size: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        current()?;
        if kind != PTX || data.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as `cuda.h` has it, `data` has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        let text = CStr::from_bytes_with_nul(bytes).ok().and_then(|text| text.to_str().ok()).ok_or(INVALID_VALUE)?;
        let module = machine().load_module(text).map_err(|error| code(&error))?;
        machine().unload_module(module);
        *handles().linkers.get_mut(&state).ok_or(INVALID_HANDLE)? = bytes.to_vec();
        Ok(())
    }
    /// Gives the text itself, with its NUL: `cuModuleLoadDataEx` takes it as it takes PTX. It lies where it is until
    /// the linker is destroyed.
    fn cuLinkComplete(state: usize, image: *mut *mut c_void, size: *mut usize) {
        current()?;
        let handles = handles();
        let bytes = handles.linkers.get(&state).filter(|bytes| !bytes.is_empty()).ok_or(INVALID_HANDLE)?;
        // SAFETY: as `cuda.h` has it.
        unsafe {
            put(image, bytes.as_ptr().cast_mut().cast())?;
            put(size, bytes.len())
        }
    }
    /// Forgets it.
    fn cuLinkDestroy(state: usize) { handles().linkers.remove(&state).map(|_| ()).ok_or(INVALID_HANDLE) }
}
