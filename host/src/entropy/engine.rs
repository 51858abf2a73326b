//! What a backend does with the codes of a payload.

use super::passes::Layout;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::Role;
use crate::session::Sessions;
use crate::view::PayloadView;
use crate::wire::{Entropy, HEADER_BYTES, Header, Payload};
use crate::words::zeros;

/// What room is asked for.
pub(crate) const PAYLOAD: &str = "a payload";

/// Packed codes: the table, in whole words, and the words of the units.
pub(crate) struct Packed {
    /// Their bytes, as in a payload.
    pub(crate) bytes: Vec<u8>,
    /// Words behind the table.
    pub(crate) words: u32,
}

/// What a backend does with the codes of a payload.
pub(crate) trait Packs {
    /// Packs the codes of a payload with this header, which is not a packed one's.
    fn pack_codes(&self, header: &Header, entropy: Entropy, codes: &[u8]) -> Result<Packed, Error>;

    /// Writes the codes of fixed width that a checked payload of this header holds packed.
    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error>;
}

/// Refuses codes that cannot be packed so.
pub(crate) fn check(header: &Header, entropy: Entropy) -> Result<(), Error> {
    let (codec, bits) = (header.codec(), header.bits());
    if entropy.fits(codec, bits, header.levels()) {
        return Ok(());
    }
    Err(Error::NotPacked { asked: entropy.name(), takes: entropy.takes(), codec: codec.name(), bits })
}

/// The payload with its codes packed so.
pub(crate) fn pack(
    engine: &(impl Packs + ?Sized),
    payload: &PayloadView<'_>,
    entropy: Entropy,
) -> Result<Payload, Error> {
    let header = payload.header();
    check(header, entropy)?;
    if entropy == header.entropy {
        return as_it_is(payload);
    }
    if header.is_packed() {
        return pack(engine, &unpack(engine, payload)?.view(), entropy);
    }
    packed_payload(payload, entropy, &engine.pack_codes(header, entropy, payload.codes())?)
}

/// A copy of a payload.
pub(crate) fn as_it_is(payload: &PayloadView<'_>) -> Result<Payload, Error> {
    let mut bytes = zeros(payload.as_bytes().len() as u64, PAYLOAD)?;
    bytes.copy_from_slice(payload.as_bytes());
    Ok(Payload::seal(*payload.header(), bytes))
}

/// The payload with these codes in the place of its own.
pub(crate) fn packed_payload(payload: &PayloadView<'_>, entropy: Entropy, packed: &Packed) -> Result<Payload, Error> {
    let header = Header { entropy, words: packed.words, ..*payload.header() };
    let (mut bytes, codes_at) = front(&header, payload)?;
    bytes[codes_at..].copy_from_slice(&packed.bytes);
    Ok(Payload::seal(header, bytes))
}

/// Bytes of a payload of this header with the scalars of another, zeros in the place of the codes, and where those
/// begin.
pub(crate) fn front(header: &Header, payload: &PayloadView<'_>) -> Result<(Vec<u8>, usize), Error> {
    let mut bytes = zeros(header.payload_bytes(), PAYLOAD)?;
    let codes_at = HEADER_BYTES + payload.scalars().len();
    bytes[HEADER_BYTES..codes_at].copy_from_slice(payload.scalars());
    Ok((bytes, codes_at))
}

/// The payload with codes of fixed width.
pub(crate) fn unpack(engine: &(impl Packs + ?Sized), payload: &PayloadView<'_>) -> Result<Payload, Error> {
    let header = payload.header().fixed();
    if header == *payload.header() {
        return as_it_is(payload);
    }
    let (mut bytes, codes_at) = front(&header, payload)?;
    engine.unpack_codes(payload.header(), payload.codes(), &mut bytes[codes_at..])?;
    Ok(Payload::seal(header, bytes))
}

/// Bytes of the packed codes that a device says it has made as so many words, behind their table: checked before
/// anything of that size is read.
///
/// # Errors
/// [`Error::Backend`] where no codes are packed in so many words: the device's memory or its arithmetic is at fault.
pub(crate) fn bytes_of_total(kind: BackendKind, header: &Header, entropy: Entropy, words: u32) -> Result<u64, Error> {
    let (n, total) = (header.elements(), u64::from(words));
    if (entropy.least_words(n)..=entropy.most_words(n, header.bits())).contains(&total) {
        return Ok(entropy.table_bytes(n) + 4 * total);
    }
    let found = format!("and {n} codes of {} bits never take as many or as few", header.bits());
    Err(faulty(kind, total, &found))
}

/// Packed codes as a device hands them back, once their table names as many words as the device has said.
///
/// # Errors
/// As [`bytes_of_total`].
pub(crate) fn agreed(
    kind: BackendKind,
    header: &Header,
    entropy: Entropy,
    words: u32,
    bytes: Vec<u8>,
) -> Result<Packed, Error> {
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

/// The kernels take the table on trust; a payload's was checked when it was read.
impl<T: Sessions> Packs for T {
    fn pack_codes(&self, header: &Header, entropy: Entropy, codes: &[u8]) -> Result<Packed, Error> {
        if codes.is_empty() {
            return Ok(Packed { bytes: Vec::new(), words: 0 });
        }
        let layout = Layout::new(header, entropy);
        let passes = layout.pack();
        self.limits().check(&passes)?;
        let mut session = self.session(layout.sizes())?;
        session.write(Role::Codes, 0, codes)?;
        // SAFETY: all passes of the layout, in order, in a session of their own.
        unsafe { session.run_trusted(&passes)? };
        // The status's second word is nobody's here, and was not written.
        let mut total = [0; 4];
        session.read(Role::Status, 0, &mut total)?;
        let words = u32::from_le_bytes(total);
        let mut bytes = zeros(bytes_of_total(self.kind(), header, entropy, words)?, PAYLOAD)?;
        session.read(Role::Values, 0, &mut bytes)?;
        agreed(self.kind(), header, entropy, words, bytes)
    }

    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error> {
        if codes.is_empty() {
            return Ok(());
        }
        let layout = Layout::new(header, header.entropy());
        let passes = layout.unpack();
        self.limits().check(&passes)?;
        let mut session = self.session(layout.sizes())?;
        session.write(Role::Values, 0, packed)?;
        // SAFETY: all passes of the layout, in order, in a session of their own; the table names as many words as there
        // are.
        unsafe { session.run_trusted(&passes)? };
        session.read(Role::Codes, 0, codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Limits, Pass, Sizes};
    use crate::session::Session;
    use crate::{Device, Qsgd, Seed};

    /// A device that has packed codes before any pass: what it says of their words, and their bytes.
    struct Told(u32, Vec<u8>);

    struct ToldSession<'t>(&'t Told);

    impl Sessions for Told {
        fn limits(&self) -> Limits {
            Limits::NONE
        }

        fn kind(&self) -> BackendKind {
            BackendKind::Cuda
        }

        fn session(&self, _: Sizes) -> Result<Box<dyn Session + '_>, Error> {
            Ok(Box::new(ToldSession(self)))
        }
    }

    impl Session for ToldSession<'_> {
        fn write(&mut self, _: Role, _: u64, _: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn read(&mut self, role: Role, _: u64, out: &mut [u8]) -> Result<(), Error> {
            let total = self.0.0.to_le_bytes();
            let from = if role == Role::Status { &total[..] } else { &self.0.1 };
            out.iter_mut().zip(from).for_each(|(to, byte)| *to = *byte);
            Ok(())
        }

        // SAFETY: it runs nothing.
        unsafe fn run_trusted(&mut self, _: &[Pass]) -> Result<(), Error> {
            Ok(())
        }

        // SAFETY: as above.
        unsafe fn time_trusted(&mut self, _: &[Pass], _: u32) -> Result<f64, Error> {
            Ok(0.0)
        }

        fn time_copy(&mut self, _: Role, _: Role, _: u32) -> Result<(f64, u64), Error> {
            Ok((0.0, 0))
        }
    }

    #[test]
    fn a_device_whose_total_is_not_that_of_its_table_is_found() {
        let fixed = Device::cpu().encode(&Qsgd::bits(4), &[0.25f32; 1000], Seed::new(1)).expect("encodes");
        let packed = Device::cpu().pack(&fixed, Entropy::Elias).expect("packs");
        let (words, bytes) = (packed.header().packed_words().expect("packed"), packed.view().codes().to_vec());
        let of = |words, bytes: &[u8]| pack(&Told(words, bytes.to_vec()), &fixed.view(), Entropy::Elias);
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
