//! Numbers of elements, as people type and read them.

/// The most elements of a synthetic gradient: what a machine of 16 GiB times with every buffer resident.
const MOST: u64 = 1 << 28;

/// A number of elements: `1000000`, `1_000_000`, `2^24`, `16M`. K, M and G are powers of 1024, as in names of sizes.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    value(text).filter(|n| (1..=MOST).contains(n)).map(|n| n as usize).ok_or_else(|| {
        format!(
            "--size is a number of elements from 1 to 2^28, written as 1000000, 2^24 or 16M (K, M and G are 2^10, \
             2^20 and 2^30); got `{text}`"
        )
    })
}

fn value(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    if let Some((base, exponent)) = digits.split_once('^') {
        return number(base)?.checked_pow(u32::try_from(number(exponent)?).ok()?);
    }
    let shift = match digits.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => return number(&digits),
    };
    number(&digits[..digits.len() - 1])?.checked_mul(1 << shift)
}

/// Digits and nothing else; `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// A count with its thousands set apart.
pub(crate) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, n) in [
            ("1", 1),
            ("1000000", 1_000_000),
            ("1_000_000", 1_000_000),
            ("2^24", 1 << 24),
            ("16M", 1 << 24),
            ("64k", 1 << 16),
            ("2^28", 1 << 28),
        ] {
            assert_eq!(parse(text), Ok(n), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_what_to_write() {
        for text in
            ["", "0", "-5", "+5", "1.5", "2^29", "2^", "^2", "2^99", "M", "1e6", "9999999999999999999999", "16MM"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("2^24") && error.ends_with(&format!("got `{text}`")), "{error}");
        }
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        let got = [0, 999, 1000, 16_777_216].map(grouped);
        assert_eq!(got, ["0", "999", "1,000", "16,777,216"]);
    }
}
