//! What each function of the driver returns when it is made to fail.

use std::ffi::CStr;

use gradwire_faults::{Codes, fault};

use crate::state::{LAUNCH_FAILED, OUT_OF_MEMORY};

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: i32 = 999;

/// What a call of a function returns in place of its work, where it is to fail.
pub(crate) fn failure(name: &'static CStr, work: &dyn Fn() -> Result<(), i32>) -> Option<i32> {
    let text = name.to_str().unwrap_or_default();
    // What says in words what an error is, is no part of the work.
    if text.starts_with("cuGetError") {
        return None;
    }
    crate::queued::call(name);
    let (code, _) = fault(name, codes(text))?;
    // A copy that fails may have written what it was to write.
    if text.contains("DtoH") {
        let _ = work();
    }
    Some(code)
}

fn codes(name: &str) -> Codes {
    // What does not reach the device does not find it lost.
    let on_the_host = ["cuInit", "cuDriver", "cuDevice", "cuCtxPush", "cuCtxPop", "cuCtxSet", "cuCtxGet", "cuThread"];
    let lost = if on_the_host.iter().any(|start| name.starts_with(start)) { 0 } else { LAUNCH_FAILED };
    let memory = match name {
        "cuInit" | "cuDeviceGetCount" | "cuDriverGetVersion" | "cuDeviceGetAttribute" => UNKNOWN,
        "cuStreamSynchronize" | "cuCtxSynchronize" => LAUNCH_FAILED,
        _ => OUT_OF_MEMORY,
    };
    Codes { memory, lost }
}
