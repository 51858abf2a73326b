//! What this machine is.

/// The value of a line `KEY SIGN VALUE` of a text, without quotes.
#[must_use]
pub fn value(text: &str, key: &str, sign: char) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(sign)?.1.trim().trim_matches('"').to_owned())
}

/// The name of the processor, where Linux says it.
#[must_use]
pub fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    value(&text, "model name", ':').unwrap_or_else(|| "unknown".to_owned())
}
