//! Numbers as hexadecimal text: bits, so that nothing depends on how a language reads decimals.

/// Words of `digits` hexadecimal digits with spaces between; four and more equal ones as `word*count`.
pub(super) fn write(words: &[u32], digits: usize) -> String {
    let mut parts = Vec::new();
    for run in words.chunk_by(|a, b| a == b) {
        let word = format!("{:0digits$x}", run[0]);
        if run.len() >= 4 {
            parts.push(format!("{word}*{}", run.len()));
        } else {
            parts.extend(run.iter().map(|_| word.clone()));
        }
    }
    parts.join(" ")
}

/// Reads what [`write`] writes, and refuses another number of words.
pub(super) fn read(text: &str, digits: usize, n: usize) -> Result<Vec<u32>, String> {
    let mut words = Vec::new();
    for part in text.split_ascii_whitespace() {
        let (word, count) = part.split_once('*').unwrap_or((part, "1"));
        let count: usize = count.parse().map_err(|e| format!("`{part}`: {e}"))?;
        if count > n - words.len().min(n) {
            return Err(format!("more than the {n} words that there should be"));
        }
        words.extend(std::iter::repeat_n(number(word, digits)? as u32, count));
    }
    if words.len() == n { Ok(words) } else { Err(format!("{} words, and there should be {n}", words.len())) }
}

/// One number of exactly so many hexadecimal digits.
pub(super) fn number(text: &str, digits: usize) -> Result<u64, String> {
    if text.len() != digits || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!("`{text}` is not {digits} hexadecimal digits"));
    }
    u64::from_str_radix(text, 16).map_err(|e| format!("`{text}`: {e}"))
}

/// Bytes, two digits each, nothing between.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(format!("{} characters are not pairs of hexadecimal digits", text.len()));
    }
    (0..text.len()).step_by(2).map(|i| number(&text[i..i + 2], 2).map(|b| b as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let words = [1, 1, 2, 2, 2, 2, 2, 3];
        assert_eq!(write(&words, 4), "0001 0001 0002*5 0003");
        assert_eq!(read(&write(&words, 4), 4, 8), Ok(words.to_vec()));
        assert_eq!(read("", 8, 0), Ok(vec![]));
        assert_eq!(bytes("00ff10"), Ok(vec![0, 255, 16]));
    }

    #[test]
    fn what_is_not_hexadecimal_or_of_another_length_is_refused() {
        for bad in ["001", "+001", "0001*", "0001*-1", "0001*99999999999999999999", "0001*3", "0001"] {
            assert!(read(bad, 4, 2).is_err(), "{bad}");
        }
        for bad in ["0", "+1", "0x", "é"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
