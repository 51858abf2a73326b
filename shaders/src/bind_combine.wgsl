@group(0) @binding(1) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

// Words in front of the partial statistics: the final statistic's room.
const FINAL_WORDS: u32 = 64u;
