// The statistic of the one bucket of a tensor.
fn statistic(word: u32) -> u32 {
    return workspace[word];
}
