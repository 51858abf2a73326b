//! What `vk_layer.h` declares, of which a layer needs this much.

use std::ffi::{c_char, c_void};

/// The address of any function; null for none.
pub(crate) type Function = *const ();

/// `vkGetInstanceProcAddr` and `vkGetDeviceProcAddr`.
pub(crate) type GetProcAddr = unsafe extern "system" fn(*mut c_void, *const c_char) -> Function;

/// `VK_ERROR_INITIALIZATION_FAILED`.
pub(crate) const INITIALIZATION_FAILED: i32 = -3;
/// `VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO`.
pub(crate) const LOADER_INSTANCE: u32 = 47;
/// `VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO`.
pub(crate) const LOADER_DEVICE: u32 = 48;
/// `VK_LAYER_LINK_INFO`.
pub(crate) const LAYER_LINK: u32 = 0;

/// `VkNegotiateLayerInterface`.
#[repr(C)]
pub struct Negotiation {
    kind: u32,
    next: *mut c_void,
    pub(crate) version: u32,
    pub(crate) instance: Option<GetProcAddr>,
    pub(crate) device: Option<GetProcAddr>,
    pub(crate) physical_device: Option<GetProcAddr>,
}

/// The beginning of any create info; of the loader's own, `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo`,
/// all of it.
#[repr(C)]
pub(crate) struct CreateInfo {
    pub(crate) kind: u32,
    pub(crate) next: *mut CreateInfo,
    pub(crate) function: u32,
    pub(crate) link: *mut Link,
}

/// `VkLayerInstanceLink`, whose last field is another function, and `VkLayerDeviceLink`.
#[repr(C)]
pub(crate) struct Link {
    pub(crate) next: *mut Link,
    pub(crate) instance: GetProcAddr,
    pub(crate) device: GetProcAddr,
}
