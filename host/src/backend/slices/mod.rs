//! Operations on slices of the host's memory, written once for devices whose calls wait and for those that may not.
//!
//! An operation is an `async fn` over a [`Runner`]. A [`Device`](crate::Device) waits in each call, so that [`now`]
//! finds its futures ready. The calls of `Wgpu` that end in `_async` await the same functions.

pub(crate) mod dense;
pub(crate) mod entropy;
pub(crate) mod low_rank;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod passes;
pub(crate) mod sparse;
#[cfg(feature = "wgpu")]
mod waitless;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::backend::cpu::{Cpu, CpuWork};
#[cfg(feature = "cuda")]
use crate::backend::cuda::Cuda;
#[cfg(feature = "wgpu")]
use crate::backend::wgpu::Wgpu;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::embed::{self, Work};
use crate::embed::{Checked, HostSlice};
use crate::error::Error;
use crate::kind::BackendKind;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::plan::Limits;

/// What runs work on memory of the host's.
#[derive(Clone, Copy)]
pub(crate) enum Runner<'d> {
    Cpu(&'d Cpu),
    /// Its calls wait for the device.
    #[cfg(feature = "cuda")]
    Cuda(&'d Cuda),
    /// Its calls wait for the device.
    #[cfg(feature = "wgpu")]
    Wgpu(&'d Wgpu),
    /// Its calls do not wait in a browser.
    #[cfg(feature = "wgpu")]
    Waitless(&'d Wgpu),
}

impl<'d> Runner<'d> {
    fn kind(self) -> BackendKind {
        match self {
            Self::Cpu(_) => BackendKind::Cpu,
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => BackendKind::Cuda,
            #[cfg(feature = "wgpu")]
            Self::Wgpu(_) | Self::Waitless(_) => BackendKind::Wgpu,
        }
    }

    /// Whose memory the work runs in.
    pub(crate) fn place(self) -> Place<'d> {
        match self {
            Self::Cpu(cpu) => Place::Cpu(cpu),
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => Place::Gpu(cuda.limits()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(wgpu) | Self::Waitless(wgpu) => Place::Gpu(wgpu.limits()),
        }
    }

    /// Runs work that takes nothing on trust. The host's memory is as it was whenever this fails.
    pub(crate) async fn run<W: CpuWork + Checked>(
        self,
        work: W,
        buffers: W::Buffers<HostSlice<'_>>,
    ) -> Result<(), Error> {
        // SAFETY: the work takes nothing on trust.
        unsafe { self.run_trusting(work, buffers).await }
    }

    /// As [`Runner::run`], of any work.
    ///
    /// # Safety
    /// The caller guarantees that the memory holds what the work takes on trust.
    pub(crate) async unsafe fn run_trusting<W: CpuWork>(
        self,
        work: W,
        buffers: W::Buffers<HostSlice<'_>>,
    ) -> Result<(), Error> {
        match self {
            Self::Cpu(cpu) => cpu.run(work, buffers),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            // SAFETY: the caller answers for the memory.
            _ => unsafe { self.run_passes(work, buffers).await },
        }
    }

    /// As [`Runner::run_trusting`], of work that has passes alone.
    ///
    /// # Errors
    /// [`Error::Unavailable`] on the CPU, which runs no passes.
    ///
    /// # Safety
    /// As [`Runner::run_trusting`].
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    async unsafe fn run_passes<W: Work>(self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        match self {
            Self::Cpu(_) => {
                let reason = "it runs no passes of kernels".to_owned();
                Err(Error::Unavailable { backend: BackendKind::Cpu, reason })
            }
            #[cfg(feature = "cuda")]
            // SAFETY: the caller answers for the memory.
            Self::Cuda(cuda) => unsafe { embed::run_trusting(cuda, work, buffers) },
            #[cfg(feature = "wgpu")]
            // SAFETY: the caller answers for the memory.
            Self::Wgpu(wgpu) => unsafe { embed::run_trusting(wgpu, work, buffers) },
            #[cfg(feature = "wgpu")]
            Self::Waitless(wgpu) => wgpu.run_async(work, buffers).await,
        }
    }
}

/// Whose memory work runs in.
pub(crate) enum Place<'d> {
    /// The host's own.
    Cpu(&'d Cpu),
    /// That of a GPU, and what bounds a single pass there.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Gpu(Limits),
}

impl<'d> Place<'d> {
    /// The CPU, if the work runs there: it selects entries before it writes any sum.
    pub(crate) fn cpu(self) -> Option<&'d Cpu> {
        match self {
            Self::Cpu(cpu) => Some(cpu),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Self::Gpu(_) => None,
        }
    }
}

/// The outcome of a future that never waits.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        std::thread::yield_now();
    }
}
