//! What a backend does with the codes of a payload.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use super::passes::Layout;
use super::table::{table_bytes, units};
use crate::backend::cpu::Cpu;
use crate::error::Error;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::plan::Role;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::session::Sessions;
use crate::view::PayloadView;
use crate::wire::{CodecId, HEADER_BYTES, Header, Payload};

/// Packed codes: the table, in whole words, and the words of the units.
pub(crate) struct Packed {
    /// Their bytes, as in a payload.
    pub(crate) bytes: Vec<u8>,
    /// Words behind the table.
    pub(crate) words: u32,
}

/// What a backend does with the codes of a payload.
pub(crate) trait Entropy {
    /// Packs the codes of a payload with this header, which is not a packed one's.
    fn pack_codes(&self, header: &Header, codes: &[u8]) -> Result<Packed, Error>;

    /// Writes the codes of fixed width that a checked payload of this header holds packed.
    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error>;
}

/// The payload with its codes packed.
pub(crate) fn pack(engine: &(impl Entropy + ?Sized), payload: &PayloadView<'_>) -> Result<Payload, Error> {
    let header = payload.header();
    if header.codec() != CodecId::Qsgd {
        return Err(Error::NotPacked { codec: header.codec().name() });
    }
    if header.elias.is_some() {
        return Ok(Payload::seal(*header, payload.as_bytes().to_vec()));
    }
    let packed = engine.pack_codes(header, payload.codes())?;
    let scalars = payload.scalars();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + scalars.len() + packed.bytes.len());
    bytes.resize(HEADER_BYTES, 0);
    bytes.extend_from_slice(scalars);
    bytes.extend_from_slice(&packed.bytes);
    Ok(Payload::seal(Header { elias: Some(packed.words), ..*header }, bytes))
}

/// The payload with codes of fixed width.
pub(crate) fn unpack(engine: &(impl Entropy + ?Sized), payload: &PayloadView<'_>) -> Result<Payload, Error> {
    let header = payload.header().fixed();
    if header == *payload.header() {
        return Ok(Payload::seal(header, payload.as_bytes().to_vec()));
    }
    let front = HEADER_BYTES + payload.scalars().len();
    let mut bytes = vec![0; header.payload_bytes() as usize];
    bytes[HEADER_BYTES..front].copy_from_slice(payload.scalars());
    engine.unpack_codes(payload.header(), payload.codes(), &mut bytes[front..])?;
    Ok(Payload::seal(header, bytes))
}

impl Entropy for Cpu {
    fn pack_codes(&self, header: &Header, codes: &[u8]) -> Result<Packed, Error> {
        let (mut bytes, runs) = self.elias_pack(header.bits(), codes);
        bytes.resize(table_bytes(header.elements()) as usize, 0);
        let table = bytes.len();
        bytes.reserve(runs.iter().map(Vec::len).sum());
        runs.iter().for_each(|run| bytes.extend_from_slice(run));
        // At most 2^31: 256 words for each of 2^23 units.
        let words = ((bytes.len() - table) / 4) as u32;
        Ok(Packed { bytes, words })
    }

    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error> {
        let (table, words) = packed.split_at(table_bytes(header.elements()) as usize);
        self.elias_unpack(header.bits(), &table[..units(header.elements()) as usize], words, codes);
        Ok(())
    }
}

/// The kernels take the table on trust; a payload's was checked when it was read.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl<T: Sessions> Entropy for T {
    fn pack_codes(&self, header: &Header, codes: &[u8]) -> Result<Packed, Error> {
        if codes.is_empty() {
            return Ok(Packed { bytes: Vec::new(), words: 0 });
        }
        let layout = Layout::new(header);
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
        let needed = table_bytes(header.elements()) + 4 * u64::from(words);
        let mut bytes = vec![0; needed.min(layout.sizes().of(Role::Values)) as usize];
        session.read(Role::Values, 0, &mut bytes)?;
        Ok(Packed { bytes, words })
    }

    fn unpack_codes(&self, header: &Header, packed: &[u8], codes: &mut [u8]) -> Result<(), Error> {
        if codes.is_empty() {
            return Ok(());
        }
        let layout = Layout::new(header);
        let passes = layout.unpack();
        self.limits().check(&passes)?;
        let mut session = self.session(layout.sizes())?;
        session.write(Role::Values, 0, packed)?;
        // SAFETY: all passes of the layout, in order, in a session of their own; the table names as many words as there are.
        unsafe { session.run_trusted(&passes)? };
        session.read(Role::Codes, 0, codes)
    }
}
