//! A cubin: an ELF file whose sections hold each kernel's machine code and constants.

use std::collections::BTreeMap;

use super::error::SassError;

/// What is read of a cubin.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubin {
    /// Sections by name. One that takes no space in the file is as many zeros.
    sections: BTreeMap<String, Vec<u8>>,
    /// Symbols: section and value.
    symbols: BTreeMap<String, (String, u64)>,
}

/// `EIATTR_PARAM_CBANK` of `.nv.info.<kernel>`, as cuobjdump and nvdisasm name it: where parameters begin in constant
/// bank 0.
const PARAM_CBANK: u8 = 0x0a;
/// The format of an attribute whose size follows, as those tools name it: `EIFMT_SVAL`.
const SIZED: u8 = 4;
/// `SHT_NOBITS` of ELF.
const NO_BITS: u32 = 8;
/// `SHT_SYMTAB` of ELF.
const SYMBOLS: u32 = 2;

/// A little-endian number of the file.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(N)?)?;
    Some(part.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// A text that ends with a zero.
fn text(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

impl Cubin {
    /// Reads an ELF file of 64 bits.
    ///
    /// # Errors
    /// [`SassError::NoCubin`] if it is none.
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, SassError> {
        Self::parse(&bytes).ok_or(SassError::NoCubin { bytes: bytes.len() })
    }

    fn parse(file: &[u8]) -> Option<Self> {
        if file.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let table = number::<8>(file, 0x28)? as usize;
        let [size, count, names] = [0x3a, 0x3c, 0x3e].map(|at| number::<2>(file, at).map(|n| n as usize));
        let (size, count, names) = (size?, count?, names?);
        let header = |index: usize, field: usize| table.checked_add(index.checked_mul(size)?)?.checked_add(field);
        let word = |index, field| number::<4>(file, header(index, field)?).map(|n| n as u32);
        let long = |index, field| number::<8>(file, header(index, field)?).map(|n| n as usize);
        let contents = |index: usize| -> Option<Vec<u8>> {
            let (at, length) = (long(index, 0x18)?, long(index, 0x20)?);
            match word(index, 4)? {
                NO_BITS => (length < 1 << 24).then(|| vec![0; length]),
                _ => file.get(at..at.checked_add(length)?).map(<[u8]>::to_vec),
            }
        };
        let section_names = contents(names)?;
        let name = |index: usize| text(&section_names, word(index, 0)? as usize);
        let mut cubin = Self::default();
        for index in 1..count {
            let bytes = contents(index)?;
            if word(index, 4)? == SYMBOLS {
                let strings = contents(word(index, 0x28)? as usize)?;
                for symbol in bytes.chunks_exact(24) {
                    let section = number::<2>(symbol, 6)? as usize;
                    if (1..count).contains(&section) {
                        let symbol_name = text(&strings, number::<4>(symbol, 0)? as usize)?;
                        cubin.symbols.insert(symbol_name, (name(section)?, number::<8>(symbol, 8)?));
                    }
                }
            }
            cubin.sections.insert(name(index)?, bytes);
        }
        Some(cubin)
    }

    /// A kernel's machine code.
    pub(super) fn code(&self, kernel: &str) -> &[u8] {
        self.section(&format!(".text.{kernel}"))
    }

    /// A constant bank of a kernel; empty if it has none.
    pub(super) fn constants(&self, bank: u32, kernel: &str) -> &[u8] {
        self.section(&format!(".nv.constant{bank}.{kernel}"))
    }

    /// Bytes of shared memory of a block, with what the system keeps for itself on devices where it does.
    pub(super) fn shared(&self, kernel: &str) -> usize {
        self.section(&format!(".nv.shared.{kernel}")).len()
    }

    fn section(&self, name: &str) -> &[u8] {
        self.sections.get(name).map_or(&[], Vec::as_slice)
    }

    /// Where a function that a kernel calls begins in the kernel's code.
    pub(super) fn symbol(&self, kernel: &str, name: &str) -> Option<u64> {
        let (section, value) = self.symbols.get(name)?;
        (section.strip_prefix(".text.") == Some(kernel)).then_some(*value)
    }

    /// Where a kernel's parameters begin in constant bank 0, and how many bytes they are.
    pub(super) fn parameters(&self, kernel: &str) -> Option<(usize, usize)> {
        let info = self.section(&format!(".nv.info.{kernel}"));
        let mut at = 0;
        while at + 4 <= info.len() {
            let (format, attribute) = (info[at], info[at + 1]);
            let size = if format == SIZED { number::<2>(info, at + 2)? as usize } else { 0 };
            if format == SIZED && attribute == PARAM_CBANK {
                return Some((number::<2>(info, at + 8)? as usize, number::<2>(info, at + 10)? as usize));
            }
            at += 4 + size;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cubin_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b"\x7fELF\x02 but not for long", &[0; 100]] {
            assert!(matches!(Cubin::read(bytes.to_vec()), Err(SassError::NoCubin { .. })));
        }
        let mut cut = vec![0xff; 200];
        cut[..5].copy_from_slice(b"\x7fELF\x02");
        assert!(Cubin::read(cut).is_err(), "numbers that point outside are no panic");
    }
}
