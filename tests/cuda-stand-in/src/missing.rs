//! What programs link against and no test calls.

use crate::driver;
use crate::state::NOT_SUPPORTED;

/// Exports functions that refuse, whatever they are called with: C lets a callee leave its arguments unread.
macro_rules! missing {
    ($($name:ident)*) => {
        driver! {$(
            /// Not there.
            fn $name() { Err(NOT_SUPPORTED) }
        )*}
    };
}

missing! {
    cuArray3DCreate_v2
    cuArray3DGetDescriptor_v2
    cuArrayDestroy
    cuCtxGetCacheConfig
    cuCtxGetFlags
    cuCtxGetLimit
    cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange
    cuCtxSetCacheConfig
    cuCtxSetLimit
    cuCtxSetSharedMemConfig
    cuDestroyExternalMemory
    cuDevicePrimaryCtxReset_v2
    cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute
    cuFuncSetCacheConfig
    cuFuncSetSharedMemConfig
    cuGraphAddKernelNode
    cuGraphCreate
    cuGraphDebugDotPrint
    cuGraphDestroy
    cuGraphGetEdges
    cuGraphGetNodes
    cuGraphKernelNodeGetParams
    cuGraphNodeGetType
    cuImportExternalMemory
    cuLaunchHostFunc
    cuMemAdvise
    cuMemAllocManaged
    cuMemAllocPitch_v2
    cuMemPrefetchAsync
    cuMemcpy2D_v2
    cuMemcpyAtoH_v2
    cuMemcpyHtoA_v2
    cuMemsetD16Async
    cuModuleGetGlobal_v2
    cuModuleLoad
    cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxPotentialBlockSize
    cuStreamAddCallback
    cuStreamGetFlags
    cuStreamGetPriority
    cuSurfObjectCreate
    cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
    cuProfilerStart
    cuProfilerStop
}
