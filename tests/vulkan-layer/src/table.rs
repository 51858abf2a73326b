//! The functions that may fail, each with the failures that `vulkan.h` lists for it.

use std::ffi::CStr;
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use gradwire_faults::Codes;

use crate::abi::Function;
use crate::failure;

/// `VK_ERROR_OUT_OF_HOST_MEMORY`.
const HOST: i32 = -1;
/// `VK_ERROR_OUT_OF_DEVICE_MEMORY`.
const DEVICE: i32 = -2;
/// `VK_ERROR_DEVICE_LOST`.
const LOST: i32 = -4;
/// `VK_ERROR_MEMORY_MAP_FAILED`.
const MAP: i32 = -5;
/// Of a function that never tells of a lost device.
const NEVER: i32 = 0;

/// A function that the layer stands before.
pub(crate) struct Entry {
    pub(crate) name: &'static CStr,
    pub(crate) own: Function,
    /// The driver's; zero until it is known.
    pub(crate) next: &'static AtomicUsize,
}

/// The function of a name.
pub(crate) fn find(name: &CStr) -> Option<Entry> {
    entries().into_iter().find(|entry| entry.name == name)
}

/// Looks up the driver's functions, as far as `get` knows them.
pub(crate) fn fill(get: impl Fn(&CStr) -> Function) {
    for entry in entries() {
        let next = get(entry.name);
        if !next.is_null() {
            entry.next.store(next as usize, SeqCst);
        }
    }
}

macro_rules! intercepted {
    ($($name:ident as $text:literal($($arg:ident: $ty:ty),*), $memory:ident, $lost:ident;)*) => {
        $(mod $name {
            use super::*;

            pub(super) static NEXT: AtomicUsize = AtomicUsize::new(0);

            pub(super) unsafe extern "system" fn own($($arg: $ty),*) -> i32 {
                if let Some(code) = failure($text, Codes { memory: $memory, lost: $lost }) {
                    return code;
                }
                // SAFETY: the layer hands its own function out after the driver's was looked up, or for an instance
                // that has it; the signature is that of `vulkan.h`, whose handles and pointers are words.
                let next = unsafe {
                    transmute::<usize, Option<unsafe extern "system" fn($($ty),*) -> i32>>(NEXT.load(SeqCst))
                };
                // SAFETY: the arguments are the program's.
                next.map_or(crate::abi::INITIALIZATION_FAILED, |next| unsafe { next($($arg),*) })
            }
        })*

        fn entries() -> Vec<Entry> {
            vec![$(Entry { name: $text, own: $name::own as *const (), next: &$name::NEXT }),*]
        }
    };
}

intercepted! {
    enumerate_devices as c"vkEnumeratePhysicalDevices"(a: usize, b: usize, c: usize), HOST, NEVER;
    extensions as c"vkEnumerateDeviceExtensionProperties"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    allocate_memory as c"vkAllocateMemory"(a: usize, b: usize, c: usize, d: usize), DEVICE, NEVER;
    map_memory as c"vkMapMemory"(a: usize, b: u64, c: u64, d: u64, e: u32, f: usize), MAP, NEVER;
    flush as c"vkFlushMappedMemoryRanges"(a: usize, b: u32, c: usize), HOST, NEVER;
    invalidate as c"vkInvalidateMappedMemoryRanges"(a: usize, b: u32, c: usize), HOST, NEVER;
    bind_buffer as c"vkBindBufferMemory"(a: usize, b: u64, c: u64, d: u64), DEVICE, NEVER;
    create_buffer as c"vkCreateBuffer"(a: usize, b: usize, c: usize, d: usize), DEVICE, NEVER;
    create_semaphore as c"vkCreateSemaphore"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    create_fence as c"vkCreateFence"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    create_queries as c"vkCreateQueryPool"(a: usize, b: usize, c: usize, d: usize), DEVICE, NEVER;
    create_pool as c"vkCreateCommandPool"(a: usize, b: usize, c: usize, d: usize), DEVICE, NEVER;
    reset_pool as c"vkResetCommandPool"(a: usize, b: u64, c: u32), DEVICE, NEVER;
    allocate_commands as c"vkAllocateCommandBuffers"(a: usize, b: usize, c: usize), DEVICE, NEVER;
    begin_commands as c"vkBeginCommandBuffer"(a: usize, b: usize), HOST, NEVER;
    end_commands as c"vkEndCommandBuffer"(a: usize), DEVICE, NEVER;
    create_shader as c"vkCreateShaderModule"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    create_set_layout as c"vkCreateDescriptorSetLayout"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    create_layout as c"vkCreatePipelineLayout"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    create_pipelines as c"vkCreateComputePipelines"(a: usize, b: u64, c: u32, d: usize, e: usize, f: usize), DEVICE, NEVER;
    create_sets as c"vkCreateDescriptorPool"(a: usize, b: usize, c: usize, d: usize), HOST, NEVER;
    allocate_sets as c"vkAllocateDescriptorSets"(a: usize, b: usize, c: usize), DEVICE, NEVER;
    submit as c"vkQueueSubmit"(a: usize, b: u32, c: usize, d: u64), DEVICE, LOST;
    wait_semaphores as c"vkWaitSemaphores"(a: usize, b: usize, c: u64), DEVICE, LOST;
    wait_semaphores_khr as c"vkWaitSemaphoresKHR"(a: usize, b: usize, c: u64), DEVICE, LOST;
    semaphore_value as c"vkGetSemaphoreCounterValue"(a: usize, b: u64, c: usize), DEVICE, LOST;
    semaphore_value_khr as c"vkGetSemaphoreCounterValueKHR"(a: usize, b: u64, c: usize), DEVICE, LOST;
    wait_fences as c"vkWaitForFences"(a: usize, b: u32, c: usize, d: u32, e: u64), DEVICE, LOST;
    fence_status as c"vkGetFenceStatus"(a: usize, b: u64), DEVICE, LOST;
    reset_fences as c"vkResetFences"(a: usize, b: u32, c: usize), DEVICE, NEVER;
    wait_queue as c"vkQueueWaitIdle"(a: usize), DEVICE, LOST;
    wait_device as c"vkDeviceWaitIdle"(a: usize), DEVICE, LOST;
}
