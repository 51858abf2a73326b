//! A second reader and decoder, written from `docs/wire.md` alone: what it says of any bytes, the product must say.

use gradwire::PayloadError;

use crate::formula::{CODECS, Page};
use crate::oracle::packed;

/// The fields of a header, as they stand there; nothing is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Byte 5.
    pub codec: u8,
    /// Byte 6.
    pub bits: u8,
    /// Byte 7.
    pub bucket: u8,
    /// Bytes 8 to 15.
    pub n: u64,
    /// Bytes 16 and 17.
    pub levels: u16,
    /// Byte 18.
    pub dtype: u8,
    /// Byte 19.
    pub flags: u8,
}

impl Fields {
    /// Reads them from bytes 0 to 31.
    pub fn of(head: &[u8; 32]) -> Self {
        let [_, _, _, _, _, codec, bits, bucket, a, b, c, d, e, f, g, h, low, high, dtype, flags, ..] = *head;
        let n = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self { codec, bits, bucket, n, levels: u16::from_le_bytes([low, high]), dtype, flags }
    }

    /// A header with these fields and no checksum yet.
    pub fn write(&self) -> [u8; 32] {
        let mut head = [0; 32];
        head[..8].copy_from_slice(&[b'G', b'W', b'I', b'R', 1, self.codec, self.bits, self.bucket]);
        head[8..16].copy_from_slice(&self.n.to_le_bytes());
        head[16..18].copy_from_slice(&self.levels.to_le_bytes());
        head[18..20].copy_from_slice(&[self.dtype, self.flags]);
        head
    }

    /// What the page says of the codec; none of a tag that it does not have.
    fn page(&self) -> Option<&'static Page> {
        CODECS.iter().map(|tests| tests.page).find(|page| page.tag == self.codec)
    }

    /// The ways in which its codes may be packed: QSGD and ternary codes, and floats that are integers; in base 3, the
    /// former of 2 bits.
    pub fn packings(&self) -> &'static [u8] {
        match (self.codec, self.bits, self.levels) {
            (1 | 7, 2, _) => &[1, 2, 3, 4],
            (1 | 7, ..) | (8, 8, 127) | (8, 16, 32_767) => &[1, 3, 4],
            _ => &[],
        }
    }

    /// The fewest and the most words of a unit whose codes are packed so.
    pub fn words(&self, entropy: u8) -> (u64, u64) {
        let bits = u64::from(self.bits);
        match entropy {
            2 => (5, 64),
            3 => (8, 8 * (bits + 1 + 2 * u64::from(bits.max(1).ilog2()))),
            4 => (0, 1536 + if bits > 2 { 512 * (bits - 1) } else { 0 }),
            _ => (8, 16 * bits),
        }
    }

    /// The most levels of the width.
    pub fn most_levels(&self) -> u16 {
        let sign = self.page().map_or(0, |page| page.sign_bits);
        let magnitude = self.bits.saturating_sub(sign);
        (1u32.checked_shl(magnitude.into()).unwrap_or(0).wrapping_sub(1)).min(u16::MAX.into()) as u16
    }

    /// The levels that the page names for this width, if it names some.
    pub fn named_levels(&self) -> Vec<u16> {
        let all = self.page().map_or(&[][..], |page| page.levels);
        all.iter().filter(|(bits, _)| *bits == self.bits).map(|(_, levels)| *levels).collect()
    }

    fn has_levels(&self) -> bool {
        let named = self.named_levels();
        let any = self.levels >= 1 && self.levels <= self.most_levels();
        if self.page().is_some_and(|page| !page.levels.is_empty()) { named.contains(&self.levels) } else { any }
    }

    /// The widths of a code that the page allows this codec.
    pub fn widths(&self) -> &'static [u8] {
        self.page().map_or(&[], |page| page.widths)
    }

    /// The buckets that it allows this codec.
    pub fn buckets(&self) -> &'static [u8] {
        self.page().map_or(&[], |page| page.buckets)
    }

    /// The flags that it allows this codec.
    pub fn all_flags(&self) -> u8 {
        self.page().map_or(0, |page| page.flags)
    }

    /// The first field that the page does not allow.
    fn refused(&self) -> Option<&'static str> {
        let (widths, flags) = (self.widths(), self.all_flags());
        let checks = [
            (self.page().is_some(), "codec"),
            (widths.contains(&self.bits), "bits"),
            (self.buckets().contains(&self.bucket), "bucket"),
            (self.n <= 1 << 31, "elements"),
            (self.has_levels(), "levels"),
            (self.dtype <= 2, "dtype"),
            (self.flags & !flags == 0, "flags"),
        ];
        checks.into_iter().find(|(allowed, _)| !allowed).map(|(_, field)| field)
    }

    fn scalar_bytes(&self) -> u128 {
        let n = u128::from(self.n);
        // The power is cut to what shifts, since lengths are asked for of headers that are refused, too.
        let buckets = if self.bucket == 255 { n.min(1) } else { n.div_ceil(1 << (self.bucket % 64)) };
        4 * buckets * self.page().map_or(0, |page| page.scalars(self.bits.into()) as u128)
    }

    /// Bytes of a payload with these fields.
    pub fn length(&self) -> u128 {
        32 + self.scalar_bytes() + 32 * u128::from(self.bits) * u128::from(self.n).div_ceil(256)
    }
}

/// Why the page refuses bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too few bytes, and how many there should be.
    Truncated(u64),
    /// Too many bytes, and how many there should be.
    Trailing(u64),
    /// Bytes 0 to 3.
    Magic,
    /// Byte 4.
    Version,
    /// A field, by name.
    Field(&'static str),
    /// Bytes 28 to 31.
    Checksum,
    /// The table of packed codes.
    Table,
}

impl Refusal {
    /// The same of the product's error.
    ///
    /// # Panics
    /// Where the product makes an error that the page knows no reason for.
    pub fn of(error: &PayloadError) -> Self {
        match *error {
            PayloadError::Truncated { expected, .. } => Self::Truncated(expected),
            PayloadError::Trailing { expected, .. } => Self::Trailing(expected),
            PayloadError::Magic { .. } => Self::Magic,
            PayloadError::Version { .. } => Self::Version,
            PayloadError::Field { field, .. } => Self::Field(field),
            PayloadError::Kind { .. } => Self::Field("codec"),
            PayloadError::Checksum { .. } => Self::Checksum,
            PayloadError::Table { .. } => Self::Table,
            other => panic!("docs/wire.md has no such refusal: {other:?}"),
        }
    }
}

/// Why the page refuses these bytes; `None` if it accepts them.
pub fn refusal(bytes: &[u8]) -> Option<Refusal> {
    let Some(head) = bytes.first_chunk::<32>() else { return Some(Refusal::Truncated(32)) };
    if !head.starts_with(b"GWIR") {
        return Some(Refusal::Magic);
    }
    if head[4] != 1 {
        return Some(Refusal::Version);
    }
    let fields = Fields::of(head);
    if let Some(field) = fields.refused() {
        return Some(Refusal::Field(field));
    }
    let (entropy, words) = (head[20], u32::from_le_bytes([head[24], head[25], head[26], head[27]]));
    if head[21..24] != [0; 3] || (entropy == 0 && words != 0) {
        return Some(Refusal::Field("reserved"));
    }
    if entropy > 0 && !fields.packings().contains(&entropy) {
        return Some(Refusal::Field("entropy"));
    }
    let (each, entry) = match entropy {
        2 => (1280, 1),
        4 => (16_384, 4),
        _ => (256, 1),
    };
    let units = fields.n.div_ceil(each);
    let mut length = fields.length() as u64;
    if entropy > 0 {
        let (least, most) = fields.words(entropy);
        if u64::from(words) < least * units || u64::from(words) > most * units {
            return Some(Refusal::Field("words"));
        }
        length = 32 + fields.scalar_bytes() as u64 + (entry * units).next_multiple_of(4) + 4 * u64::from(words);
    }
    let found = bytes.len() as u64;
    if found != length {
        return Some(if found < length { Refusal::Truncated(length) } else { Refusal::Trailing(length) });
    }
    if checksum(bytes).to_le_bytes() != head[28..] {
        return Some(Refusal::Checksum);
    }
    let table = &bytes[32 + fields.scalar_bytes() as usize..];
    if entropy == 4 {
        let entries = table.chunks_exact(4).take(units as usize);
        let named = entries.map(|entry| places_words(u32::from_le_bytes(entry.try_into().unwrap()), fields.bits));
        return match named.sum::<Option<u64>>() {
            None => Some(Refusal::Field("table")),
            Some(named) => (named != u64::from(words)).then_some(Refusal::Table),
        };
    }
    let table = table.iter().take(units as usize);
    let named: u64 = table.map(|byte| u64::from(*byte) + 1).sum();
    (entropy > 0 && named != u64::from(words)).then_some(Refusal::Table)
}

/// Words of a unit of places; none of an entry that the page does not allow.
pub fn places_words(entry: u32, bits: u8) -> Option<u64> {
    let (count, level_bits) = (u64::from(entry % 65_536), u64::from(entry / 65_536));
    if count > 16_384 || level_bits >= bits.into() || (count == 0 && level_bits > 0) {
        return None;
    }
    let low = (0..=14).rev().find(|low| count << low <= 16_384)?;
    let marks = if count == 0 { 0 } else { count + (16_384 >> low) };
    Some((marks + count * (low + level_bits + 1)).div_ceil(32))
}

/// The CRC-32 table of the reflected polynomial 0xEDB88320.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The checksum of bytes 0 to 27 and from 32 on.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes[32..].iter().fold(bytes[..28].iter().fold(!0, step), step)
}

/// Writes the right checksum at the end of a state: that of all bytes before it.
pub fn seal_state(bytes: &mut [u8]) {
    if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
        let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
        *checksum = (!body.iter().fold(!0, step)).to_le_bytes();
    }
}

/// Writes the right checksum into bytes that are long enough to have one, as whoever forges a payload would.
pub fn seal(bytes: &mut [u8]) {
    if bytes.len() >= 32 {
        let sum = checksum(bytes);
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The gradient of a payload that the page accepts.
pub fn decode(bytes: &[u8]) -> Vec<f32> {
    let Some(head) = bytes.first_chunk::<32>() else { return Vec::new() };
    let fields = Fields::of(head);
    if head[20] > 0 {
        return decode(&packed::unpack(bytes));
    }
    let (scalars, codes) = bytes[32..].split_at(fields.scalar_bytes() as usize);
    let Some(page) = fields.page() else { return Vec::new() };
    let scalars: Vec<f32> = scalars.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let levels = f32::from(fields.levels);
    let element = |e: usize| {
        let bucket = if fields.bucket == 255 { 0 } else { e >> fields.bucket };
        let code = code(codes, fields.bits.into(), e);
        let each = page.scalars(fields.bits.into());
        (page.decode)(&scalars[each * bucket..][..each], levels, code, fields.bits)
    };
    (0..fields.n as usize).map(element).collect()
}

/// Section "The codes".
fn code(codes: &[u8], bits: usize, element: usize) -> u32 {
    let (lane, slot) = (element % 32, element % 256 / 32);
    let (mut code, mut done, mut piece_at) = (0, 0, element / 256 * 32 * bits);
    for width in [16, 8, 4, 2, 1].into_iter().filter(|width| bits & width != 0) {
        let integer_bytes = width.min(4);
        let slots = 8 * integer_bytes / width;
        let at = piece_at + (slot / slots * 32 + lane) * integer_bytes;
        let integer = codes[at..at + integer_bytes].iter().rev().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        code |= (integer >> (slot % slots * width) & ((1 << width) - 1)) << done;
        done += width;
        piece_at += 32 * width;
    }
    code
}
