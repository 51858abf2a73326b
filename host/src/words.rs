//! Words as the bytes that devices and payloads have them in.

use std::borrow::Cow;

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
