//! A Vulkan layer that counts a program's calls and fails one of them, for `cargo xtask faults`.
//!
//! The loader puts it between the program and the driver: `VK_ADD_LAYER_PATH` has the manifest, and
//! `VK_INSTANCE_LAYERS` the name. It knows one driver at a time, since the next function of each name is the same for
//! all devices of a driver.

#![allow(non_snake_case, reason = "the names are those of vulkan.h")]

mod abi;
mod table;

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use abi::{CreateInfo, Function, GetProcAddr, INITIALIZATION_FAILED, LAYER_LINK, Link, Negotiation};
use gradwire_faults::{Codes, fault, gradwire_faults_revive};
use table::Entry;

/// `VK_ERROR_OUT_OF_HOST_MEMORY`.
const HOST_MEMORY: i32 = -1;

/// The next `vkGetInstanceProcAddr`, once there is an instance.
static NEXT_INSTANCE: AtomicUsize = AtomicUsize::new(0);
/// The next `vkGetDeviceProcAddr`, once there is a device.
static NEXT_DEVICE: AtomicUsize = AtomicUsize::new(0);
/// The newest device.
static DEVICE: AtomicUsize = AtomicUsize::new(0);

/// Tells the loader where to begin.
///
/// # Safety
/// `with` is null or a place for what `vk_layer.h` calls `VkNegotiateLayerInterface`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(with: *mut Negotiation) -> i32 {
    // SAFETY: null or such a place, as the loader has it.
    let Some(with) = (unsafe { with.as_mut() }) else { return INITIALIZATION_FAILED };
    with.version = with.version.min(2);
    with.instance = Some(vkGetInstanceProcAddr);
    with.device = Some(vkGetDeviceProcAddr);
    with.physical_device = None;
    0
}

/// # Safety
/// `name` ends in NUL, and `instance` is null or an instance.
#[unsafe(no_mangle)]
unsafe extern "system" fn vkGetInstanceProcAddr(instance: *mut c_void, name: *const c_char) -> Function {
    // SAFETY: as `vulkan.h` has it.
    let text = unsafe { CStr::from_ptr(name) };
    let own = match text.to_bytes() {
        b"vkGetInstanceProcAddr" => Some(vkGetInstanceProcAddr as *const ()),
        b"vkGetDeviceProcAddr" => Some(vkGetDeviceProcAddr as *const ()),
        b"vkCreateInstance" => Some(create_instance as *const ()),
        b"vkCreateDevice" => Some(create_device as *const ()),
        _ => table::find(text).map(|entry| entry.own),
    };
    if let Some(own) = own {
        return own;
    }
    // SAFETY: the next one has this signature, and takes what the loader gave.
    proc_addr(&NEXT_INSTANCE).map_or(ptr::null(), |next| unsafe { next(instance, name) })
}

/// # Safety
/// `name` ends in NUL, and `device` is a device.
#[unsafe(no_mangle)]
unsafe extern "system" fn vkGetDeviceProcAddr(device: *mut c_void, name: *const c_char) -> Function {
    let Some(next) = proc_addr(&NEXT_DEVICE) else { return ptr::null() };
    // SAFETY: the next one has this signature, and takes what the loader gave.
    let theirs = unsafe { next(device, name) };
    // SAFETY: as `vulkan.h` has it.
    let text = unsafe { CStr::from_ptr(name) };
    if text == c"vkGetDeviceProcAddr" {
        return vkGetDeviceProcAddr as *const ();
    }
    // What the driver does not have, the layer does not have either.
    if theirs.is_null() { theirs } else { table::find(text).map_or(theirs, |entry| entry.own) }
}

fn proc_addr(of: &AtomicUsize) -> Option<GetProcAddr> {
    let address = of.load(SeqCst);
    // SAFETY: it is zero, which is none, or an address that the loader gave as such a function.
    unsafe { transmute::<usize, Option<GetProcAddr>>(address) }
}

/// The loader's part of a create info, where it says what comes next; none if there is none.
///
/// # Safety
/// `info` is a create info whose chain is as `vulkan.h` has it.
unsafe fn link(info: *const CreateInfo, kind: u32) -> Option<*mut Link> {
    // SAFETY: as above, every structure of a chain begins with its type and the next one.
    let mut at = unsafe { (*info).next };
    while !at.is_null() {
        // SAFETY: as above.
        let found = unsafe { &mut *at };
        if found.kind == kind && found.function == LAYER_LINK {
            let link = found.link;
            // The next layer is to find its own.
            // SAFETY: the loader's list has a link for this layer.
            found.link = unsafe { (*link).next };
            return Some(link);
        }
        at = found.next;
    }
    None
}

type Create = unsafe extern "system" fn(*mut c_void, *const CreateInfo, *const c_void, *mut usize) -> i32;
type CreateInstance = unsafe extern "system" fn(*const CreateInfo, *const c_void, *mut *mut c_void) -> i32;

unsafe extern "system" fn create_instance(
    info: *const CreateInfo,
    allocator: *const c_void,
    instance: *mut *mut c_void,
) -> i32 {
    if let Some((code, _)) = fault(c"vkCreateInstance", Codes { memory: HOST_MEMORY, lost: 0 }) {
        return code;
    }
    // SAFETY: the loader gives a whole chain.
    let Some(link) = (unsafe { link(info, abi::LOADER_INSTANCE) }) else { return INITIALIZATION_FAILED };
    // SAFETY: the link is the loader's.
    let next = unsafe { (*link).instance };
    // SAFETY: the next `vkCreateInstance` is known without an instance.
    let create = unsafe { next(ptr::null_mut(), c"vkCreateInstance".as_ptr()) };
    // SAFETY: null, or a function of that name and so of that signature.
    let Some(create) = (unsafe { transmute::<Function, Option<CreateInstance>>(create) }) else {
        return INITIALIZATION_FAILED;
    };
    // SAFETY: the arguments are the program's.
    let result = unsafe { create(info, allocator, instance) };
    if result == 0 {
        NEXT_INSTANCE.store(next as usize, SeqCst);
        // SAFETY: the call has written an instance.
        let made = unsafe { *instance };
        // SAFETY: `next` belongs to that instance.
        table::fill(|name| unsafe { next(made, name.as_ptr()) });
    }
    result
}

unsafe extern "system" fn create_device(
    physical: *mut c_void,
    info: *const CreateInfo,
    allocator: *const c_void,
    device: *mut usize,
) -> i32 {
    if let Some((code, _)) = fault(c"vkCreateDevice", Codes { memory: HOST_MEMORY, lost: 0 }) {
        return code;
    }
    // SAFETY: the loader gives a whole chain.
    let Some(link) = (unsafe { link(info, abi::LOADER_DEVICE) }) else { return INITIALIZATION_FAILED };
    // SAFETY: the link is the loader's, and has both.
    let (instance, next) = unsafe { ((*link).instance, (*link).device) };
    // SAFETY: the loader takes null for the instance of `vkCreateDevice` when a layer asks.
    let create = unsafe { instance(ptr::null_mut(), c"vkCreateDevice".as_ptr()) };
    // SAFETY: null, or a function of that name and so of that signature.
    let Some(create) = (unsafe { transmute::<Function, Option<Create>>(create) }) else {
        return INITIALIZATION_FAILED;
    };
    // SAFETY: the arguments are the program's.
    let result = unsafe { create(physical, info, allocator, device) };
    if result == 0 {
        NEXT_DEVICE.store(next as usize, SeqCst);
        // SAFETY: the call has written a device.
        let made = unsafe { *device };
        DEVICE.store(made, SeqCst);
        // SAFETY: `next` belongs to that device.
        table::fill(|name| unsafe { next(made as *mut c_void, name.as_ptr()) });
        gradwire_faults_revive();
    }
    result
}

/// What an intercepted call fails with, if it does. Where the device is lost, it is at rest before the program hears of
/// it: a driver's threads would go on with memory that the program then frees.
pub(crate) fn failure(name: &'static CStr, codes: Codes) -> Option<i32> {
    let (code, lost) = fault(name, codes)?;
    if lost && let Some(Entry { next, .. }) = table::find(c"vkDeviceWaitIdle") {
        // SAFETY: null, or the driver's function of that name.
        let wait = unsafe { transmute::<usize, Option<unsafe extern "system" fn(usize) -> i32>>(next.load(SeqCst)) };
        // SAFETY: the newest device is alive while the program calls its functions.
        wait.map(|wait| unsafe { wait(DEVICE.load(SeqCst)) });
    }
    Some(code)
}
