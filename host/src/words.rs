//! Words as the bytes that devices and payloads have them in, and memory for them.

use std::borrow::Cow;

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

/// As many zeros.
///
/// # Errors
/// [`Error::Backend`], which says what the memory is for, if it cannot be had.
pub(crate) fn zeros(count: u64, what: &str) -> Result<Vec<f32>, Error> {
    let none = || Error::no_memory(what, 4 * count);
    let count = usize::try_from(count).map_err(|_| none())?;
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).map_err(|_| none())?;
    zeros.resize(count, 0.0);
    Ok(zeros)
}
