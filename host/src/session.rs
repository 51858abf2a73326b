//! Buffers that stay on a device between passes.

use crate::error::Error;
use crate::plan::{ALIGNMENT, Pass};
pub use crate::plan::{Role, Sizes};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::words;

/// Whose clock [`Session::time`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The device's own, by events or timestamps in its queue.
    Device,
    /// This machine's, from the first submission to the end of the last.
    Host,
}

/// Buffers on a device, and the passes that run over them. Made by [`crate::Device::session`].
///
/// This is how a tensor stays on the device between passes, and how a plan can be run pass by pass.
pub trait Session {
    /// Copies bytes into a buffer, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Length`] if they do not fit; [`Error::Backend`] if the device fails.
    fn write(&mut self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Copies bytes out of a buffer, from `offset` on, after all that was run.
    ///
    /// # Errors
    /// As [`Session::write`]. `out` is as it was whenever this fails, so that a caller's memory may be read into as the
    /// last step of a call.
    fn read(&mut self, role: Role, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Runs passes in order, and waits for them.
    ///
    /// # Errors
    /// [`Error::Trusting`] for a pass that takes on trust what it finds in memory ([`Pass::is_trusting`]);
    /// [`Error::Backend`] if the device fails; [`Error::Unavailable`] for passes that it cannot run, such as those
    /// planned by the [limits](crate::plan::Limits) of another device; [`Error::Length`] if they are for larger
    /// buffers; [`Error::Memory`] if they were moved by other than multiples of 256 bytes.
    fn run(&mut self, passes: &[Pass]) -> Result<(), Error> {
        refuse_trusting(passes)?;
        // SAFETY: none of the passes takes anything on trust.
        unsafe { self.run_trusted(passes) }
    }

    /// Runs any passes in order, and waits for them.
    ///
    /// # Errors
    /// As [`Session::run`], but for [`Error::Trusting`].
    ///
    /// # Safety
    /// - The caller guarantees that the buffers hold what the plan of the passes asks for:
    ///   [`Selection::prepare`](crate::Selection::prepare), [`ModelPlan::table`](crate::ModelPlan::table),
    ///   [`ResidentLowRank::image`](crate::ResidentLowRank::image), and indices of which none is there twice.
    /// - The caller guarantees that passes of a plan run in their order, from the first one on, and that nothing else
    ///   writes meanwhile what they leave for one another.
    unsafe fn run_trusted(&mut self, passes: &[Pass]) -> Result<(), Error>;

    /// Seconds that `repeats` runs of the passes took on the device, all together.
    ///
    /// # Errors
    /// As [`Session::run`].
    fn time(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error> {
        refuse_trusting(passes)?;
        // SAFETY: none of the passes takes anything on trust.
        unsafe { self.time_trusted(passes, repeats) }
    }

    /// As [`Session::time`], of any passes.
    ///
    /// # Errors
    /// As [`Session::run_trusted`].
    ///
    /// # Safety
    /// As [`Session::run_trusted`], and the caller guarantees that the passes may be repeated.
    unsafe fn time_trusted(&mut self, passes: &[Pass], repeats: u32) -> Result<f64, Error>;

    /// Seconds that `repeats` device-to-device copies took, of as many bytes as both buffers hold, and that number.
    ///
    /// # Errors
    /// As [`Session::run`]; [`Error::Memory`] for a copy of a buffer onto itself.
    fn time_copy(&mut self, from: Role, to: Role, repeats: u32) -> Result<(f64, u64), Error>;

    /// Whose clock both read.
    fn clock(&self) -> Clock {
        Clock::Host
    }
}

/// Bytes from a device, which become the caller's once all of them are here.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn room_for(bytes: usize) -> Result<Vec<u8>, Error> {
    words::zeros(bytes as u64, "what a device hands back")
}

/// Checks that `bytes` from `offset` on lie in a buffer.
pub(crate) fn check_range(role: Role, sizes: &Sizes, offset: u64, bytes: usize) -> Result<(), Error> {
    let end = offset.saturating_add(bytes as u64);
    if end <= sizes.of(role) {
        return Ok(());
    }
    Err(Error::Length { what: "session's buffer", found: sizes.of(role), expected: end, unit: "bytes" })
}

/// Checks that a copy is from one buffer to another.
pub(crate) fn check_copy(from: Role, to: Role) -> Result<(), Error> {
    if from != to {
        return Ok(());
    }
    let problem = format!("is {from:?} on both sides of a copy: name two buffers");
    Err(Error::Memory { what: "session's buffer", address: 0, problem })
}

/// Refuses passes that take on trust what they find in memory.
fn refuse_trusting(passes: &[Pass]) -> Result<(), Error> {
    match passes.iter().find(|pass| pass.is_trusting()) {
        Some(pass) => Err(Error::Trusting { kernel: pass.kernel.name() }),
        None => Ok(()),
    }
}

/// Checks that every span of the passes lies in its buffer, since the passes may come from a plan for a larger tensor,
/// and that it is aligned, since they may have been moved.
pub(crate) fn check_spans(sizes: &Sizes, passes: &[Pass]) -> Result<(), Error> {
    for pass in passes {
        for role in Role::ALL {
            let span = pass.bindings.of(role);
            if span.bytes > 0 && !span.offset.is_multiple_of(ALIGNMENT) {
                let problem = format!(
                    "is no place for a part of {}: move passes by multiples of {ALIGNMENT} bytes",
                    pass.kernel.name()
                );
                return Err(Error::Memory { what: "session's buffer", address: span.offset, problem });
            }
            let expected = span.offset.saturating_add(span.bytes);
            let found = sizes.of(role).checked_next_multiple_of(4).unwrap_or(u64::MAX);
            if span.bytes > 0 && expected > found {
                return Err(Error::Length { what: "session's buffer", found, expected, unit: "bytes" });
            }
        }
    }
    Ok(())
}
