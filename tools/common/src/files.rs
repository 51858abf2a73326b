//! Writing files that are whole whenever somebody looks, and the date in them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Replaces a file in one step. `option` is the one that names another folder or file, for the message.
pub fn replace(path: &Path, text: &str, option: &str) -> Result<(), String> {
    let failed =
        |e: std::io::Error| format!("{} could not be written: {e}; name another with {option}", path.display());
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    std::fs::write(&part, text).map_err(failed)?;
    std::fs::rename(&part, path).map_err(failed)
}

/// Now, in UTC, as `2026-11-21T14:05:09Z`.
pub fn now() -> String {
    // Before 1970 a clock is wrong in any case.
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// A number of seconds after 1970 as a date.
fn date(seconds: u64) -> String {
    // Days are counted from the first of March of the year 0, so that a leap day ends a year.
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * era + next;
    format!("{year}-{month:02}-{of_month:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_270_005), "2026-11-21T14:06:45Z");
        assert_eq!(date(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
