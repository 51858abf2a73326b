//! What a state that stays in a device's memory asks of that device.

use super::{Work, sealed};
use crate::error::Error;

/// A device in whose memory a state can stay, as that of a [`ResidentCompressor`](crate::ResidentCompressor): `Cuda`
/// and `Wgpu`. The trait is implemented here alone.
pub trait DeviceMemory: ops::Ops {}

pub(crate) mod ops {
    use crate::embed::Piece;
    use crate::error::Error;
    use crate::plan::{Limits, Pass};

    /// The operations on the memory. All of them go to the device in the order of the calls; [`Ops::read`] waits for
    /// what came before it.
    ///
    /// A piece is within its memory, begins at a multiple of 4 bytes, and has the length of the operation.
    pub trait Ops: Sized {
        /// Memory that is freed when it is dropped.
        type Room;
        /// A piece of memory, of a room or of a caller's.
        type Slice: Clone;

        /// What bounds a pass.
        fn limits(&self) -> Limits;

        /// Memory that holds anything.
        ///
        /// # Errors
        /// [`Error::Backend`] if there is none left; [`Error::Limit`] for more than the device allocates at once.
        fn room(&self, bytes: u64) -> Result<Self::Room, Error>;

        /// All of a room.
        fn all(&self, room: &Self::Room) -> Self::Slice;

        /// A piece of a piece.
        fn part(&self, of: &Self::Slice, from: u64, bytes: u64) -> Self::Slice;

        /// Checks memory of a caller's, whose length is to be `bytes`.
        ///
        /// # Errors
        /// [`Error::Length`] for another length, [`Error::Memory`] for memory that cannot be used.
        fn check(&self, what: &'static str, slice: &Self::Slice, bytes: u64) -> Result<(), Error>;

        /// The same memory, for copies that are made in every step: where a device has the means, they go through
        /// memory of the host that it reaches by itself, and that is kept.
        fn staged(&self) -> Self;

        /// Copies bytes to the device. Their number is a multiple of 4.
        ///
        /// # Safety
        /// The caller guarantees that the memory stays allocated until the device has done it, and that nothing that
        /// was not queued here uses it meanwhile.
        unsafe fn write(&self, to: &Self::Slice, bytes: &[u8]) -> Result<(), Error>;

        /// Copies bytes from the device. Their number is a multiple of 4. `out` is as it was where this fails.
        ///
        /// # Safety
        /// As [`Ops::write`].
        unsafe fn read(&self, from: &Self::Slice, out: &mut [u8]) -> Result<(), Error>;

        /// Copies bytes, a multiple of 4, from one memory to another one.
        ///
        /// # Safety
        /// As [`Ops::write`].
        unsafe fn copy(&self, from: &Self::Slice, to: &Self::Slice, bytes: u64) -> Result<(), Error>;

        /// Writes zeros over bytes, a multiple of 4.
        ///
        /// # Safety
        /// As [`Ops::write`].
        unsafe fn clear(&self, at: &Self::Slice, bytes: u64) -> Result<(), Error>;

        /// Queues passes over pieces.
        ///
        /// # Safety
        /// As [`Ops::write`], and the memory holds the values that the passes trust.
        unsafe fn queue(&self, passes: &[Pass], pieces: Vec<Piece<Self::Slice>>) -> Result<(), Error>;
    }
}

/// Queues work.
///
/// # Safety
/// As [`ops::Ops::queue`].
pub(crate) unsafe fn queue<D: ops::Ops, W: Work>(
    memory: &D,
    work: W,
    buffers: W::Buffers<D::Slice>,
) -> Result<(), Error> {
    let passes = work.passes(&memory.limits())?;
    // SAFETY: the caller answers for the memory.
    unsafe { memory.queue(&passes, work.pieces(buffers)?) }?;
    drop(passes);
    work.queued(sealed::Surface(()));
    Ok(())
}
