// The statistic of the tensor that a workgroup's item is a part of, where that is one bucket.
fn statistic(word: u32) -> u32 {
    return status[workspace[at + 7u] + word];
}
