//! Words as the bytes that devices and payloads have them in, and memory for them.

use std::borrow::Cow;

use bytemuck::Zeroable;

use crate::error::Error;

/// Words as bytes, lowest first.
pub(crate) fn little_endian(words: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(words).into();
    }
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// The words of such bytes. What is no whole word at the end is left out.
#[cfg_attr(
    not(any(feature = "cuda", feature = "wgpu")),
    allow(dead_code, reason = "it is GPUs' memory that is read in words")
)]
pub(crate) fn from_little_endian(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// As many zeros. The system hands out memory as zeros, so that none of it is written here.
///
/// # Errors
/// [`Error::Backend`], which says what the memory is for, if it cannot be had.
pub(crate) fn zeros<T: Zeroable>(count: u64, what: &str) -> Result<Vec<T>, Error> {
    let none = || no_memory::<T>(count, what);
    bytemuck::try_zeroed_vec(usize::try_from(count).map_err(|_| none())?).map_err(|()| none())
}

/// No elements yet, and memory for as many.
///
/// # Errors
/// As [`zeros`].
pub(crate) fn reserved<T>(count: usize, what: &str) -> Result<Vec<T>, Error> {
    let mut reserved = Vec::new();
    reserved.try_reserve_exact(count).map_err(|_| no_memory::<T>(count as u64, what))?;
    Ok(reserved)
}

/// A copy.
///
/// # Errors
/// As [`zeros`].
pub(crate) fn copied<T: Copy>(of: &[T], what: &str) -> Result<Vec<T>, Error> {
    let mut copied = reserved(of.len(), what)?;
    copied.extend_from_slice(of);
    Ok(copied)
}

/// Memory for `count` values that cannot be had.
pub(crate) fn no_memory<T>(count: u64, what: &str) -> Error {
    Error::no_memory(what, (size_of::<T>() as u64).saturating_mul(count))
}
