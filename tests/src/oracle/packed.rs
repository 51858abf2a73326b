//! Packed payloads, in each way that the page has.

use super::{base3, elias, places};

/// A payload with its codes packed in this way of the header.
///
/// # Panics
/// For a way that the page does not know.
pub fn pack(payload: &[u8], entropy: u8) -> Vec<u8> {
    match entropy {
        1 | 3 => elias::pack(payload, entropy),
        2 => base3::pack(payload),
        4 => places::pack(payload),
        other => panic!("no codes are packed as {other}"),
    }
}

/// A packed payload with codes of fixed width; its header says how it is packed.
///
/// # Panics
/// For a way that the page does not know.
pub fn unpack(payload: &[u8]) -> Vec<u8> {
    match payload[20] {
        1 | 3 => elias::unpack(payload),
        2 => base3::unpack(payload),
        4 => places::unpack(payload),
        other => panic!("no codes are packed as {other}"),
    }
}
