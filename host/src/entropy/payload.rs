//! Payloads whose codes are packed.

use std::borrow::Cow;

use crate::error::Error;
use crate::kind::BackendKind;
use crate::view::PayloadView;
use crate::wire::{Entropy, HEADER_BYTES, Header, Payload};
use crate::words::{little_endian, zeros};

/// What room is asked for.
pub(crate) const PAYLOAD: &str = "a payload";

/// Packed codes: the table, in whole words, and the words of the units.
pub(crate) struct Packed<'p> {
    /// Their bytes, as in a payload.
    pub(crate) bytes: Cow<'p, [u8]>,
    /// Words after the table.
    pub(crate) words: u32,
}

/// Refuses codes that cannot be packed so.
pub(crate) fn check(header: &Header, entropy: Entropy) -> Result<(), Error> {
    let (codec, bits) = (header.codec(), header.bits());
    if entropy.fits(codec, bits, header.levels()) {
        return Ok(());
    }
    Err(Error::NotPacked { asked: entropy.name(), takes: entropy.takes(), codec: codec.name(), bits })
}

/// A copy of a payload.
pub(crate) fn as_it_is(payload: &PayloadView<'_>) -> Result<Payload, Error> {
    let mut bytes = zeros(payload.as_bytes().len() as u64, PAYLOAD)?;
    bytes.copy_from_slice(payload.as_bytes());
    Ok(Payload::seal(*payload.header(), bytes))
}

/// The payload with these codes in place of its own.
pub(crate) fn packed_payload(
    payload: &PayloadView<'_>,
    entropy: Entropy,
    packed: &Packed<'_>,
) -> Result<Payload, Error> {
    let header = Header { entropy, words: packed.words, ..*payload.header() };
    let (mut bytes, codes_at) = front(&header, payload)?;
    bytes[codes_at..].copy_from_slice(&packed.bytes);
    Ok(Payload::seal(header, bytes))
}

/// Bytes of a payload of this header with the scalars of another, zeros in place of the codes, and where those
/// begin.
pub(crate) fn front(header: &Header, payload: &PayloadView<'_>) -> Result<(Vec<u8>, usize), Error> {
    let mut bytes = zeros(header.payload_bytes(), PAYLOAD)?;
    let codes_at = HEADER_BYTES + payload.scalars().len();
    bytes[HEADER_BYTES..codes_at].copy_from_slice(payload.scalars());
    Ok((bytes, codes_at))
}

/// Bytes of the packed codes that a device says it has made as `words` words, after their table: checked before
/// anything of that size is read.
///
/// # Errors
/// [`Error::Backend`] if no codes are packed in that many words: the device's memory or its arithmetic is at fault.
pub(crate) fn bytes_of_total(kind: BackendKind, header: &Header, entropy: Entropy, words: u32) -> Result<u64, Error> {
    let (n, total) = (header.elements(), u64::from(words));
    if (entropy.least_words(n)..=entropy.most_words(n, header.bits())).contains(&total) {
        return Ok(entropy.table_bytes(n) + 4 * total);
    }
    let found = format!("and {n} codes of {} bits never take as many or as few", header.bits());
    Err(faulty(kind, total, &found))
}

/// Packed codes as a device hands them back, once their table names as many words as follow it.
///
/// # Errors
/// As [`bytes_of_total`].
pub(crate) fn agreed<'p>(
    kind: BackendKind,
    header: &Header,
    entropy: Entropy,
    packed: &'p [u32],
) -> Result<Packed<'p>, Error> {
    let bytes = little_endian(packed);
    // At most 2^31: 256 words for each of 2^23 units.
    let words = (packed.len() as u64 - entropy.table_bytes(header.elements()) / 4) as u32;
    match entropy.words_of(&bytes, header.elements(), header.bits()) {
        Ok(named) if named == u64::from(words) => Ok(Packed { bytes, words }),
        Ok(named) => Err(faulty(kind, words.into(), &format!("and its table names {named}"))),
        Err(entry) => Err(faulty(kind, words.into(), &format!("and its table has the entry {entry:#x}"))),
    }
}

fn faulty(backend: BackendKind, words: u64, found: &str) -> Error {
    let reason = format!(
        "the device says that it packed codes in {words} words, {found}; its memory is at fault, or its driver: run \
         `cargo xtask verify` on it, and pack on the CPU meanwhile"
    );
    Error::Backend { backend, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::{Pack, sealed::Sealed};
    use crate::words::from_little_endian;
    use crate::{Device, Qsgd, Seed};

    #[test]
    fn a_device_whose_total_is_not_that_of_its_table_is_found() {
        let fixed = Device::cpu().encode(&Qsgd::bits(4), &[0.25f32; 1000], Seed::new(1)).expect("encodes");
        let packed = Device::cpu().pack(&fixed, Entropy::Elias).expect("packs");
        let (words, bytes) = (packed.header().packed_words().expect("packed"), packed.view().codes().to_vec());
        // A device that has packed codes: what it says of their words, and their bytes.
        let of = |words: u32, bytes: &[u8]| {
            let (device, entropy) = (BackendKind::Cuda, Entropy::Elias);
            let found = Pack { header: fixed.header(), entropy, device }.judge(&[], &[words.to_le_bytes().to_vec()])?;
            let mut packed = from_little_endian(bytes);
            packed.resize(found as usize, 0);
            packed_payload(&fixed.view(), entropy, &agreed(device, fixed.header(), entropy, &packed)?)
        };
        assert_eq!(of(words, &bytes).expect("they agree"), packed);
        let mut table = bytes.clone();
        table[0] -= 1;
        for (words, bytes) in
            [(words - 1, &bytes), (words + 1, &bytes), (0, &bytes), (u32::MAX, &bytes), (words, &table)]
        {
            let error = of(words, bytes).expect_err("they do not");
            assert!(matches!(error, Error::Backend { backend: BackendKind::Cuda, .. }), "{error}");
            assert!(error.to_string().contains(&format!("in {words} words")), "{error}");
        }
    }
}
