//! Operations as values, in memory that a caller owns on a device or on the host: which pieces of memory an operation
//! works on, how large each has to be, and how a payload's body is stored in one.
//!
//! [`Work`] is an operation: it knows its passes and what they ask of each piece of memory. Each GPU surface has one
//! verb that takes any of it; the CPU's takes what has [`CpuWork`](crate::backend::cpu::CpuWork).
//!
//! # A body in device memory
//!
//! The header of a payload is written by the host, since it holds a checksum of the rest. In device memory there is the
//! body alone: the scalars, and from the next multiple of 256 bytes on the codes, [`Header::body_bytes`] together.
//! Bodies can be sent from device to device as they are, and lie one after another where several are decoded, as an
//! all-gather leaves them. [`Header::seal`] makes a payload of a body that was copied to the host, and
//! [`Payload::write_body`] a body of a payload.
//!
//! ```
//! use gradwire::{Codec, Device, Dtype, Qsgd, Seed};
//! let codec = Qsgd::bits(4);
//! let plan = codec.plan(1000, Dtype::F32)?;
//! let payload = Device::cpu().encode(&codec, &[0.5f32; 1000], Seed::new(1))?;
//! let mut body = vec![0; plan.header().body_bytes() as usize];
//! payload.write_body(&mut body)?;
//! assert_eq!(plan.header().seal(&body)?, payload);
//! # Ok::<(), gradwire::Error>(())
//! ```

mod host;
mod low_rank;
mod measure;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod memory;
mod pack;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod phase;
mod pieces;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod put;
mod random;
mod rotation;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod run;
mod scatters;
mod settle;
mod sift;
mod sparse;
mod vote;
mod work;

pub use self::host::HostSlice;
pub(crate) use self::host::{Apart, HostMemory, Update};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::host::{Read, Written};
pub use self::low_rank::{AdvanceLowRank, BeginLowRank, FinishLowRank, LowRankBuffers};
pub(crate) use self::measure::Measures;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub use self::memory::DeviceMemory;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::memory::{ops, queue};
pub(crate) use self::pack::{Pack, PackBuffers, Unpack};
pub use self::pieces::{Access, Piece};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::pieces::{by_role, used};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::put::Put;
pub use self::random::{DecodeRandom, DecodeRandomBuffers, EncodeRandom, EncodeRandomBuffers};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::rotation::Tiling;
pub(crate) use self::rotation::{Cosine, Turn, TurnBuffers};
#[cfg(feature = "wgpu")]
pub(crate) use self::run::expect_found;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::run::run_trusting;
pub(crate) use self::scatters::Scatters;
pub(crate) use self::settle::TakeOff;
pub(crate) use self::sift::{CountAbove, Sift, SiftBuffers, SourceBuffers};
pub use self::sparse::{Scan, ScanBuffers, Scatter, ScatterBuffers, Select, SelectBuffers, Settle, SettleBuffers};
pub(crate) use self::vote::{Votes, VotesBuffers};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) use self::work::word;
pub use self::work::{
    Checked, Decode, DecodeBuffers, DecodeModel, Encode, EncodeBuffers, EncodeModel, WithTable, Work,
};
pub(crate) use self::work::{present, residual, sealed};

use crate::error::Error;
use crate::plan::{ALIGNMENT, DecodePlan, EncodePlan, STATUS_BYTES, refuse_not_finite};
use crate::view::{AsPayload, PayloadView};
use crate::wire::{HEADER_BYTES, Header, Payload};

impl EncodePlan {
    /// Bytes of memory for the gradient, in whole 4-byte words: two more than its elements take where an odd number of
    /// them are f16 or bf16. WGPU binds whole words, and reads nothing from the last two bytes; CUDA needs the
    /// elements' bytes alone.
    pub fn gradient_bytes(&self) -> u64 {
        (self.header().n * self.header().dtype.bytes() as u64).next_multiple_of(4)
    }

    /// Bytes of scratch that an encode in a caller's memory needs: a pure function of the plan. Zero for buckets,
    /// unless the policy is [`NonFinite::Error`](crate::NonFinite::Error).
    pub fn workspace_bytes(&self) -> u64 {
        self.status_room() + self.scratch_bytes() as u64
    }

    /// What an encode in a caller's memory found, under the policy [`NonFinite::Error`](crate::NonFinite::Error): from
    /// the first four bytes that it left in the workspace, once they are copied to the host. Under the other policy
    /// there is nothing to look at. `Wgpu::run_async` and [`Cpu::run`](crate::backend::cpu::Cpu::run) check it
    /// themselves.
    ///
    /// # Errors
    /// [`Error::NotFinite`]: the body was not written, and the residual is as it was. [`Error::Length`] for fewer bytes
    /// than four.
    pub fn check_workspace(&self, workspace: &[u8]) -> Result<(), Error> {
        if !self.is_guarded() {
            return Ok(());
        }
        let Some(status) = workspace.first_chunk() else {
            return Err(Error::Length { what: "workspace", found: workspace.len() as u64, expected: 4, unit: "bytes" });
        };
        refuse_not_finite(u32::from_le_bytes(*status))
    }

    /// Bytes at the front of the workspace that hold the status.
    fn status_room(&self) -> u64 {
        if self.is_guarded() { STATUS_BYTES.next_multiple_of(ALIGNMENT) } else { 0 }
    }
}

impl Header {
    /// Where the codes begin in a body in device memory.
    pub fn codes_offset(&self) -> u64 {
        self.scalar_bytes().next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a body in device memory, a multiple of 256.
    pub fn body_bytes(&self) -> u64 {
        self.codes_offset() + self.code_bytes().next_multiple_of(ALIGNMENT)
    }

    /// The payload of a body that was copied from device memory.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Header::body_bytes`]; [`Error::Packed`] for the header of a packed payload.
    pub fn seal(&self, body: &[u8]) -> Result<Payload, Error> {
        self.refuse_packed()?;
        Error::expect_len("body", "bytes", body.len(), self.body_bytes())?;
        let part = |from: u64, bytes: u64| &body[from as usize..(from + bytes) as usize];
        let mut bytes = Vec::with_capacity(self.payload_bytes() as usize);
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend_from_slice(part(0, self.scalar_bytes()));
        bytes.extend_from_slice(part(self.codes_offset(), self.code_bytes()));
        Ok(Payload::seal(*self, bytes))
    }
}

impl Header {
    /// Refuses a packed payload's header: bodies in device memory have codes of fixed width.
    pub(crate) fn refuse_packed(&self) -> Result<(), Error> {
        if self.is_packed() { Err(Error::Packed { asked: "a body in device memory" }) } else { Ok(()) }
    }
}

impl Payload {
    /// Writes the payload's body as it lies in device memory; bytes between its parts become zero.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Header::body_bytes`]; [`Error::Packed`] for a packed payload.
    pub fn write_body(&self, body: &mut [u8]) -> Result<(), Error> {
        self.view().write_body(body)
    }
}

impl PayloadView<'_> {
    /// Writes the payload's body as it lies in device memory; bytes between its parts become zero.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Header::body_bytes`]; [`Error::Packed`] for a packed payload, which
    /// [`Device::unpack`](crate::Device::unpack) makes one of codes of fixed width.
    pub fn write_body(&self, body: &mut [u8]) -> Result<(), Error> {
        let h = self.header();
        h.refuse_packed()?;
        Error::expect_len("body", "bytes", body.len(), h.body_bytes())?;
        body.fill(0);
        body[..self.scalars().len()].copy_from_slice(self.scalars());
        let (from, codes) = (h.codes_offset() as usize, self.codes());
        body[from..from + codes.len()].copy_from_slice(codes);
        Ok(())
    }
}

impl DecodePlan {
    /// The same plan for bodies that lie one after another in device memory, as [`DecodeBuffers`] has them.
    pub(crate) fn of_bodies(self) -> Self {
        Self { bodies: true, ..self }
    }

    /// Writes the bodies of payloads one after another, as a decode in a caller's memory takes them.
    ///
    /// # Errors
    /// [`Error::Other`] for a payload that was made with another codec, setting or length than the plan's;
    /// [`Error::Packed`] for a packed payload; [`Error::Length`] for other than [`DecodePlan::payloads`] payloads, or
    /// bytes.
    pub fn write_bodies(&self, payloads: &[impl AsPayload], bodies: &mut [u8]) -> Result<(), Error> {
        Error::expect_len("list", "payloads", payloads.len(), self.payloads().into())?;
        let each = self.header().body_bytes();
        Error::expect_len("bodies", "bytes", bodies.len(), each * u64::from(self.payloads()))?;
        for (index, payload) in payloads.iter().enumerate() {
            if let Some(what) = self.header().difference(payload.as_payload().header()) {
                return Err(Error::Other { index, what });
            }
            payload.as_payload().header().refuse_packed()?;
        }
        // A plan without elements has bodies without bytes.
        let places = bodies.chunks_exact_mut((each as usize).max(1));
        payloads.iter().zip(places).try_for_each(|(payload, body)| payload.as_payload().write_body(body))
    }
}
