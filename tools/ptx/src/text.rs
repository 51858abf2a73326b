//! What a PTX text says of itself.

/// The names of a text's entry points, in their order.
pub(super) fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next())
}
