// All threads fold into one statistic, whose sums may be of a whole tensor.
const BUCKETS: u32 = 1u;
const SUM_WORDS: u32 = 3u;
const SCRATCH: u32 = WORDS;
