//! The kinds of backend.

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// CUDA, through PTX.
    Cuda,
    /// Vulkan, Metal or DX12, through WGSL.
    Wgpu,
    /// The cores of this machine.
    Cpu,
}

impl BackendKind {
    /// Every kind, in the order in which [`Device::open`](crate::Device::open) tries them.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::Wgpu, Self::Cpu];

    /// The name to choose it by: `cuda`, `wgpu` or `cpu`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
            Self::Cpu => "cpu",
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
